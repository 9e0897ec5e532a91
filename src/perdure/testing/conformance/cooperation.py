"""Rules for messages, their events, return values, and the handler registry."""

from __future__ import annotations

from typing import Any

import pytest

from perdure.errors import CommitConflict, CommitRefused
from perdure.kernel.cooperation import (
    Cooperation,
    HandlerList,
    MessageEventRow,
    MessageRow,
    ReturnValueRow,
    stored_version,
)
from perdure.kernel.lineages import origin_of, shortened
from perdure.kernel.runless_rows import HandlerChange, SharedWrites
from perdure.kernel.runs import Hold
from perdure.kernel.status import Status
from perdure.ports import Offer
from perdure.testing.conformance.base import Author, Rules, a_run, a_wait, insert, update

MANY = 5_000


def an_operation(run_id: str = "a", lineage: tuple[str, ...] = ("r", "a"), message: str = "m-1", **fields: Any) -> Any:
    defaults: dict[str, Any] = {"workflow": "place-order", "model": "operation", "status": Status.CREATED}
    return insert(
        a_run(run_id, parent_id=lineage[-2], bond="awaited", origin=origin_of(message, lineage), **defaults | fields)
    )


def a_message(message_id: str = "m-1", **fields: Any) -> MessageRow:
    defaults: dict[str, Any] = {"topic": "orders", "payload": '{"sku":"s-1"}', "created_at": 5}
    return MessageRow(id=message_id, **defaults | fields)


def happened(lineage: str = "r", seq: int = 1, type: str = "EMITTED", **fields: Any) -> MessageEventRow:
    scope = lineage.rpartition("/")[2]
    defaults: dict[str, Any] = {"message_id": "m-1", "created_at": 6, "id": f"{scope}-{seq}"}
    keys = {"EMITTED": "EMITTED", "SEEN": "SEEN/place-order", "COMMITTED": "COMMITTED/place-order"}
    defaults["key"] = keys.get(type)
    return MessageEventRow(scope=scope, seq=seq, type=type, cooperation_lineage=lineage, **defaults | fields)


async def emit(author: Author, **parts: Any) -> None:
    await author.commit(an_operation(), cooperation=Cooperation(messages=[a_message()], events=[happened()], **parts))


async def register(author: Author, *handlers: tuple[str, str], at: int) -> HandlerList:
    """Register these handlers, and return the registry after that."""
    await author.commit(at=at, shared=SharedWrites(handlers=[HandlerChange(*pair, True) for pair in handlers]))
    return await author.store.handlers()


def retired(*handlers: tuple[str, str]) -> SharedWrites:
    return SharedWrites(handlers=[HandlerChange(*pair, False) for pair in handlers])


