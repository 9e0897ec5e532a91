"""Children: awaited, started, detached; how they end with their parents, and how their parents hear of their ends."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    Event,
    Limits,
    Retry,
    Workflow,
    current_run,
    first,
    receive,
    resource,
    run_of,
    sleep,
    start,
    step,
    timer,
    workflow,
)
from perdure.errors import ChildFailed, InvalidArguments, Misuse, RunCancelled, RunExists, RunFailed, RunNotRetryable
from perdure.testing import Environment
from perdure.testing.environment import StoreSource

HOUR = timedelta(hours=1)


class Go(Event):
    value: str = ""


class Mended:
    def __init__(self) -> None:
        self.yes = False


@step(retry=Retry.never())
async def fragile(text: str) -> str:
    if not resource(Mended).yes:
        raise ValueError(f"{text} is broken")
    return f"{text} is mended"


@workflow
async def child(value: str) -> str:
    return f"{value}!"


@workflow
async def failing(value: str) -> str:
    return await fragile(value)


@workflow
async def waiting(value: str) -> str:
    return value + (await receive(Go)).value


@workflow
async def awaits(value: str) -> str:
    return await child(value)


@workflow
async def awaits_waiting() -> str:
    return await waiting("x")


@workflow
async def awaits_failing() -> str:
    try:
        return await failing("it")
    except ChildFailed as failed:
        return f"{failed.status}: {failed.__cause__!r}"


@workflow
async def fails_with_its_child() -> str:
    return await failing("it")


@workflow
async def gathers(count: int) -> list[str]:
    return list(await asyncio.gather(*[child(str(number)) for number in range(count)]))


@workflow
async def gathers_with_a_failure() -> list[str]:
    got = await asyncio.gather(child("a"), failing("b"), return_exceptions=True)
    return [one if isinstance(one, str) else type(one).__name__ for one in got]


@workflow
async def starts(detached: bool, id: str | None) -> str:
    handle = await start(waiting("x"), detached=detached, id=id, tags={"own": "tag"}, deadline=10 * HOUR)
    return handle.id


@workflow
async def starts_and_sleeps(detached: bool) -> str:
    handle = await start(waiting("x"), detached=detached)
    await sleep(timedelta(days=1))
    return handle.id


@workflow
async def starts_same(id: str, value: str) -> str:
    try:
        handle = await start(waiting(value), id=id)
        again = await start(waiting(value), id=id)
    except RunExists as exists:
        return f"exists: {exists.run_id}"
    assert handle.id == again.id
    return await handle.result()


@workflow
async def grandparent() -> str:
    return await parent_of_waiting()


@workflow
async def parent_of_waiting() -> str:
    await start(waiting("started"), id="started")
    await start(waiting("detached"), id="detached", detached=True)
    return await waiting("awaited")


@workflow
async def impatient() -> str:
    try:
        async with asyncio.timeout(60):
            return await waiting("x")
    except TimeoutError:
        return (await receive(Go)).value


@workflow
async def ends_before_its_child() -> str:
    task = asyncio.ensure_future(waiting("x"))
    await asyncio.sleep(1)
    del task
    return "done"


@workflow
async def waits_for(*ids: str) -> list[Any]:
    ended = await first(*[run_of(one) for one in ids], timer(days=10))
    return [getattr(ended, "run_id", "late"), str(getattr(ended, "status", "")), getattr(ended, "value", None)]


@workflow
async def joins(id: str) -> Any:
    return await run_of(id).result()


@workflow
async def raises_for(id: str) -> Any:
    try:
        return await run_of(id).result()
    except ChildFailed as failed:
        return f"{failed.run_id} {failed.status}"


@workflow
async def retried_child() -> str:
    await receive(Go)
    result = await fragile("it")
    await receive(Go)
    return result


@workflow
async def family_tree(depth: int) -> list[str]:
    return [current_run().id, *(await family_tree(depth - 1) if depth else [])]


WORKFLOWS: list[Workflow[Any, Any]] = [
    child, failing, waiting, awaits, awaits_failing, fails_with_its_child, gathers, gathers_with_a_failure, starts,
    starts_and_sleeps, starts_same, grandparent, parent_of_waiting, impatient, ends_before_its_child, waits_for,
    raises_for, retried_child, awaits_waiting, joins, family_tree,
]  # fmt: skip

Open = Callable[..., Environment]


@pytest.fixture
def mended() -> Mended:
    return Mended()


@pytest.fixture
def opened(source: StoreSource, mended: Mended) -> Open:
    defaults: dict[str, Any] = {"autojump_s": None, "resources": {Mended: lambda: mended}}
    return lambda **options: Environment(WORKFLOWS, source, **defaults | options)


async def statuses(env: Environment, workflow: str) -> list[str]:
    return sorted(str(run.status) for run in (await env.engine.runs.list(workflow=workflow)).runs)


async def the_only(env: Environment, workflow: str) -> Any:
    (run,) = (await env.engine.runs.list(workflow=workflow)).runs
    view = await env.engine.runs.get(run.id)
    assert view is not None
    return view


# Awaited.


async def test_a_child_is_awaited_as_any_call(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(awaits("x"), id="r")
        assert await run.result() == "x!"
        view = await the_only(env, "child")
        assert view.parent_id == "r"
        assert await env.check() == 2


async def test_an_awaited_child_that_fails_raises_with_its_cause(opened: Open) -> None:
    async with opened() as env:
        assert await env.engine.run(awaits_failing()) == "failed: ValueError('it is broken')"
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(fails_with_its_child())
        assert isinstance(failed.value.__cause__, ChildFailed)
        assert isinstance(failed.value.__cause__.__cause__, ValueError)


async def test_many_children_are_gathered(opened: Open) -> None:
    async with opened() as env:
        assert await env.engine.run(gathers(30)) == [f"{number}!" for number in range(30)]
        assert await env.engine.run(gathers_with_a_failure()) == ["a!", "ChildFailed"]
        await env.check()


async def test_children_have_children(opened: Open) -> None:
    async with opened(limits=Limits(live_runs_max=2)) as env:
        assert len(set(await env.engine.run(family_tree(6)))) == 7
        await env.check()


async def test_a_parent_and_its_child_go_on_after_a_crash(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(parent_of_waiting(), id="r")
        await env.quiet()
        await env.restart()
        for run in (await env.engine.runs.list(workflow="waiting")).runs:
            await env.engine.send(Go(value="!"), to=run.id)
        await env.restart()
        assert await env.engine.handle("r").result() == "awaited!"
        assert await statuses(env, "waiting") == ["succeeded"] * 3
        await env.check()


# Started.


async def test_a_started_child_has_its_id_at_once_and_outlives_its_parent(opened: Open) -> None:
    async with opened() as env:
        child_id = await env.engine.run(starts(False, None))
        await env.engine.send(Go(value="y"), to=child_id)
        assert await env.engine.handle(child_id).result() == "xy"


@pytest.mark.parametrize("id", [None, "mine"])
@pytest.mark.parametrize("detached", [False, True])
async def test_a_child_inherits_tags_and_unless_detached_the_deadline(
    opened: Open, id: str | None, detached: bool
) -> None:
    async with opened() as env:
        run = await env.engine.start(
            starts(detached, id), tags={"tenant": "acme", "own": "parent's"}, deadline=timedelta(hours=2)
        )
        child_id = await run.result()
        view = await env.engine.runs.get(child_id)
        assert view is not None
        assert view.tags == {"tenant": "acme", "own": "tag"}
        assert view.deadline is not None
        assert view.deadline - env.clock.time == (10 * HOUR if detached else 2 * HOUR)
        assert child_id == (id or child_id)


async def test_a_child_with_an_id_is_started_once(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(starts_same("c", "v"), id="r")
        await env.quiet()
        await env.restart()
        await env.engine.send(Go(value="!"), to="c")
        assert await env.engine.handle(run.id).result() == "v!"
        assert await env.engine.run(starts_same("c", "v")) == "v!"
        assert await env.engine.run(starts_same("c", "w")) == "exists: c"
        assert await env.check() == 4


async def test_a_run_that_starts_a_child_with_an_id_is_never_asleep_meanwhile(opened: Open) -> None:
    """Nothing that is stored would wake it."""
    async with opened() as env:
        await env.engine.run(starts(False, "c"), id="r")
        became = [row.became for row in (await env.engine.handle("r").history()).audit]
        assert became == ["running", "succeeded"]


# Ending together.


@pytest.mark.parametrize("live_runs_max", [20_000, 1])
async def test_cancel_reaches_children_and_grandchildren_but_not_detached_ones(
    opened: Open, live_runs_max: int
) -> None:
    async with opened(limits=Limits(live_runs_max=live_runs_max)) as env:
        run = await env.engine.start(grandparent(), id="r")
        await env.quiet()
        assert await env.engine.handle("r").cancel(reason="enough")
        await env.quiet()
        assert await run.status() == "cancelled"
        assert await statuses(env, "parent_of_waiting") == ["cancelled"]
        assert await statuses(env, "waiting") == ["cancelled", "cancelled", "suspended"]
        view = await env.engine.runs.get("detached")
        assert view is not None
        assert view.status == "suspended"
        await env.check()


async def test_who_waits_for_a_cancelled_child_is_told_so(opened: Open) -> None:
    async with opened() as env:
        parent = await env.engine.start(awaits_waiting(), id="r")
        await env.quiet()
        waits = await the_only(env, "waiting")
        onlooker = await env.engine.start(joins(waits.id), id="onlooker")
        await env.quiet()
        await env.engine.handle(waits.id).cancel(reason="enough")
        for one in (parent, onlooker):
            with pytest.raises(RunFailed) as failed:
                await one.result()
            child_failed = failed.value.__cause__
            assert isinstance(child_failed, ChildFailed)
            cancelled = child_failed.__cause__
            assert type(cancelled) is RunCancelled
            assert (cancelled.run_id, cancelled.reason) == (waits.id, "enough")


async def test_cancel_reaches_children_after_a_restart(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(grandparent(), id="r")
        await env.quiet()
        await env.restart()
        assert await env.engine.handle("r").cancel()
        assert await statuses(env, "waiting") == ["cancelled", "cancelled", "suspended"]


async def test_a_deadline_ends_the_whole_family(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(grandparent(), id="r", deadline=HOUR)
        await env.advance(HOUR)
        assert await run.status() == "failed"
        assert "suspended" not in [*await statuses(env, "parent_of_waiting")]
        view = await env.engine.runs.get("detached")
        assert view is not None
        assert view.status == "suspended"
        await env.check()


async def test_an_awaited_child_that_is_withdrawn_is_cancelled(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(impatient(), id="r")
        await env.advance(60)
        assert await statuses(env, "waiting") == ["cancelled"]
        await env.engine.send(Go(value="alone"), to="r")
        assert await run.result() == "alone"
        await env.check()


async def test_a_child_that_nobody_awaits_to_its_end_is_cancelled_with_its_task(opened: Open) -> None:
    async with opened() as env:
        run = await env.engine.start(ends_before_its_child())
        await env.advance(2)
        assert await run.result() == "done"
        assert await statuses(env, "waiting") == ["cancelled"]
        await env.check()


# Waiting for any run.


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("restarts", [False, True])
async def test_the_end_of_any_run_can_be_waited_for(opened: Open, when: str, restarts: bool) -> None:
    async with opened() as env:
        await env.engine.start(waiting("x"), id="target")
        if when == "before":
            await env.engine.start(waits_for("target"), id="r")
            await env.quiet()
        if restarts:
            await env.restart()
        await env.engine.send(Go(value="y"), to="target")
        await env.quiet()
        if when == "after":
            await env.engine.start(waits_for("target"), id="r")
        assert await env.engine.handle("r").result() == ["target", "succeeded", "xy"]
        await env.check()


async def test_a_run_that_does_not_exist_has_ended(opened: Open) -> None:
    async with opened() as env:
        assert await env.engine.run(waits_for("nobody")) == ["nobody", "missing", None]
        assert await env.engine.run(raises_for("nobody")) == "nobody missing"


@pytest.mark.parametrize("restarts", [False, True])
async def test_of_several_runs_the_one_that_ends_first_wins(opened: Open, restarts: bool) -> None:
    """Also if nobody had the waiting run in memory at that time."""
    async with opened() as env:
        for name in ("a", "b", "c"):
            await env.engine.start(waiting(name), id=name)
        await env.engine.start(waits_for("a", "b", "c"), id="r")
        await env.quiet()
        if restarts:
            await env.engine.handle("r").pause()
        await env.engine.send(Go(value="!"), to="b")
        await env.quiet()
        if restarts:
            await env.restart()
            await env.engine.handle("r").resume()
            await env.quiet()
        assert await env.engine.handle("r").result() == ["b", "succeeded", "b!"]
        await env.check()


@workflow(name="children.waits_for_itself")
async def waits_for_itself(starts: bool) -> str:
    me = current_run().id
    await (await start(waits_for_itself(starts), id=me) if starts else run_of(me)).result()
    return "never"


@pytest.mark.parametrize("starts", [False, True])
async def test_a_run_that_waits_for_its_own_end_is_told_so(source: StoreSource, starts: bool) -> None:
    async with Environment([waits_for_itself], source) as env:
        with pytest.raises(RunFailed, match="run 'r' cannot wait for its own end") as failed:
            await (await env.engine.start(waits_for_itself(starts), id="r")).result()
        assert isinstance(failed.value.__cause__, Misuse)


@workflow(name="children.bounded")
async def bounded(days: float) -> str:
    try:
        await start(children_waits(), deadline="5" if days == 0 else timedelta(days=days))  # type: ignore[arg-type]
    except InvalidArguments as error:
        return str(error)
    return "started"


@workflow(name="children.waits")
async def children_waits() -> None:
    await receive("never")


@pytest.mark.parametrize(
    ("days", "said"),
    [
        (0, "deadline is a duration (a timedelta or a number of seconds, finite and not negative) or None, not '5'"),
        (timedelta.max.days, "beyond the year 9999"),
        (-9e8, "finite and not negative"),
    ],
)
async def test_a_deadline_of_a_child_that_is_none_is_refused_where_it_is_given(
    source: StoreSource, days: float, said: str
) -> None:
    async with Environment([bounded, children_waits], source) as env:
        assert said in await (await env.engine.start(bounded(days), id="r")).result()
        await env.settle()
        assert {run.status for run in (await env.engine.runs.list(workflow="children.waits")).runs} <= {"failed"}
        await env.check()


@workflow(name="children.nested")
async def nested(depth: int) -> str:
    if depth:
        return await nested(depth - 1)
    raise ValueError("at the bottom")


async def test_a_failure_from_far_below_is_told_without_all_that_is_in_between(source: StoreSource) -> None:
    """Each level says how the one below it ended. What is stored of that does not grow with the depth."""
    sizes: dict[int, int] = {}
    async with Environment([nested], source) as env:
        for depth in (60, 240):
            with pytest.raises(RunFailed, match="at the bottom") as failed:
                await (await env.engine.start(nested(depth), id=f"r-{depth}")).result()
            assert isinstance(failed.value.__cause__, ChildFailed)
            assert len(str(failed.value)) < 3_000
            view = await env.engine.runs.get(f"r-{depth}")
            assert view is not None
            sizes[depth] = len(str(view.failure))
    assert sizes[240] < 1.1 * sizes[60]


async def test_cancelled_and_failed_runs_have_ended_too(opened: Open) -> None:
    async with opened() as env:
        await env.engine.start(waiting("x"), id="a")
        await env.engine.start(raises_for("a"), id="r")
        await env.quiet()
        await env.engine.handle("a").cancel()
        assert await env.engine.handle("r").result() == "a cancelled"
        with pytest.raises(RunFailed):
            await env.engine.run(failing("x"), id="f")
        assert await env.engine.run(raises_for("f")) == "f failed"


# Retry.


async def test_a_child_whose_failure_was_consumed_cannot_be_retried(opened: Open, mended: Mended) -> None:
    async with opened() as env:
        assert (await env.engine.run(awaits_failing())).startswith("failed")
        view = await the_only(env, "failing")
        mended.yes = True
        with pytest.raises(RunNotRetryable, match="retry the parent"):
            await env.engine.handle(view.id).retry()


async def test_a_parent_that_failed_with_its_child_can_be_retried_and_has_a_new_one(
    opened: Open, mended: Mended
) -> None:
    async with opened() as env:
        with pytest.raises(RunFailed):
            await env.engine.run(fails_with_its_child(), id="r")
        mended.yes = True
        assert await (await env.engine.handle("r").retry()).result() == "it is mended"
        assert await statuses(env, "failing") == ["failed", "succeeded"]
        await env.check()


async def test_a_waiting_run_that_was_set_aside_does_not_mistake_a_retried_run_for_one_that_ended(
    opened: Open, mended: Mended
) -> None:
    async with opened() as env:
        await env.engine.start(retried_child(), id="f")
        await env.engine.start(raises_for("f"), id="r")
        await env.quiet()
        await env.engine.handle("r").pause()
        await env.engine.send(Go(), to="f")
        await env.quiet()
        mended.yes = True
        await env.engine.handle("f").retry()
        await env.quiet()
        await env.engine.handle("r").resume()
        await env.quiet()
        assert await env.engine.handle("r").status() == "suspended"
        await env.engine.send(Go(), to="f")
        assert await env.engine.handle("r").result() == "it is mended"
        await env.check()
