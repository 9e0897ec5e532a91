"""Operations whose steps start functions and graphs: they are children like any other, and are rolled back with the
rest, also long after they have succeeded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Retry, compensate, sleep, step, workflow
from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import RunFailed, RunNotRetryable, ScopeFailed
from perdure.ports import Store
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import Diary, agree

ROOT, CHILD = topic("root"), topic("child")
DIARY = Diary()
Message = dict[str, Any]


@step(retry=Retry.never())
async def note(what: str) -> str:
    DIARY.append(what)
    if what.startswith("cannot"):
        raise OSError(what)
    return what


@workflow
async def charge(amount: int) -> int:
    await note(f"charge {amount}")
    await compensate(note(f"refund {amount}"))
    await note(f"receipt {amount}")
    await compensate(note(f"void {amount}"))
    return amount * 2


@workflow
async def charge_in_vain(amount: int) -> int:
    await note(f"charge {amount}")
    await compensate(note(f"refund {amount}"))
    raise ValueError("no money")


@workflow
async def charge_for_good(amount: int) -> int:
    await note(f"charge {amount}")
    await compensate(note(f"cannot refund {amount}"))
    return amount


@workflow
async def plain(amount: int) -> int:
    await note(f"plain {amount}")
    return amount


@workflow
async def charge_slowly(amount: int) -> int:
    await note(f"charge {amount}")
    await compensate(note(f"refund {amount}"))
    await sleep(timedelta(days=1))
    return amount


WORKFLOWS = [charge, charge_in_vain, charge_for_good, plain, charge_slowly]


def calling(*calls: Any, last: str = "", emits: Any = None, handler: Any = None) -> Operation[Message]:
    """An operation whose first step makes calls, and whose second one notes what they returned."""
    DIARY.clear()
    made = Operation("root", ROOT)

    async def first(scope: Scope, message: Message) -> None:
        DIARY.append("first")
        for call in calls:
            await scope.start(call())
        if emits is not None:
            await scope.emit(emits, {})

    begun = made.step(name="first")(first)

    @begun.rollback
    async def undo_first(scope: Scope, message: Message, cause: Failure) -> None:
        DIARY.append("undo first")

    if handler is not None:
        begun.on_child_failure(handler)

    async def second(scope: Scope, message: Message) -> None:
        DIARY.append(f"second {scope.returned('charge', int)}")
        if last:
            raise ValueError(last)

    ended = made.step(name="second")(second)

    @ended.rollback
    async def undo_second(scope: Scope, message: Message, cause: Failure) -> None:
        DIARY.append("undo second")

    return made


async def finished(env: Environment, *operations: Operation[Any], id: str = "m") -> str:
    """How a hierarchy ended: the types of failures from the root down."""
    root = await env.engine.emit(ROOT, {}, id=id)
    try:
        await root.finished()
    except ScopeFailed as failed:
        failure, types = failed.failure, []
        while True:
            types.append(failure.type.rpartition(":")[2])
            if not failure.causes:
                return " < ".join(types)
            failure = failure.causes[0]
    finally:
        await agree(env, *operations)
    return "done"


async def test_the_next_step_waits_for_a_call_and_reads_its_result(source: StoreSource) -> None:
    root = calling(lambda: charge(1), lambda: charge(2))
    async with Environment([root, *WORKFLOWS], source) as env:
        assert await finished(env, root) == "done"
        assert sorted(DIARY[1:-1]) == ["charge 1", "charge 2", "receipt 1", "receipt 2"]
        assert (DIARY[0], DIARY[-1]) == ("first", "second [2, 4]")


async def test_a_call_that_has_succeeded_is_undone_with_the_rest_newest_first(source: StoreSource) -> None:
    root = calling(lambda: charge(1), last="too late")
    async with Environment([root, *WORKFLOWS], source) as env:
        assert await finished(env, root) == "ValueError"
        assert DIARY == [
            "first", "charge 1", "receipt 1", "second [2]", "void 1", "refund 1", "undo first"
        ]  # fmt: skip
        (run,) = (await env.engine.runs.list(workflow="charge")).runs
        assert run.status == "rolled_back"
        with pytest.raises(RunFailed, match="ParentSaidSo: the scope that emitted"):
            await env.engine.handle(run.id).result()


async def test_a_call_without_compensations_is_rolled_back_too(source: StoreSource) -> None:
    root = calling(lambda: plain(1), last="too late")
    async with Environment([root, *WORKFLOWS], source) as env:
        assert await finished(env, root) == "ValueError"
        assert DIARY == ["first", "plain 1", "second []", "undo first"]
        (run,) = (await env.engine.runs.list(workflow="plain")).runs
        assert run.status == "rolled_back"


async def test_the_failure_of_a_call_is_that_of_a_child(source: StoreSource) -> None:
    root = calling(lambda: charge_in_vain(1))
    async with Environment([root, *WORKFLOWS], source) as env:
        assert await finished(env, root) == "ChildRolledBack < ValueError"
        assert DIARY == ["first", "charge 1", "refund 1", "undo first"]


async def test_a_failure_that_an_operation_knows_cannot_be_retried(source: StoreSource) -> None:
    @workflow(name="fails")
    async def fails() -> None:
        raise ValueError("no money")

    root = calling(fails)
    async with Environment([root, fails], source) as env:
        assert await finished(env, root) == "ChildRolledBack < ValueError"
        (run,) = (await env.engine.runs.list(workflow="fails")).runs
        with pytest.raises(RunNotRetryable):
            await env.engine.handle(run.id).retry()


async def test_a_handler_of_child_failures_may_call_another_workflow(source: StoreSource) -> None:
    async def instead(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
        DIARY.append("instead")
        await scope.start(charge(2))

    root = calling(lambda: charge_in_vain(1), handler=instead, last="too late")
    async with Environment([root, *WORKFLOWS], source) as env:
        assert await finished(env, root) == "ValueError"
        assert DIARY == [
            "first", "charge 1", "refund 1", "instead", "charge 2", "receipt 2", "second [4]",
            "void 2", "refund 2", "undo first",
        ]  # fmt: skip


async def test_what_a_call_cannot_undo_is_left_to_its_caller(source: StoreSource) -> None:
    root = calling(lambda: charge_for_good(1), last="too late")
    async with Environment([root, *WORKFLOWS], source) as env:
        assert "RollbackFailed" in await finished(env, root)
        assert DIARY[-1] == "cannot refund 1"
        (run,) = (await env.engine.runs.list(workflow="root")).runs
        assert run.status == "rollback_failed"


async def test_a_hierarchy_that_is_undone_takes_its_calls_with_it(source: StoreSource) -> None:
    root = calling(lambda: charge(1))
    async with Environment([root, *WORKFLOWS], source) as env:
        assert await finished(env, root) == "done"
        del DIARY[:]
        emitted = await env.engine.emit(ROOT, {}, id="m")
        assert await emitted.roll_back("no longer wanted")
        await agree(env, root)
        assert DIARY == ["undo second", "void 1", "refund 1", "undo first"]
        tree = await env.engine.handle(emitted.id).tree()
        (operation,) = tree.children
        assert [(child.run.workflow, child.run.status) for child in operation.children] == [("charge", "rolled_back")]


async def test_a_cancellation_reaches_a_call(source: StoreSource) -> None:
    root = calling(lambda: charge_slowly(1))
    async with Environment([root, *WORKFLOWS], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {}, id="m")
        await env.settle()
        assert DIARY == ["first", "charge 1"]
        assert await emitted.cancel("no longer wanted")
        await agree(env, root)
        assert DIARY == ["first", "charge 1", "refund 1", "undo first"]
        (run,) = (await env.engine.runs.list(workflow="charge_slowly")).runs
        assert run.status == "rolled_back"


async def test_a_deadline_reaches_a_call(source: StoreSource) -> None:
    root = Operation("root", ROOT)
    DIARY.clear()

    @root.step
    async def first(scope: Scope, message: Message) -> None:
        scope.deadline(timedelta(hours=1))
        await scope.start(charge_slowly(1))

    async with Environment([root, *WORKFLOWS], source) as env:
        began = env.clock.now()
        assert (await finished(env, root)).startswith("GaveUp")
        assert DIARY == ["charge 1", "refund 1"]
        assert env.clock.now() - began < 2 * 3_600_000_000


async def test_a_call_that_is_cancelled_by_hand_rolls_its_caller_back(source: StoreSource) -> None:
    root = calling(lambda: charge_slowly(1))
    async with Environment([root, *WORKFLOWS], source, autojump_s=None) as env:
        await env.engine.emit(ROOT, {}, id="m")
        await env.settle()
        (run,) = (await env.engine.runs.list(workflow="charge_slowly")).runs
        assert await env.engine.handle(run.id).cancel()
        await agree(env, root)
        assert DIARY == ["first", "charge 1", "refund 1", "undo first"]


async def test_calls_and_their_rollback_survive_crashes(fresh: Callable[[], StoreSource]) -> None:
    """One that has succeeded, beside a handler that fails: the order of effects is the same wherever the process
    dies. What was under way then may be noted twice."""
    root = calling(lambda: charge(1), last="too late")

    async def scenario(env: Environment) -> tuple[str, list[str]]:
        if not env.restarts:
            DIARY.clear()
        return await finished(env, root), [one for place, one in enumerate(DIARY) if DIARY.index(one) == place]

    report = await run_with_crashes(scenario, workflows=[root, *WORKFLOWS], store=fresh)
    assert report.result == (
        "ValueError",
        ["first", "charge 1", "receipt 1", "second [2]", "void 1", "refund 1", "undo first"],
    )
    assert report.restarts > 10


async def test_a_call_that_is_cancelled_survives_crashes(fresh: Callable[[], StoreSource]) -> None:
    root = calling(lambda: charge_slowly(1))

    async def scenario(env: Environment) -> tuple[str, list[str]]:
        if not env.restarts:
            DIARY.clear()
        emitted = await env.engine.emit(ROOT, {}, id="m")
        await env.settle()
        await emitted.cancel("no longer wanted")
        found = await finished(env, root)
        return found.partition(" ")[0], [one for place, one in enumerate(DIARY) if DIARY.index(one) == place]

    report = await run_with_crashes(scenario, workflows=[root, *WORKFLOWS], store=fresh, autojump_s=None)
    assert report.result == ("GaveUp", ["first", "charge 1", "refund 1", "undo first"])


# ---------------------------------------------------------------------------------------------------------------------
# Several engines


async def test_a_call_may_be_run_by_another_engine(make_store: Callable[[], Store]) -> None:
    """Word of its end, of a cancellation and of what is to be undone goes to and fro as mail."""
    root = calling(lambda: charge(1), lambda: charge_slowly(2))
    async with Environment([root], make_store, autojump_s=None, poll_s=1.0) as env:
        other = Engine(make_store(), workflows=WORKFLOWS, clock=env.clock, poll_s=1.0)
        await other.open()
        try:
            emitted = await env.engine.emit(ROOT, {}, id="m")
            await until(env, lambda: sorted(DIARY[1:]) == ["charge 1", "charge 2", "receipt 1"])
            assert await emitted.cancel("no longer wanted")
            await until(env, lambda: "undo first" in DIARY)
            assert sorted(DIARY[4:-1]) == ["refund 1", "refund 2", "void 1"]
            await agree(env, root)
        finally:
            await other.shutdown(grace=0)


async def until(env: Environment, holds: Callable[[], bool]) -> None:
    """Both engines look for mail as time passes."""
    for _ in range(200):
        if holds():
            break
        await env.advance(1)
        await asyncio.sleep(0.005)
    assert holds(), DIARY
    await env.advance(1)
