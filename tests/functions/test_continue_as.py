"""Runs that go on as another call: the same run, without its history."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    NamedEvent,
    Retry,
    TimeReached,
    compensate,
    continue_as,
    current_run,
    current_step,
    event,
    first,
    receive,
    resource,
    sleep,
    step,
    task,
    timer,
    workflow,
)
from perdure.errors import InvalidArguments, Misuse, NotInWorkflow, RunExists, RunFailed
from perdure.kernel.events import Event
from perdure.kernel.rules.broadcasts import _Matching
from perdure.testing import Environment, YieldPoints, run_with_crashes
from perdure.testing.environment import StoreSource


@step(retry=Retry.never())
async def note(text: str) -> str:
    return text


@workflow
async def climb(level: int) -> str:
    await note(f"level {level}")
    if level < 5:
        await continue_as(climb(level + 1))
    return f"top at {level}"


@workflow
async def ping(left: int, label: str) -> str:
    await note(label)
    if left > 0:
        await continue_as(pong(left - 1))
    return label


@workflow
async def pong(left: int) -> str:
    await note("pong")
    await continue_as(ping(left, label=f"ping {left}"))


@workflow
async def collect(so_far: list[str]) -> list[str]:
    got = await receive("item")
    so_far = [*so_far, got]
    if len(so_far) < 3:
        await continue_as(collect(so_far))
    return so_far


@workflow
async def wait_or_hop(hops: int) -> str:
    """Its first life waits where its second one does too, for something else."""
    got = await first(event("go"), timer(hours=1))
    if isinstance(got, TimeReached):
        await continue_as(wait_or_hop(hops + 1))
    return f"{got.value} after {hops}"


async def test_the_same_run_goes_on_with_another_input_and_no_history(source: StoreSource) -> None:
    async with Environment([climb], source) as env:
        assert await env.engine.run(climb(0), id="r", tags={"k": "v"}) == "top at 5"
        view = await env.engine.runs.get("r")
        assert view is not None
        assert (view.input, dict(view.tags)) == ({"level": 5}, {"k": "v"})
        history = await env.engine.handle("r").history()
        assert [entry.value for entry in history.journal] == ["level 5"]
        assert [row.became for row in history.audit] == ["continued", "succeeded"]
        assert await env.check() == 1


async def test_a_run_can_become_another_workflow_of_another_arity(source: StoreSource) -> None:
    async with Environment([ping, pong], source) as env:
        assert await env.engine.run(ping(2, "start"), id="r") == "ping 0"
        view = await env.engine.runs.get("r")
        assert view is not None
        assert (view.workflow, view.input) == ("ping", {"left": 0, "label": "ping 0"})


async def test_what_was_sent_to_it_is_kept(source: StoreSource) -> None:
    async with Environment([collect], source) as env:
        run = await env.engine.start(collect([]), id="r")
        for item in ("a", "b", "c"):
            await env.engine.send(NamedEvent("item", item), to="r")
        assert await run.result() == ["a", "b", "c"]
        assert await env.engine.events.pending(to="r") == []


async def test_a_timer_of_the_life_before_does_not_fire_in_the_next(source: StoreSource) -> None:
    async with Environment([wait_or_hop], source, autojump_s=None) as env:
        run = await env.engine.start(wait_or_hop(0), id="r")
        await env.advance(timedelta(hours=1))
        await env.advance(timedelta(minutes=59))
        await env.engine.send(NamedEvent("go", "gone"), to="r")
        assert await run.result() == "gone after 1"


async def test_recovery_after_a_hop_begins_where_the_hop_led(source: StoreSource) -> None:
    async with Environment([wait_or_hop], source, autojump_s=None) as env:
        await env.engine.start(wait_or_hop(0), id="r")
        await env.advance(timedelta(hours=1))
        await env.restart()
        await env.advance(timedelta(hours=1))
        await env.engine.send(NamedEvent("go", "gone"), to="r")
        assert await env.engine.handle("r").result() == "gone after 2"


async def test_a_task_of_the_run_can_do_it_and_the_others_are_closed(source: StoreSource) -> None:
    closed: list[str] = []

    @workflow(name="forked")
    async def forked(again: bool) -> str:
        async def other() -> None:
            try:
                await sleep(timedelta(days=1))
            finally:
                closed.append("other")

        async def hop() -> None:
            await sleep(1)
            await continue_as(forked(False))

        if again:
            await asyncio.gather(other(), hop())
        return f"now at {current_run().now():%H:%M:%S}"

    async with Environment([forked], source) as env:
        assert await env.engine.run(forked(True)) == "now at 00:00:01"
        assert closed == ["other"]


async def test_bad_calls_are_refused_in_the_workflow(source: StoreSource) -> None:
    @workflow(name="wrong")
    async def wrong(how: str) -> str:
        if how == "registered":
            await compensate(note("undone"))
            await continue_as(wrong("plain"))
        if how == "type":
            await continue_as(climb("high"))  # type: ignore[arg-type]
        if how == "call":
            await continue_as("climb")  # type: ignore[arg-type]
        return "plain"

    async with Environment([wrong], source) as env:
        for how, kind in {"registered": Misuse, "type": InvalidArguments, "call": Misuse}.items():
            with pytest.raises(RunFailed) as caught:
                await env.engine.run(wrong(how))
            assert isinstance(caught.value.__cause__, kind)
    with pytest.raises(NotInWorkflow):
        await continue_as(climb(1))


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> tuple[str, list[str]]:
        run = await env.engine.start(ping(2, "start"), id="ping")
        items = await env.engine.start(collect([]), id="collect")
        for item in ("a", "b", "c"):
            await env.engine.send(NamedEvent("item", item), to="collect", key=item)
        return await run.result(), await items.result()

    report = await run_with_crashes(scenario, workflows=[ping, pong, collect], store=fresh)
    assert report.result == ("ping 0", ["a", "b", "c"])
    assert report.trials >= 30


# What wins a wait of the life that the run leaves, in the very commit in which it leaves it.

BEFORE, AFTER = "send.committed", "send.done"  # where the word to hop is held for something to be queued before the hop


@workflow
async def short(wanted: str) -> str:
    await receive("end")
    return wanted


@workflow
async def relay(life: int, kind: str) -> str:
    """One of its tasks waits for the word to go on as another life, another one for something else at position 1.1. In
    its last life it waits for an item at the same position."""

    async def waits() -> str:
        if life > 0 or kind == "item":
            return f"{await receive('item')} in life {life}"
        if kind == "timer":
            await first(event("never"), timer(hours=1))
        elif kind == "task":
            await task(queue="desk")
        else:
            await short("child")
        return f"{kind} in life {life}"

    async def hops() -> None:
        await receive("hop")
        await continue_as(relay(life + 1, kind))

    waiting = asyncio.ensure_future(waits())
    hopping = asyncio.ensure_future(hops())
    await asyncio.wait([waiting, hopping], return_when=asyncio.FIRST_COMPLETED)
    return waiting.result()


@pytest.mark.parametrize("point", [BEFORE, AFTER])
@pytest.mark.parametrize("target", ["r", None], ids=["targeted", "broadcast"])
async def test_an_event_that_wins_in_the_commit_of_the_hop_is_read_in_the_next_life(
    source: StoreSource, point: str, target: str | None
) -> None:
    points = YieldPoints()
    async with Environment([relay, short], source, probe=points) as env:
        run = await env.engine.start(relay(0, "item"), id="r")
        await env.quiet()
        with points.hold(point) as held:
            hopping = asyncio.create_task(env.engine.send(NamedEvent("hop", None), to="r"))
            await held.reached()
            sending = asyncio.create_task(env.engine.send(NamedEvent("item", "a"), to=target))
            await points.passed("send.submit")
        await hopping
        await sending
        assert await run.result() == "a in life 1"
        await env.quiet()
        assert await env.check() == 1


async def test_two_events_sent_back_to_back_of_which_the_first_makes_the_run_hop(source: StoreSource) -> None:
    async with Environment([relay, short], source) as env:
        run = await env.engine.start(relay(0, "item"), id="r")
        await env.quiet()
        await env.engine.send(NamedEvent("hop", None), to="r")
        await env.engine.send(NamedEvent("item", "a"), to="r")
        assert await run.result() == "a in life 1"
        assert await env.check() == 1


@pytest.mark.parametrize("point", [BEFORE, AFTER])
@pytest.mark.parametrize("kind", ["task", "child", "timer"])
async def test_nothing_that_the_life_before_waited_for_is_handed_to_the_next(
    source: StoreSource, point: str, kind: str
) -> None:
    points = YieldPoints()
    async with Environment([relay, short], source, probe=points, autojump_s=None) as env:
        run = await env.engine.start(relay(0, kind), id="r")
        await env.quiet()
        children = [view.id for view in (await env.engine.runs.list(parent="r")).runs]
        with points.hold(point) as held:
            hopping = asyncio.create_task(env.engine.send(NamedEvent("hop", None), to="r"))
            await held.reached()
            other: asyncio.Task[Any]
            if kind == "task":
                (one,) = await env.engine.tasks.list()
                other = asyncio.create_task(env.engine.tasks.answer(one.id, "late"))
            elif kind == "child":
                other = asyncio.create_task(env.engine.send(NamedEvent("end", None), to=children[0]))
            else:
                other = asyncio.create_task(env.advance(timedelta(hours=1)))
            await asyncio.sleep(0)
        await hopping
        await asyncio.wait([other])
        await env.quiet()
        await env.check()
        await env.engine.send(NamedEvent("item", "b"), to="r")
        assert await run.result() == "b in life 1"
        await env.check()


async def test_a_crash_at_any_commit_loses_no_event_of_a_hop(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> str:
        run = await env.engine.start(relay(0, "item"), id="r")
        if (view := await env.engine.runs.get("r")) is not None and view.status != "succeeded":
            await env.engine.send(NamedEvent("hop", None), to="r", key="hop")
            await env.engine.send(NamedEvent("item", "a"), to="r", key="item")
        return (await run.result())[:1]

    report = await run_with_crashes(scenario, workflows=[relay, short], store=fresh)
    assert report.result == "a"


# Idempotency keys.


@step(retry=Retry(attempts=3, initial=timedelta(milliseconds=1)))
async def charge(month: int) -> str:
    """Fails once in each life, so that it has several attempts."""
    me = current_step()
    resource(Ledger).keys.append((month, me.attempt, me.idempotency_key))
    if me.attempt == 1:
        raise ConnectionError("try again")
    return me.idempotency_key


class Ledger:
    def __init__(self) -> None:
        self.keys: list[tuple[int, int, str]] = []


@workflow
async def subscription(month: int) -> str:
    key = await charge(month)
    await sleep(timedelta(days=30))
    if month < 3:
        await continue_as(subscription(month + 1))
    return key


async def test_each_life_has_keys_of_its_own_which_all_attempts_share(source: StoreSource) -> None:
    ledger = Ledger()
    async with Environment([subscription], source, resources={Ledger: lambda: ledger}) as env:
        run = await env.engine.start(subscription(1), id="r")
        assert await run.result() == "r:1@2"
        assert ledger.keys == [
            (1, 1, "r:1"), (1, 2, "r:1"), (2, 1, "r:1@1"), (2, 2, "r:1@1"), (3, 1, "r:1@2"), (3, 2, "r:1@2"),
        ]  # fmt: skip


async def test_a_crash_anywhere_changes_no_key(fresh: Callable[[], StoreSource]) -> None:
    ledger = Ledger()

    async def scenario(env: Environment) -> str:
        return await (await env.engine.start(subscription(1), id="r")).result()

    report = await run_with_crashes(scenario, workflows=[subscription], store=fresh, resources={Ledger: lambda: ledger})
    assert report.result == "r:1@2"
    assert {(month, key) for month, _, key in ledger.keys} == {(1, "r:1"), (2, "r:1@1"), (3, "r:1@2")}


@workflow
async def draws(life: int, drawn: list[str]) -> list[str]:
    me = current_run()
    number = await note(f"{me.uuid4()} {me.random.random()}")
    await sleep(1)
    again = f"{me.uuid4()} {me.random.random()}"
    if life < 2:
        await continue_as(draws(life + 1, [*drawn, number, again]))
    return [*drawn, number, again]


async def test_each_life_draws_random_values_of_its_own_and_replays_them(fresh: Callable[[], StoreSource]) -> None:
    async def scenario(env: Environment) -> list[str]:
        drawn: list[str] = await (await env.engine.start(draws(0, []), id="r")).result()
        return drawn

    report = await run_with_crashes(scenario, workflows=[draws], store=fresh)
    assert len(set(report.result)) == 6  # Also after a crash anywhere: the report has one result for all of them.


async def test_a_run_that_is_retried_in_a_later_life_has_the_keys_of_that_life(source: StoreSource) -> None:
    keys: list[str] = []
    broken = True

    @step(name="pay", retry=Retry.never())
    async def pay() -> None:
        keys.append(current_step().idempotency_key)
        if broken:
            raise ConnectionError("no answer: perhaps it was paid")

    @workflow(name="pays")
    async def pays(life: int) -> None:
        if life == 0:
            await continue_as(pays(1))
        await pay()

    async with Environment([pays], source) as env:
        run = await env.engine.start(pays(0), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        broken = False
        await (await env.engine.handle("r").retry()).result()
        assert keys == ["r:1@1", "r:1@1"]


async def test_a_start_with_the_id_of_a_run_that_has_continued_often_is_the_same_start(source: StoreSource) -> None:
    async with Environment([climb], source) as env:
        assert await env.engine.run(climb(0), id="r") == "top at 5"
        assert await env.engine.run(climb(0), id="r") == "top at 5"
        with pytest.raises(RunExists):
            await env.engine.start(climb(5), id="r")


@workflow
async def reads_one_a_life(left: int, total: int) -> int:
    total += await receive("number")
    if left > 1:
        await continue_as(reads_one_a_life(left - 1, total))
    return total


async def test_a_life_does_not_cost_more_with_a_longer_queue(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits for the run stays as it is when the run goes on as another call."""
    freed: list[Event] = []
    free = _Matching.free

    def counted(self: _Matching) -> Any:
        yield from free(self)
        freed.extend(self.out.freed)

    async with Environment([reads_one_a_life], source) as env:
        run = await env.engine.start(reads_one_a_life(30, 0), id="r")
        await env.engine.handle("r").pause()
        for number in range(30):
            await env.engine.send(NamedEvent("number", number), to="r")
        monkeypatch.setattr(_Matching, "free", counted)
        await env.engine.handle("r").resume()
        assert await run.result() == sum(range(30))
        await env.check()
    assert len(freed) <= 30


