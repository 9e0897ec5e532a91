"""Sending: what the sender is told, how often it may send, how much may wait, and what is forgotten."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest

from perdure import Delivered, Limits, NamedEvent, Queued, TargetFinished, TargetNotFound, To
from perdure.errors import DeadlineExceeded, QueueFull, RunFailed, RunFinished, RunNotFound, RunNotWaiting
from perdure.kernel.rules import broadcasts
from perdure.testing import Environment, Fault, YieldPoints
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger
from tests.engine.listeners import HOUR, WORKFLOWS, Brief, Open, Ping, Topic, brief, pinged, sleeper, topic


@pytest.fixture
def opened(source: StoreSource) -> Open:
    return lambda **options: Environment(WORKFLOWS, source, **{"autojump_s": None, **options})


# What the sender is told.


async def test_a_run_that_is_not_there_or_has_ended_gets_nothing(opened: Open) -> None:
    async with opened() as env:
        with pytest.raises(RunNotFound):
            await env.engine.send(Ping(number=1), to="nobody")
        await env.engine.start(pinged(), id="r")
        await env.engine.handle("r").cancel()
        with pytest.raises(RunFinished, match="cancelled"):
            await env.engine.send(Ping(number=1), to="r")
        assert await env.engine.events.pending(to="r") == []
        await env.check()


async def test_who_sends_to_a_run_is_in_its_audit_whatever_the_run_is_doing(opened: Open) -> None:
    async with opened() as env:
        ids = [f"r-{number}" for number in range(10)]
        # Some reach a run that is not there yet or about to wait, in whatever batch, some one that waits.
        for id in ids:
            await env.engine.start(pinged(), id=id)
        await asyncio.gather(
            env.engine.send(Ping(number=0)),
            *(env.engine.send(Ping(number=1), to=id, actor="ann") for id in ids),
            *(env.engine.send(Ping(number=2), to=id) for id in ids),
        )
        await env.quiet()
        for id in ids:
            await env.engine.handle(id).result()
            rows = [(row.became, row.cause) for row in await env.engine.handle(id).audit() if row.actor == "ann"]
            assert rows == [("sent", "sent Ping")]
        await env.restart()
        await env.check()


async def test_who_sent_a_broadcast_is_in_the_audit_of_the_run_that_read_it(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(pinged(), id="waits")
        await env.quiet()
        await env.engine.send(Ping(number=1), actor="ann")
        await env.engine.send(Ping(number=2), actor="bob")
        await env.engine.start(pinged(), id="finds")
        for id, actor in (("waits", "ann"), ("finds", "bob")):
            await env.engine.handle(id).result()
            rows = [
                (row.became, row.cause, row.actor) for row in await env.engine.handle(id).audit() if "Ping" in row.cause
            ]
            assert rows == [("received", "received Ping", actor)]
            seqs = [row.seq for row in await env.engine.handle(id).audit()]
            assert seqs == list(range(1, len(seqs) + 1))
        await env.restart()
        await env.check()


async def test_many_events_are_sent_at_once_and_each_has_its_result(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(pinged(), id="r")
        await env.engine.start(pinged(), id="over")
        await env.engine.handle("over").cancel()
        await env.quiet()
        sent = await env.engine.send_many(
            [To(Ping(number=1), "r"), To(Ping(number=2), "r"), To(Ping(number=3), "over"), To(Ping(number=4), "nobody"),
             NamedEvent("door")]
        )  # fmt: skip
        assert sent[0] == Delivered(("r",))
        assert isinstance(sent[1], Queued)
        assert sent[2:4] == [TargetFinished("over", "cancelled"), TargetNotFound("nobody")]
        assert isinstance(sent[4], Queued)
        assert env.engine.engines.stats.largest_batch == 5
        assert await env.engine.handle("r").result() == [1]


async def test_strict_refuses_to_queue(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(pinged(), id="r")
        await env.quiet()
        with pytest.raises(RunNotWaiting, match="strict"):
            await env.engine.send(Brief(number=1), to="r", strict=True)
        with pytest.raises(RunNotWaiting):
            await env.engine.send(Brief(number=1), strict=True)
        with pytest.raises(RunNotWaiting):
            await env.engine.send(Topic(number=1), strict=True)
        assert await env.engine.events.pending() == []
        assert await env.engine.send(Ping(number=1), strict=True) == Delivered(("r",))


# Once, however often it is sent.


@pytest.mark.parametrize("to", ["r", None])
async def test_a_key_sends_once_also_across_restarts(opened: Open, to: str | None) -> None:
    async with opened() as env:
        await env.engine.start(pinged(2), id="r")
        await env.engine.send(Ping(number=1), to=to, key="k")
        await env.engine.send(Ping(number=1), to=to, key="k")
        await env.restart()
        first = await env.engine.send(Ping(number=1), to=to, key="k")
        assert isinstance(first, Queued)
        await env.engine.send(Ping(number=2), to=to, key="other")
        assert await env.engine.handle("r").result() == [1, 2]


async def test_a_key_that_is_used_twice_at_the_same_time_sends_once(opened: Open) -> None:
    async with opened() as env:
        await asyncio.gather(*[env.engine.send(Ping(number=0), key="k") for _ in range(5)])
        assert [view.value["number"] for view in await env.engine.events.pending()] == [0]


async def test_a_key_whose_event_was_refused_can_be_used_again(opened: Open) -> None:
    async with opened(limits=Limits(events_pending_max=1)) as env:
        await env.engine.send(Ping(number=1))
        replies = await asyncio.gather(
            *[env.engine.send(Ping(number=2), key="k") for _ in range(2)], return_exceptions=True
        )
        assert [type(reply) for reply in replies] == [QueueFull, QueueFull]
        assert await env.engine.run(pinged()) == [1]
        assert isinstance(await env.engine.send(Ping(number=2), key="k"), Queued)
        assert await env.engine.run(pinged()) == [2]


async def test_a_key_of_what_could_not_be_sent_can_be_used_again(opened: Open) -> None:
    async with opened() as env:
        with pytest.raises(RunNotFound):
            await env.engine.send(Ping(number=1), to="r", key="k")
        run = await env.engine.start(pinged(), id="r")
        await env.engine.send(Ping(number=1), to="r", key="k")
        assert await run.result() == [1]


# How much may wait.


@pytest.mark.parametrize("to", ["r", None])
async def test_a_queue_that_is_full_refuses_more_until_something_was_read(opened: Open, to: str | None) -> None:
    async with opened(limits=Limits(events_pending_max=3)) as env:
        await env.engine.start(sleeper(), id="r")
        for number in range(3):
            await env.engine.send(Ping(number=number), to=to)
        with pytest.raises(QueueFull, match="3 events") as full:
            await env.engine.send(Ping(number=9), to=to)
        assert full.value.pending == 3
        await env.engine.send(Brief(number=1), to=to)  # Another name has a queue of its own.
        await env.restart()
        with pytest.raises(QueueFull):
            await env.engine.send(Ping(number=9), to=to)
        if to is None:
            assert await env.engine.run(pinged()) == [0]
            await env.engine.send(Ping(number=9))
        await env.check()


async def test_a_full_queue_takes_what_is_read_at_once(opened: Open) -> None:
    async with opened(limits=Limits(events_pending_max=1)) as env:
        await env.engine.start(pinged(2), id="r")
        await env.quiet()
        replies = await asyncio.gather(
            *[env.engine.send(Ping(number=n), to="r") for n in range(3)], return_exceptions=True
        )
        assert [type(reply).__name__ for reply in replies] == ["Delivered", "Queued", "QueueFull"]
        assert await env.engine.handle("r").result() == [0, 1]


@pytest.mark.parametrize("to", ["r", None])
async def test_expired_events_that_are_not_purged_neither_count_nor_are_delivered(opened: Open, to: str | None) -> None:
    async with opened(limits=Limits(events_pending_max=2)) as env:
        run = await env.engine.start(brief(), id="r")
        for number in range(2):
            await env.engine.send(Brief(number=number), to=to)
        with pytest.raises(QueueFull):
            await env.engine.send(Brief(number=2), to=to)
        await env.advance(1.5 * HOUR)
        await env.engine.send(Brief(number=3), to=to)
        await env.engine.send(Brief(number=4), to=to)
        with pytest.raises(QueueFull):
            await env.engine.send(Brief(number=5), to=to)
        await env.advance(2 * HOUR)
        assert await run.result() == [3]


# What is forgotten.


async def test_what_has_expired_is_purged_and_what_has_not_is_kept(opened: Open) -> None:
    async with opened(limits=Limits(event_retention=timedelta(days=2))) as env:
        await env.engine.start(sleeper(), id="r")
        for to in ("r", None):
            await env.engine.send(Brief(number=1), to=to, key=f"brief {to}")
            await env.engine.send(Ping(number=1), to=to, key=f"ping {to}")
        await env.engine.send(Topic(number=1))
        assert await env.engine.events.purge() == 0
        await env.advance(2 * HOUR)
        assert await env.engine.events.purge() == 2
        assert [view.name for view in await env.engine.events.pending()] == ["Ping", "Topic"]
        assert [view.name for view in await env.engine.events.pending(to="r")] == ["Ping"]
        await env.advance(timedelta(days=2))
        assert await env.engine.events.purge() == 3 + 4
        assert await env.engine.events.pending() == await env.engine.events.pending(to="r") == []
        await env.engine.send(Ping(number=2), key="ping None")
        assert await env.engine.run(pinged()) == [2]
        await env.check()


async def test_purging_is_done_regularly(opened: Open) -> None:
    async with opened(poll_s=60.0) as env:
        await env.engine.send(Brief(number=1))
        await env.advance(HOUR + timedelta(minutes=5))
        assert await env.engine.session.store.events() == []


async def test_events_are_listed_until_they_expire(opened: Open) -> None:
    async with opened() as env:
        await env.engine.send(Brief(number=1))
        await env.engine.send(Ping(number=2))
        assert [view.name for view in await env.engine.events.pending()] == ["Brief", "Ping"]
        await env.advance(2 * HOUR)
        assert [view.name for view in await env.engine.events.pending()] == ["Ping"]


# Runs that nobody has in memory.


async def test_runs_that_are_not_loaded_are_reached_like_any_other(opened: Open) -> None:
    async with opened(limits=Limits(live_runs_max=2)) as env:
        for number in range(8):
            await env.engine.start(pinged(), id=f"r-{number}")
            await env.quiet()
        assert env.engine.runtime.functions.live_runs <= 2
        assert await env.engine.send(Ping(number=0)) == Delivered(("r-0",))
        assert await env.engine.send(Ping(number=1), to="r-1") == Delivered(("r-1",))
        assert await env.engine.handle("r-2").cancel()
        assert await env.engine.handle("r-3").status() == "suspended"
        with pytest.raises(RunNotWaiting):
            await env.engine.send(Brief(number=1), to="r-3", strict=True)
        await env.quiet()
        assert [str(await env.engine.handle(f"r-{n}").status()) for n in range(4)] == [
            "succeeded", "succeeded", "cancelled", "suspended"
        ]  # fmt: skip
        for number in range(3, 8):
            await env.engine.send(Ping(number=number))
        await env.quiet()
        assert [await env.engine.handle(f"r-{n}").result() for n in range(3, 8)] == [[n] for n in range(3, 8)]
        await env.check()


async def test_the_deadline_of_a_run_that_is_not_loaded_ends_it(opened: Open) -> None:
    async with opened(limits=Limits(live_runs_max=1)) as env:
        run = await env.engine.start(pinged(), id="r", deadline=HOUR)
        for number in range(3):
            await env.engine.start(sleeper(), id=f"s-{number}")
            await env.quiet()
        assert env.engine.session.coordinator.loaded("r") is None
        await env.advance(HOUR)
        with pytest.raises(RunFailed) as failed:
            await run.result()
        assert isinstance(failed.value.__cause__, DeadlineExceeded)


async def test_a_timer_of_a_run_that_is_not_loaded_wakes_it(opened: Open) -> None:
    async with opened(limits=Limits(live_runs_max=1)) as env:
        for number in range(4):
            await env.engine.start(sleeper(), id=f"s-{number}")
            await env.quiet()
        await env.advance(timedelta(days=30))
        assert [await env.engine.handle(f"s-{n}").status() for n in range(4)] == ["succeeded"] * 4
        await env.check()


# To a great many.

_MANY = 200


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broadcasts, "SPREAD_MAX", 50)


async def _listening(env: Environment) -> None:
    await asyncio.gather(*[env.engine.start(topic(), id=f"r-{number}") for number in range(_MANY)])
    await env.quiet()


async def _heard(env: Environment) -> int:
    await env.quiet()
    total, cursor = 0, None
    while True:
        page = await env.engine.runs.list(workflow="topic", status="succeeded", limit=1000, cursor=cursor)
        total, cursor = total + len(page.runs), page.cursor
        if cursor is None:
            return total


@pytest.mark.usefixtures("few_at_once")
async def test_a_retained_event_to_a_great_many_goes_out_in_bounded_batches(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment(WORKFLOWS, source, autojump_s=None, watch=ledger.watch) as env:
        await _listening(env)
        before = len(ledger.batches)
        sent = await env.engine.send(Topic(number=7))
        assert isinstance(sent, Delivered)
        assert len(sent.run_ids) == broadcasts.SPREAD_MAX
        assert await _heard(env) == _MANY
        assert sum(bool(batch.spread) for batch in ledger.batches[before:]) == _MANY // broadcasts.SPREAD_MAX - 1
        assert await env.engine.run(topic()) == 7
        await env.check()


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize("point", ["before", "before_effects", "unknown"])
async def test_a_retained_event_reaches_all_although_the_process_dies_on_the_way(point: str) -> None:
    fault = Fault(point, commit=2, when=lambda batch: bool(batch.spread))  # type: ignore[arg-type]
    async with Environment(WORKFLOWS, autojump_s=None, fault=fault) as env:
        await _listening(env)

        async def scenario(env: Environment) -> int:
            await env.engine.send(Topic(number=7), key="once")
            return await _heard(env)

        assert await env.survive(scenario) == _MANY
        assert fault.struck == 1


# Ops that meet in one batch.


async def test_several_events_to_one_run_are_decided_in_one_commit(opened: Open) -> None:
    """The first is delivered, the rest is queued."""
    points = YieldPoints()
    async with opened(probe=points) as env:
        await env.engine.start(pinged(3), id="r")
        await env.quiet()
        commits = env.engine.engines.stats.commits
        with points.hold("send.committed") as held:
            sending = asyncio.ensure_future(env.engine.send_many([To(Ping(number=n), "r") for n in range(3)]))
            await held.reached()
            assert env.engine.engines.stats.commits == commits + 1
            stored = await env.engine.session.store.events(run_id="r")
            assert [event.position for event in stored] == ["1", None, None]
        assert [type(reply).__name__ for reply in await sending] == ["Delivered", "Queued", "Queued"]
        assert await env.engine.handle("r").result() == [0, 1, 2]


async def test_a_run_that_suspends_beside_a_matching_broadcast_is_never_seen_suspended(opened: Open) -> None:
    points = YieldPoints()
    async with opened(probe=points) as env:
        with points.hold("batch.take") as held:
            starting = asyncio.ensure_future(env.engine.start(pinged(), id="r"))
            await held.reached()
        await starting
        await env.quiet()
        assert await env.engine.handle("r").status() == "suspended"
        await env.engine.send(Ping(number=0), to="r")

        with points.hold("start.done") as done:
            starting = asyncio.ensure_future(env.engine.start(pinged(), id="fused"))
            await done.reached()
            assert ("advance.submit", "fused") in points.seen  # It is about to wait.
            sending = asyncio.ensure_future(env.engine.send(Ping(number=1)))
            await points.passed("send.submit")
            commits = env.engine.engines.stats.commits
            with points.hold("send.committed") as held:
                done.release()
                await held.reached()
                assert env.engine.engines.stats.commits == commits + 1
                assert await env.engine.handle("fused").status() == "running"
        assert await sending == Delivered(("fused",))
        assert await env.engine.handle("fused").result() == [1]
        became = [row.became for row in (await env.engine.handle("fused").history()).audit]
        assert became == ["running", "succeeded"]
        await env.check()
