"""Ops that concern the same event and meet in one batch: what is stored is what is in memory, on every store."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.batch_decisions import decide_batch
from perdure.coordinator.decision_inputs import Knowledge
from perdure.coordinator.memory import Memory
from perdure.coordinator.queued_ops import Item
from perdure.kernel import wait_matches
from perdure.kernel.decision import Decision
from perdure.kernel.effects import Begin
from perdure.kernel.ops import Advance, Continuation, Send, Wake
from perdure.kernel.rows import Engine, Wait
from perdure.kernel.rules import broadcasts
from perdure.kernel.rules.delivery import Queued
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.ports import LoadedRun, Store
from perdure.storage import open_store
from perdure.storage.memory import MemoryStore
from perdure.storage.sqlite import SqliteStore
from tests.coordinator.post_office import MailRoom, contents, for_event, post_office

Opened = Callable[[], AbstractAsyncContextManager[MailRoom]]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Opened:
    def make_store() -> Store:
        if request.param == "postgres":
            new: Callable[[], str] = request.getfixturevalue("empty_schema")
            return open_store(new())
        return MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "runs.db")

    @asynccontextmanager
    async def with_runs() -> AsyncGenerator[MailRoom]:
        async with post_office(make_store()) as office:
            await office.do(*[office.start(run_id) for run_id in ("r", "s", "t")])
            yield office

    return with_runs


async def held(office: MailRoom, run_id: str) -> list[tuple[str, str | None]]:
    """A run's events and the positions that they won; in memory there must be the same."""
    loaded = (await office.store.load([run_id]))[run_id]
    stored = wait_matches.opened(loaded.waits, loaded.events)
    in_memory = office.mailbox(run_id)
    assert {event.id: event.position for event in stored.events} == {e.id: e.position for e in in_memory.events}
    assert stored.waits.keys() == in_memory.waits.keys()
    return [(event.id, event.position) for event in loaded.events]


async def queued(office: MailRoom, name: str = "a") -> list[str]:
    return [event.id for event in await office.store.events(name=name)]


