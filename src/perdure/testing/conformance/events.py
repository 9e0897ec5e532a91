"""Events: their queues, matching inside a commit, dead letters, keys, and purging."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from perdure.errors import CommitConflict
from perdure.kernel.batch import RunWrite
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.ports import Store
from perdure.testing.conformance.base import Author, Rules, a_run, an_event, insert, update, waits_for


def ended(run: Run, status: Status = Status.SUCCEEDED) -> RunWrite:
    return update(run, status=status, owner=None, completed_at=9)


async def places(store: Store, *run_ids: str) -> dict[str, list[tuple[str, str | None]]]:
    """Return where events are: by run, the events and the positions that they have won. The key "" is the queue of the
    event's name.
    """
    found: dict[str, list[tuple[str, str | None]]] = {"": [(event.id, None) for event in await store.events()]}
    for run_id in run_ids:
        found[run_id] = [(event.id, event.position) for event in await store.events(run_id=run_id)]
    return found


class EventRules(Rules):
    async def _three(self, author: Author, **fields: Any) -> list[Run]:
        runs = [a_run(f"r-{number}", owner=author.id, status=Status.SUSPENDED, **fields) for number in (1, 2, 3)]
        await author.commit(*map(insert, runs))
        return runs

    async def test_an_event_is_read_as_it_was_written(self) -> None:
        event = an_event(
            value='{"ö":1}', fields={"ö": "1"}, expires_at=2**60, fallback="dead_letter", key="k", actor="ada", at=7
        )
        async with self.author() as author:
            await author.exchange(events=[event])
            assert await author.store.events() == [msgspec.structs.replace(event, number=1)]

    async def test_events_are_numbered_in_the_order_of_sending_across_batches(self) -> None:
        async with self.author() as author, self.author("e-2") as other:
            await author.exchange(events=[an_event("z"), an_event("y")])
            await other.exchange(events=[an_event("x")])
            events = await author.store.events()
            assert [event.id for event in events] == ["z", "y", "x"]
            assert events[0].number < events[1].number < events[2].number
            assert [event.id for event in await author.store.events(limit=2)] == ["z", "y"]
            assert await author.store.events(name="other") == []

    async def test_a_run_is_loaded_with_its_waits_and_its_events(self) -> None:
        async with self.author() as author:
            await author.exchange(
                insert(a_run(owner=author.id)),
                waits=[waits_for(where=(("order", '"o"'),), mode="all", option=1)],
                events=[an_event("e-1", run_id="r-1", name="other"), an_event("e-2", run_id="r-1", name="other")],
            )
            loaded = (await author.store.load(["r-1"]))["r-1"]
            assert [event.id for event in loaded.events] == ["e-1", "e-2"]
            (wait,) = loaded.waits
            assert (wait.where, wait.mode, wait.option, wait.number) == ((("order", '"o"'),), "all", 1, 1)

    async def test_a_broadcast_goes_to_who_has_waited_longest(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for("r-2")])
            await author.exchange(waits=[waits_for("r-1")])
            committed = await author.exchange(events=[an_event("e-1"), an_event("e-2"), an_event("e-3")])
            assert committed.sent == {"e-1": ("r-2",), "e-2": ("r-1",), "e-3": ()}
            assert [(won.run_id, won.position) for won in committed.won] == [("r-2", "1"), ("r-1", "1")]
            found = await places(author.store, "r-1", "r-2")
            assert found == {"": [("e-3", None)], "r-1": [("e-2", "1")], "r-2": [("e-1", "1")]}

    async def test_a_position_that_was_won_is_marked_and_not_given_to_again(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for(option=0), waits_for(option=1, name="other")])
            await author.exchange(events=[an_event("e-1")])
            await author.exchange(events=[an_event("e-2"), an_event("e-3", name="other")])
            waits = (await author.store.load(["r-1"]))["r-1"].waits
            assert [wait.due_at for wait in waits] == [0, 0]
            assert [event.id for event in await author.store.events()] == ["e-2", "e-3"]

    async def test_a_wait_takes_the_earliest_that_fits_from_the_queue(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(
                events=[
                    an_event("blue", fields={"colour": '"blue"'}),
                    an_event("red-1", fields={"colour": '"red"'}),
                    an_event("red-2", fields={"colour": '"red"', "size": "1"}),
                ]
            )
            committed = await author.exchange(waits=[waits_for(where=(("colour", '"red"'),))])
            assert [won.event.id for won in committed.won if won.event] == ["red-1"]
            assert [event.id for event in await author.store.events()] == ["blue", "red-2"]

    async def test_an_event_finds_waits_by_their_filters(self) -> None:
        async with self.author() as author:
            await self._three(author)
            where = (("colour", '"red"'), ("size", "1"))
            await author.exchange(waits=[waits_for("r-1", where=where), waits_for("r-2", where=where[:1])])
            committed = await author.exchange(events=[an_event("e-1", fields={"colour": '"red"', "size": "2"})])
            assert committed.sent == {"e-1": ("r-2",)}
            committed = await author.exchange(events=[an_event("e-2", fields={"size": "1", "colour": '"red"'})])
            assert committed.sent == {"e-2": ("r-1",)}

    async def test_what_is_read_is_gone(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for()], events=[an_event()])
            await author.commit(events_read=[("r-1", "e-1")], waits_dropped=[("r-1", "1")])
            assert await places(author.store, "r-1") == {"": [], "r-1": []}
            assert (await author.store.load(["r-1"]))["r-1"].waits == ()

    async def test_what_was_given_and_not_read_goes_back_to_its_place(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for()], events=[an_event("e-1"), an_event("e-2")])
            await author.commit(waits_dropped=[("r-1", "1")])
            assert await places(author.store, "r-1") == {"": [("e-1", None), ("e-2", None)], "r-1": []}

    async def test_what_was_sent_to_a_run_and_not_read_stays_with_it(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for()], events=[an_event(run_id="r-1", position="1")])
            await author.commit(waits_dropped=[("r-1", "1")])
            assert await places(author.store, "r-1") == {"": [], "r-1": [("e-1", None)]}
            await author.exchange(waits=[waits_for(position="2")], events_given=[("r-1", "e-1", "2", 0)])
            assert await places(author.store, "r-1") == {"": [], "r-1": [("e-1", "2")]}

    async def test_what_a_run_leaves_behind_goes_where_each_events_policy_says(self) -> None:
        async with self.author() as author:
            run, *_ = await self._three(author)
            await author.exchange(waits=[waits_for("r-2", name="shared")])
            await author.exchange(
                events=[
                    an_event("e-1", run_id="r-1", fallback="discard"),
                    an_event("e-2", run_id="r-1", fallback="dead_letter", fields={"a": "1"}),
                    an_event("e-3", run_id="r-1", fallback="broadcast", name="shared"),
                    an_event("e-4", run_id="r-1", fallback="broadcast", name="shared"),
                ]
            )
            committed = await author.commit(ended(run), waits_cleared=["r-1"])
            assert [(won.run_id, won.event.id) for won in committed.won if won.event] == [("r-2", "e-3")]
            found = await places(author.store, "r-1", "r-2")
            assert found == {"": [("e-4", None)], "r-1": [], "r-2": [("e-3", "1")]}
            (letter,) = await author.store.dead_letters()
            assert (letter.id, letter.run_id, letter.status, letter.ended_at) == ("e-2", "r-1", "succeeded", 9)
            assert (letter.name, letter.value, letter.fields, letter.at) == ("paid", '{"amount":1}', {"a": "1"}, 5)

    async def test_dead_letters_are_found_listed_and_removed(self) -> None:
        async with self.author() as author:
            run, *_ = await self._three(author)
            events = [an_event(f"e-{n}", run_id="r-1", name=f"n-{n % 2}", fallback="dead_letter") for n in range(4)]
            await author.exchange(events=events)
            await author.commit(ended(run), waits_cleared=["r-1"])
            store = author.store
            assert [letter.id for letter in await store.dead_letters(name="n-1")] == ["e-1", "e-3"]
            assert [letter.id for letter in await store.dead_letters(after="e-0", limit=2)] == ["e-1", "e-2"]
            await author.commit(dead_letters_gone=["e-1"])
            assert await store.dead_letter("e-1") is None
            with pytest.raises(CommitConflict):
                await author.commit(insert(a_run("not written")), dead_letters_gone=["e-1"])
            assert await store.load(["not written"]) == {}
            assert (found := await store.dead_letter("e-3")) is not None
            assert found.id == "e-3"

    async def test_a_key_is_used_once(self) -> None:
        async with self.author() as author:
            await author.exchange(events=[an_event()], keys={"k": "e-1"})
            assert await author.store.sent(["k", "other"]) == {"k": "e-1"}
            assert await author.store.sent([]) == {}
            with pytest.raises(CommitConflict):
                await author.exchange(events=[an_event("e-2")], keys={"k": "e-2"})
            assert [event.id for event in await author.store.events()] == ["e-1"]

    async def test_an_event_beyond_the_bound_is_refused_with_its_key_and_its_letter(self) -> None:
        async with self.author() as author:
            run, *_ = await self._three(author)
            await author.exchange(events=[an_event("e-1"), an_event("d", run_id="r-1", fallback="dead_letter")])
            await author.commit(ended(run), waits_cleared=["r-1"])
            committed = await author.commit(
                events=[an_event("d", number=1)],
                numbered=1,
                pending_max={"d": 1},
                keys={"k": "d"},
                dead_letters_gone=["d"],
            )
            assert committed.refused == {"d": 1}
            assert [event.id for event in await author.store.events()] == ["e-1"]
            assert await author.store.sent(["k"]) == {}
            assert await author.store.dead_letter("d") is not None

    async def test_expired_events_are_not_given_and_do_not_count(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(events=[an_event("old", expires_at=100)])
            committed = await author.exchange(waits=[waits_for()], at=100)
            assert committed.won == []
            await author.commit(waits_dropped=[("r-1", "1")])
            committed = await author.commit(
                events=[an_event("new", number=1)], numbered=1, pending_max={"new": 1}, at=100
            )  # fmt: skip
            assert committed.refused == {}

    async def test_a_retained_event_is_copied_to_all_who_wait_and_kept(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for("r-1"), waits_for("r-2"), waits_for("r-2", "2")])
            committed = await author.exchange(events=[an_event(consumed=False)])
            assert committed.sent == {"e-1": ("r-1", "r-2")}
            found = await places(author.store, "r-1", "r-2")
            assert found == {"": [("e-1", None)], "r-1": [("e-1", "1")], "r-2": [("e-1", "1")]}
            assert await author.store.spreading() == []

    async def test_who_waits_later_gets_a_retained_event_by_mode_and_never_twice(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(events=[an_event(consumed=False)])
            await author.commit(insert(a_run("young", owner=author.id, status=Status.SUSPENDED)))
            modes = {"r-1": "after_wait", "r-2": "after_create", "r-3": "all", "young": "after_create"}
            committed = await author.exchange(waits=[waits_for(run_id, mode=mode) for run_id, mode in modes.items()])
            assert [won.run_id for won in committed.won] == ["r-2", "r-3"]
            committed = await author.exchange(
                waits=[waits_for("r-3", "2", mode="all")], events_read=[("r-3", "e-1")], waits_dropped=[("r-3", "1")]
            )
            assert committed.won == []

    async def test_expired_events_old_keys_and_what_was_read_of_them_are_forgotten(self) -> None:
        async with self.author() as author:
            await self._three(author)
            await author.exchange(waits=[waits_for("r-3", name="won")])
            await author.exchange(
                events=[
                    an_event("e-1", expires_at=100),
                    an_event("e-2", expires_at=101),
                    an_event("e-3", expires_at=100, run_id="r-1"),
                    an_event("e-4", expires_at=100, name="won"),
                ],
                keys={"old": "e-1"},
                at=50,
            )
            await author.commit(keys={"young": "x"}, at=60)
            assert await author.store.purge(at=100, keys_before=60, limit=1) == 2
            assert await author.store.purge(at=100, keys_before=60, limit=10) == 1
            found = await places(author.store, "r-1", "r-3")
            assert found == {"": [("e-2", None)], "r-1": [], "r-3": [("e-4", "1")]}
            assert await author.store.sent(["old", "young"]) == {"young": "x"}

    async def test_a_run_that_is_guarded_must_be_as_it_was(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run(version=3, revision=3)))
            await author.exchange(events=[an_event("e-1", run_id="r-1")], guards={"r-1": (None, 3, 0)})
            for guard in ((None, 2, 0), (author.id, 3, 0), (None, 3, 1)):
                with pytest.raises(CommitConflict) as conflict:
                    await author.exchange(events=[an_event("e-2", run_id="r-1")], guards={"r-1": guard})
                assert conflict.value.run_ids == {"r-1"}
            assert await places(author.store, "r-1") == {"": [], "r-1": [("e-1", None)]}

    async def test_a_batch_that_had_landed_gives_nothing_twice(self) -> None:
        async with self.author() as author:
            await self._three(author)
            batch = author.batch(events=[an_event(number=1)], numbered=1, pending_max={"e-1": 10}, keys={"k": "e-1"})
            assert not (await author.store.commit(batch)).landed
            assert (await author.store.commit(batch)).landed
            assert len(await author.store.events()) == 1