@workflow
async def waits_for_the_end(life: int) -> str:
    return f"{await receive('end')} in life {life}"


@workflow
async def leaves_a_sleeper() -> str:
    """A task sleeps for a day at position 1.1, while another one goes on as the next life."""

    async def hop() -> None:
        await sleep(1)
        await note("hop")
        await continue_as(waits_for_the_end(1))

    await asyncio.gather(sleep(timedelta(days=1)), hop())
    return "never"


@pytest.mark.parametrize("workflows", [[leaves_a_sleeper, waits_for_the_end], [leaves_a_sleeper]], ids=["here", "away"])
async def test_an_engine_that_comes_after_a_hop_finds_no_wait_of_the_life_before(
    source: StoreSource, workflows: list[Any]
) -> None:
    """An engine without the next life's code releases the run, in a commit that concerns no event."""
    async with Environment(workflows, source, autojump_s=None) as env:
        await env.engine.start(leaves_a_sleeper(), id="r")
        await env.advance(1)
        await env.quiet()
        clock = env.clock
    async with Environment([waits_for_the_end], source, clock=clock, autojump_s=None) as env:
        await env.engine.send(NamedEvent("end", "over"), to="r")
        assert await env.engine.handle("r").result() == "over in life 1"
        assert await env.check() == 1