async def test_an_event_whose_wait_is_dropped_wins_the_next_one_in_the_same_batch(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a", "r"))
        assert await held(office, "r") == [("e", "1")]
        await office.do(office.drop("r", "1"), office.wait("r", "2", for_event("r", "2", "a")))
        assert await held(office, "r") == [("e", "2")]
        (wait,) = (await office.store.load(["r"]))["r"].waits
        assert wait.due_at == 0


async def test_an_event_that_wins_a_wait_which_is_dropped_in_the_same_batch_waits_on(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a", "r"), office.drop("r", "1"))
        assert await held(office, "r") == [("e", None)]
        await office.do(office.wait("r", "2", for_event("r", "2", "a")))
        assert await held(office, "r") == [("e", "2")]


async def test_an_event_of_a_run_that_drops_its_wait_and_ends_goes_back_once(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a"))
        await office.do(office.drop("r", "1"), office.end("r"))
        assert await queued(office) == ["e"]


@pytest.mark.parametrize(
    ("fallback", "letters", "queue"), [("discard", [], []), ("dead_letter", ["e"], []), ("broadcast", [], ["e"])]
)
@pytest.mark.parametrize("waits", [False, True])
async def test_an_event_to_a_run_that_ends_in_the_same_batch_goes_where_its_policy_says(
    opened: Opened, fallback: str, letters: list[str], queue: list[str], waits: bool
) -> None:
    async with opened() as office:
        if waits:
            await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a", "r", fallback=fallback), office.end("r"))
        found = await contents(office.store, ["r"], ["a"])
        assert found["r"] == ("succeeded", [], [])
        assert (found["letters"], found["queue a"]) == (letters, queue)


async def test_an_event_to_a_run_that_ends_in_the_same_batch_reaches_who_waits_for_it(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("s", "1", for_event("s", "1", "a")))
        await office.do(office.send("e", "a", "r", fallback="broadcast"), office.end("r"))
        assert await held(office, "s") == [("e", "1")]
        assert ("s", "1") in office.delivered


async def test_an_event_that_comes_back_goes_to_who_waits_longest_not_to_who_comes_now(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a"))
        await office.do(office.wait("s", "1", for_event("s", "1", "a")))
        await office.do(office.wait("t", "1", for_event("t", "1", "a")), office.drop("r", "1"))
        assert (await held(office, "s"), await held(office, "t")) == ([("e", "1")], [])


async def test_who_comes_as_an_event_comes_back_gets_the_earliest_sent(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e-1", "a"), office.send("e-2", "a"))
        await office.do(office.drop("r", "1"), office.wait("s", "1", for_event("s", "1", "a")))
        assert await held(office, "s") == [("e-1", "1")]
        assert await queued(office) == ["e-2"]
        await office.do(office.drop("s", "1"), office.wait("s", "2", for_event("s", "2", "a")))
        assert await held(office, "s") == [("e-1", "2")]


async def test_who_comes_for_one_of_two_gets_what_was_sent_first_not_what_comes_back(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.send("e-1", "b"))
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e-2", "a"))
        either = [for_event("s", "1", "a", 0), for_event("s", "1", "b", 1)]
        await office.do(office.drop("r", "1"), office.wait("s", "1", *either))
        assert await held(office, "s") == [("e-1", "1")]
        assert await queued(office) == ["e-2"]


@pytest.mark.parametrize(("mode", "gets"), [("after_wait", False), ("after_create", True), ("all", True)])
async def test_who_begins_to_wait_in_the_batch_of_a_retained_event_gets_it_by_its_mode(
    opened: Opened, mode: str, gets: bool
) -> None:
    async with opened() as office:
        wait = office.wait("r", "1", for_event("r", "1", "a", mode=mode))
        await office.do(office.send("e", "a", consumed=False), wait)
        assert await held(office, "r") == ([("e", "1")] if gets else [])
        assert await queued(office) == ["e"]


@pytest.mark.parametrize(("is_sent_first", "gets"), [(True, False), (False, True)])
async def test_a_run_created_in_the_batch_of_a_retained_event_knows_who_was_first(
    opened: Opened, is_sent_first: bool, gets: bool
) -> None:
    async with opened() as office:
        ops = [office.send("e", "a", consumed=False), office.start("new")]
        await office.do(*(ops if is_sent_first else reversed(ops)))
        await office.do(office.wait("new", "1", for_event("new", "1", "a", mode="after_create")))
        assert await held(office, "new") == ([("e", "1")] if gets else [])


async def test_a_run_gets_a_retained_event_once_however_many_of_its_tasks_wait(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "SPREAD_MAX", 2)
    async with opened() as office:
        for run_id, position in (("r", "1"), ("s", "1"), ("r", "2"), ("t", "1"), ("r", "3")):
            await office.do(office.wait(run_id, position, for_event(run_id, position, "a")))
        await office.do(office.send("e", "a", consumed=False))
        await office.idle()
        assert await held(office, "r") == [("e", "1")]
        assert (await held(office, "s"), await held(office, "t")) == ([("e", "1")], [("e", "1")])
        await office.do(office.read("r", "1", "e"), office.wait("r", "4", for_event("r", "4", "a", mode="all")))
        assert await held(office, "r") == []


async def test_a_position_with_the_same_event_twice_does_not_end_the_spreading(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "SPREAD_MAX", 2)
    async with opened() as office:
        for run_id in ("r", "s", "t"):
            twice = [for_event(run_id, "1", "a", option) for option in range(2)]
            await office.do(office.wait(run_id, "1", *twice))
        await office.do(office.send("e", "a", consumed=False))
        await office.idle()
        assert {run_id for run_id, _ in office.delivered} == {"r", "s", "t"}


async def test_a_retained_event_that_expires_on_its_way_stops_there(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broadcasts, "SPREAD_MAX", 1)
    async with opened() as office:
        for run_id in ("r", "s", "t"):
            await office.do(office.wait(run_id, "1", for_event(run_id, "1", "a")))
        spread = broadcasts._Matching._spread

        def slow(self: Any, event: Any, after: int) -> Any:
            office.clock.at = 5_000
            return spread(self, event, after)

        monkeypatch.setattr(broadcasts._Matching, "_spread", slow)
        await office.do(office.send("e", "a", consumed=False, expires_at=4_000))
        await office.idle()
        assert len(office.delivered) == 1


async def test_a_queue_with_a_bound_knows_what_leaves_it_in_the_same_batch(opened: Opened) -> None:
    async with opened() as office:
        (reply,) = await office.do(_bounded(office, "e-1"))
        assert isinstance(reply, Queued)
        replies = await office.do(
            office.wait("r", "1", for_event("r", "1", "a")), _bounded(office, "e-2"), _bounded(office, "e-3")
        )
        assert [type(reply).__name__ for reply in replies[1:]] == ["Queued", "QueueFull"]
        assert await queued(office) == ["e-2"]


def _bounded(office: MailRoom, event_id: str) -> Send:
    op = office.send(event_id, "a")
    return Send(run_id="", at=op.at, event=op.event, pending_max=1)


def continue_anew(office: MailRoom, run_id: str) -> Advance:
    continuation = Continuation(workflow="w", workflow_version="", input="{}", origin="w 1")
    return Advance(run_id=run_id, at=office.now, claim=1, cause="test", continuation=continuation)


async def test_an_event_that_wins_a_wait_in_the_batch_of_the_hop_waits_for_the_next_life(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a", "r"), continue_anew(office, "r"))
        assert await held(office, "r") == [("e", None)]
        await office.do(office.wait("s", "1", for_event("s", "1", "a")), office.send("f", "a"))
        assert await held(office, "s") == [("f", "1")]


async def test_an_event_that_comes_after_the_hop_in_its_batch_wins_no_wait_of_the_life_before(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(continue_anew(office, "r"), office.send("e", "a", "r"))
        assert await held(office, "r") == [("e", None)]


async def test_a_hop_takes_back_what_an_event_had_won_before(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.wait("r", "1", for_event("r", "1", "a")))
        await office.do(office.send("e", "a", "r"))
        assert await held(office, "r") == [("e", "1")]
        await office.do(continue_anew(office, "r"))
        assert await held(office, "r") == [("e", None)]


async def test_a_hop_takes_back_what_an_older_event_has_won_in_its_batch(opened: Opened) -> None:
    async with opened() as office:
        await office.do(office.send("e", "a", "r"))
        await office.do(office.wait("r", "1", for_event("r", "1", "a")), continue_anew(office, "r"))
        assert await held(office, "r") == [("e", None)]


def test_a_run_that_hops_is_not_handed_what_its_life_before_had_won_elsewhere() -> None:
    """Another engine says that the run has been given something. What is stored is from before the continue_anew."""
    run = Run(
        id="r",
        workflow="w",
        status=Status.SUSPENDED,
        version=2,
        revision=2,
        owner="e-1",
        claim=1,
        created_at=1,
        started_at=1,
        updated_at=1,
    )
    ended = Wait(run_id="r", position="1", kind="run", name="child", target="c", due_at=0)
    memory = Memory()
    memory.runs["r"] = run
    continuation = Continuation(workflow="w", workflow_version="", input="{}", origin="w 1")
    ops = [Advance(run_id="r", at=5, claim=1, cause="test", continuation=continuation), Wake(run_id="r", at=5)]
    engine = Engine(id="e-1", epoch=1, alive=True, batch=0, host="h", pid=1, workflows=[("w", "")], started_at=1)
    decided = decide_batch(
        [Item(op, None, False, number) for number, op in enumerate(ops)],
        BatchContext(runs={"r": LoadedRun(run=run, waits=(ended,))}),
        Knowledge(memory=memory, workflows={("function", "w", ""), ("", "w", "")}, engine=engine, number=1, now=5),
    )
    effects = [
        effect for _, decision in decided.decided if isinstance(decision, Decision) for effect in decision.effects
    ]
    assert [type(effect) for effect in effects] == [Begin]
    assert "1" not in decided.builder.mailboxes["r"].won