class CooperationRules(Rules):
    async def test_a_run_is_for_engines_with_its_topic(self) -> None:
        """If a run was stored without its topic, engines with its topic can claim it too."""
        runs = {"orders": "orders", "bills": "bills", "old-orders": "", "old-bills": ""}
        async with self.author() as author:
            store = author.store
            for number, (run_id, topic) in enumerate(runs.items()):
                message = a_message(f"a message {number}", topic=run_id.removeprefix("old-"))
                held, due = f"{run_id}-held", f"{run_id}-due"
                hold = Hold(kind="blocked", reason="r", fingerprint="other")
                of_topic: dict[str, Any] = {"message": message.id, "workflow_version": topic}
                await author.commit(
                    an_operation(run_id, ("r", run_id), **of_topic),
                    an_operation(held, ("r", held), **of_topic, hold=hold),
                    an_operation(due, ("r", due), **of_topic, status=Status.SUSPENDED),
                    waits={(due, "1", 0): a_wait(due, due_at=40 + number)},
                    cooperation=Cooperation(messages=[message]),
                )
            others = [
                Offer("place-order", version, "f", model)
                for version in ("", "orders")
                for model in ("function", "graph")
            ]
            assert not (await store.look(engine_id=author.id, offers=others, at=60)).stray
            assert await store.due_runs(offers=others, before=60, limit=10) == []
            has = [*others, Offer("place-order", "orders", "f", "operation"), Offer("other", "bills", "f", "operation")]
            assert (await store.look(engine_id=author.id, offers=has, at=60)).stray
            due_runs = await store.due_runs(offers=has, before=60, limit=10)
            assert [one.run_id for one in due_runs] == ["orders-due", "old-orders-due"]
            claimed = await store.claim(engine_id=author.id, epoch=author.engine.epoch, offers=has, limit=10)
            expected = ["old-orders", "old-orders-held", "orders", "orders-held"]
            assert sorted(one.run.id for one in claimed) == expected
            assert await store.claim(engine_id=author.id, epoch=author.engine.epoch, offers=has, limit=10) == []

    async def test_a_run_that_has_begun_is_for_engines_with_its_version(self) -> None:
        """If a run has not begun, engines with any version can claim it, even if it is running."""
        begun = {
            "plain": "orders",
            "old": "",
            "one": stored_version("orders", "1"),
            "two": stored_version("orders", "2"),
        }
        async with self.author() as author:
            store = author.store
            for run_id, version in {**begun, "new": "orders", "old-new": "", "taken": "orders"}.items():
                hold = Hold(kind="blocked", reason="r", fingerprint="other")
                message = a_message(f"of {run_id}")
                fields: dict[str, Any] = {"message": message.id, "workflow_version": version}
                fields |= {} if run_id.endswith("new") else {"status": Status.RUNNING}
                events = [
                    happened(f"r/{scope}", type="SEEN", message_id=message.id, key=f"SEEN/{scope}")
                    for scope in (run_id, f"{run_id}-held")
                    if run_id in begun
                ]
                await author.commit(
                    an_operation(run_id, ("r", run_id), **fields),
                    an_operation(f"{run_id}-held", ("r", f"{run_id}-held"), **fields, hold=hold),
                    cooperation=Cooperation(messages=[message], events=events),
                )
            unbegun = Offer("place-order", "orders", "f", "operation", False)
            plain = Offer("place-order", "orders", "f", "operation", True)
            one, two = (Offer("place-order", begun[name], "f", "operation") for name in ("one", "two"))
            for has, expected in (
                ([one], ["one"]),
                ([two, unbegun], ["new", "old-new", "taken", "two"]),
                ([unbegun], []),
                ([plain], ["old", "plain"]),
            ):
                assert (await store.look(engine_id=author.id, offers=has, at=60)).stray == bool(expected)
                claimed = await store.claim(engine_id=author.id, epoch=author.engine.epoch, offers=has, limit=20)
                both = sorted([*expected, *(f"{name}-held" for name in expected)])
                assert sorted(one.run.id for one in claimed) == both

    async def test_a_message_its_events_and_its_runs_are_there_together(self) -> None:
        seen = happened(
            "r/a",
            type="SEEN",
            coroutine_name="place-order",
            coroutine_identifier="a",
            step="first",
            exception='{"type":"X"}',
            context="{}",
            next_step=2,
            child_failure_handler_iteration=0,
        )
        async with self.author() as author:
            await emit(author)
            await author.commit(cooperation=Cooperation(events=[seen]))
            found = await author.store.scopes(["a"])
            assert [(run.id, run.parent_id, run.handler, run.status) for run in found.runs] == [
                ("a", "r", "place-order", "created")
            ]
            assert found.runs[0].origin == origin_of("m-1", ("r", "a"))
            assert found.messages == (a_message(),)
            assert found.events == (seen, happened())
            assert found.values == ()
            assert await author.store.emitted("m-1") == happened()
            assert await author.store.emitted("m-2") is None

    async def test_what_is_needed_of_others_comes_with_a_run_and_what_is_not_does_not(self) -> None:
        """The messages and keyed events of a run's ancestors and children are read with the run. The steps of other
        runs are not read.
        """
        async with self.author() as author:
            await emit(author)
            await author.commit(
                an_operation("b", ("r", "a", "b"), "m-2"),
                an_operation("c", ("r", "a", "b", "c"), "m-3"),
                an_operation("d", ("r", "a", "d"), "m-4"),
                cooperation=Cooperation(
                    messages=[a_message("m-2"), a_message("m-3"), a_message("m-4")],
                    events=[
                        happened("r/a", 1, "SEEN"),
                        happened("r/a", 2, message_id="m-2"),
                        happened("r/a", 3, message_id="m-4"),
                        happened("r/a", 4, "SUSPENDED"),
                        happened("r/a/b", 1, "SEEN", message_id="m-2"),
                        happened("r/a/b", 2, message_id="m-3"),
                        happened("r/a/b", 3, "SUSPENDED", message_id="m-2"),
                        happened("r/a/b/c", 1, "SEEN", message_id="m-3"),
                        happened("r/a/b/c", 2, "SUSPENDED", message_id="m-3"),
                        happened("r/a/d", 1, "SEEN", message_id="m-4"),
                    ],
                    values=[
                        ReturnValueRow(scope="b", variable="x", handler="place-order", value="1"),
                        ReturnValueRow(scope="c", variable="x", handler="place-order", value="2"),
                        ReturnValueRow(scope="d", variable="x", handler="place-order", value="3"),
                    ],
                ),
            )
            found = await author.store.scopes(["b"])
            assert [run.id for run in found.runs] == ["a", "b", "c"]
            places = [(event.scope, event.seq) for event in found.events]
            assert places == [("a", 1), ("a", 2), ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("r", 1)]
            assert [message.id for message in found.messages] == ["m-2", "m-3"]
            assert {"b", "c"} <= {value.scope for value in found.values}
            assert "d" not in {value.scope for value in found.values}
            top = await author.store.scopes(["r"])
            assert [run.id for run in top.runs] == ["a"]
            assert [(event.scope, event.seq) for event in top.events] == [("a", 1), ("r", 1)]
            at = await author.store.events_at([("b", 2), ("c", 1), ("c", 9), ("nowhere", 1)])
            assert sorted((event.scope, event.seq) for event in at) == [("b", 2), ("c", 1)]
            assert await author.store.events_at([]) == []
            whole = await author.store.hierarchy("r")
            assert [run.id for run in whole.runs] == ["a", "b", "c", "d"]
            assert len(whole.events) == 11
            assert [message.id for message in whole.messages] == ["m-1", "m-2", "m-3", "m-4"]
            part = await author.store.hierarchy("b")
            assert [run.id for run in part.runs] == ["b", "c"]
            assert [(event.scope, event.seq) for event in part.events] == [
                ("b", 1), ("b", 2), ("b", 3), ("c", 1), ("c", 2)
            ]  # fmt: skip

    async def test_what_was_asked_of_a_far_ancestor_comes_with_a_run(self) -> None:
        """Its lineage is shortened, so it does not name that ancestor. Steps of far ancestors are not needed."""
        ids = ["a", *(f"b-{number:02}" for number in range(80))]
        async with self.author() as author:
            await emit(author)
            lineages = {id: shortened(("r", *ids[: place + 1])) for place, id in enumerate(ids)}
            for id in ids[1:]:
                await author.commit(
                    an_operation(id, lineages[id], f"m-{id}"),
                    cooperation=Cooperation(
                        messages=[a_message(f"m-{id}")],
                        events=[happened("/".join(lineages[id]), 1, "SEEN", message_id=f"m-{id}")],
                    ),
                )
            far, near, own = ids[3], ids[-4], ids[-1]
            assert far not in lineages[own]
            assert near in lineages[own]
            for id, type in ((far, "CANCELLATION_REQUESTED"), (ids[5], "ROLLBACK_EMITTED")):
                key = type if type == "ROLLBACK_EMITTED" else f"{type}/{id}"
                asked = happened("/".join(lineages[id]), 2, type, message_id=f"m-{id}", key=key)
                await author.commit(cooperation=Cooperation(events=[asked]))
            found = await author.store.scopes([own])
            assert {far, ids[5], near, own} <= {run.id for run in found.runs}
            places = {(event.scope, event.seq) for event in found.events}
            assert {(far, 2), (ids[5], 2), (near, 1), (own, 1)} <= places
            assert (far, 1) not in places

    async def test_nothing_is_known_of_runs_that_are_not_operations(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run("r-1")))
            found = await author.store.scopes(["r-1", "nowhere"])
            assert (found.runs, found.events) == ((), ())
            assert (await author.store.scopes([])).runs == ()
            assert (await author.store.hierarchy("r-1")).runs == ()

    async def test_a_place_in_a_lineage_is_taken_once(self) -> None:
        async with self.author() as author:
            await emit(author)
            again = Cooperation(messages=[a_message("m-2")], events=[happened(message_id="m-2")])
            with pytest.raises(CommitRefused):
                await author.commit(cooperation=again)
            assert await author.store.emitted("m-2") is None
            await author.commit(cooperation=Cooperation(events=[happened("r", 2, "CANCELLATION_REQUESTED")]))

    async def test_all_rows_of_a_large_batch_are_one_commit(self) -> None:
        """The batch has thousands of rows, which a store may send in several statements."""
        names = [f"m-{number:05}" for number in range(MANY)]
        messages = [a_message(name) for name in names]
        events = [happened(seq=seq, message_id=name) for seq, name in enumerate(names, 1)]
        value = ReturnValueRow(scope="a", variable="x", handler="place-order", value="1")
        large: dict[str, Any] = {"messages": messages, "values": [value], "seen": [("orders", "place-order")]}
        async with self.author() as author:
            store, version = author.store, (await author.store.handlers()).version
            with pytest.raises(CommitRefused):
                await author.commit(an_operation(), cooperation=Cooperation(events=[*events, events[-1]], **large))
            with pytest.raises(CommitConflict) as conflict:
                await author.commit(
                    an_operation(), cooperation=Cooperation(events=events, registry_version=version + 1, **large)
                )
            assert conflict.value.registry_version == version
            assert await store.load(["a"]) == {}
            assert [await store.emitted(name) for name in (names[0], names[-1])] == [None, None]
            assert (await store.handlers()).version == version
            await author.commit(
                an_operation(), cooperation=Cooperation(events=events, registry_version=version, **large)
            )
            found = await store.hierarchy("r")
            assert (found.messages, found.events, found.values) == (tuple(messages), tuple(events), (value,))
            assert (await store.handlers()).version == version + 1

    async def test_there_is_one_event_for_a_message_and_a_key(self) -> None:
        async with self.author() as author:
            await emit(author)
            await author.commit(cooperation=Cooperation(events=[happened("r/a", 1, "SEEN")]))
            with pytest.raises(CommitRefused):
                await author.commit(cooperation=Cooperation(events=[happened("r/a", 2, "SEEN")]))
            await author.commit(
                cooperation=Cooperation(events=[happened("r/a", 2, "SUSPENDED"), happened("r/a", 3, "SUSPENDED")])
            )

    async def test_a_name_is_returned_once(self) -> None:
        value = ReturnValueRow(scope="a", variable="x", handler="place-order", value="1")
        async with self.author() as author:
            await emit(author, values=[value])
            with pytest.raises(CommitRefused):
                await author.commit(cooperation=Cooperation(values=[value], events=[happened("r/a", 1, "SEEN")]))
            assert (await author.store.scopes(["a"])).values == (value,)
            assert (await author.store.hierarchy("r")).values == (value,)

    async def test_a_batch_that_is_refused_adds_nothing(self) -> None:
        async with self.author() as author:
            await emit(author)
            stale = update(a_run("a", owner="another"), status=Status.RUNNING)
            added = Cooperation(events=[happened("r/a", 1, "SEEN")])
            with pytest.raises(CommitConflict):
                await author.commit(stale, cooperation=added)
            assert len((await author.store.hierarchy("r")).events) == 1

    async def test_a_batch_that_is_sent_again_adds_nothing_more(self) -> None:
        async with self.author() as author:
            added = Cooperation(messages=[a_message()], events=[happened()])
            batch = author.batch(an_operation(), cooperation=added)
            await author.store.commit(batch)
            assert (await author.store.commit(batch)).landed
            assert len((await author.store.hierarchy("r")).events) == 1

    # Handlers.

    async def test_a_handler_stays_in_the_book_until_it_is_taken_out(self) -> None:
        async with self.author() as author:
            store = author.store
            assert (await store.handlers()).handlers == ()
            handlers = await register(author, ("orders", "place-order"), ("stock", "take"), at=7)
            assert [(one.topic, one.name, one.registered_at) for one in handlers.handlers] == [
                ("orders", "place-order", 7),
                ("stock", "take", 7),
            ]
            assert await register(author, ("orders", "place-order"), at=8) == handlers  # Nothing has changed.
        async with self.author("e-2") as author:
            store = author.store
            assert await store.handlers() == handlers
            await author.commit(at=9, shared=retired(("stock", "take")))
            changed = await store.handlers()
            assert changed.version > handlers.version
            assert [one.retired_at for one in changed.handlers] == [None, 9]
            for pair in (("stock", "take"), ("stock", "nobody")):
                with pytest.raises(CommitConflict):
                    await author.commit(an_operation(), at=10, shared=retired(pair))
            assert await store.load(["a"]) == {}
            assert await store.handlers() == changed
            again = await register(author, ("stock", "take"), at=10)
            assert again.version > changed.version
            assert [(one.registered_at, one.retired_at) for one in again.handlers] == [(7, None), (10, None)]

    async def test_handlers_of_one_batch_come_and_go_in_its_order(self) -> None:
        async with self.author() as author:
            takes = HandlerChange("stock", "take", True)
            leaves = HandlerChange("stock", "take", False)
            await author.commit(at=1, shared=SharedWrites(handlers=[takes, leaves]))
            assert [one.retired_at for one in (await author.store.handlers()).handlers] == [1]
            await author.commit(at=2, shared=SharedWrites(handlers=[takes, leaves, takes]))
            assert [one.retired_at for one in (await author.store.handlers()).handlers] == [None]

    async def test_who_emits_must_know_all_handlers(self) -> None:
        async with self.author() as author:
            handlers = await register(author, ("orders", "place-order"), at=7)
            await register(author, ("orders", "bill"), at=8)
            with pytest.raises(CommitConflict) as caught:
                await emit(author, registry_version=handlers.version)
            now = await author.store.handlers()
            assert caught.value.registry_version == now.version
            assert await author.store.emitted("m-1") is None
            await emit(author, registry_version=now.version)
            assert await author.store.emitted("m-1") is not None

    async def test_that_a_handler_was_seen_is_noted_once(self) -> None:
        async with self.author() as author:
            handlers = await register(author, ("orders", "place-order"), at=7)
            await emit(author, seen=[("orders", "place-order"), ("orders", "unheard-of")])
            seen = await author.store.handlers()
            assert seen.version > handlers.version
            assert [(one.name, one.seen_at is None) for one in seen.handlers] == [
                ("place-order", False),
                ("unheard-of", False),
            ]
            assert seen.handlers[1].registered_at is None
            added = Cooperation(events=[happened("r/a", 1, "SEEN")], seen=[("orders", "place-order")])
            await author.commit(cooperation=added)
            assert await author.store.handlers() == seen