# Deadlines.

MINUTE = timedelta(minutes=1)


@workflow
async def hops_on(life: int) -> None:
    await sleep(10 * MINUTE)
    await continue_as(hops_on(life + 1))


async def deadline_of(env: Environment) -> timedelta:
    """How long the run still has."""
    view = await env.engine.runs.get("r")
    assert view is not None
    assert view.deadline is not None
    return view.deadline - env.clock.time


async def test_a_deadline_bounds_a_run_over_all_its_lives(source: StoreSource) -> None:
    async with Environment([hops_on], source, autojump_s=None) as env:
        run = await env.engine.start(hops_on(0), id="r", deadline=35 * MINUTE)
        for _ in range(3):
            await env.advance(10 * MINUTE)
        assert await deadline_of(env) == 5 * MINUTE
        await env.advance(5 * MINUTE)
        with pytest.raises(RunFailed, match="DeadlineExceeded"):
            await run.result()
        await run.retry()
        assert await deadline_of(env) == 35 * MINUTE


@pytest.mark.parametrize(("hops", "length"), [(0, 5), (1, 15)])
async def test_after_a_hop_the_length_of_a_deadline_counts_from_the_start_of_the_run(
    hops: int, length: int, source: StoreSource
) -> None:
    """The audit trail says when a deadline was set, and each life begins with a new one."""
    async with Environment([hops_on], source, autojump_s=None) as env:
        run = await env.engine.start(hops_on(0), id="r", deadline=timedelta(days=1))
        await env.advance(9 * MINUTE if hops else 10 * MINUTE)
        await env.engine.handle("r").update(deadline=(6 if hops else 5) * MINUTE)
        await env.advance(6 * MINUTE)
        with pytest.raises(RunFailed, match="DeadlineExceeded"):
            await run.result()
        await run.retry()
        assert await deadline_of(env) == length * MINUTE
