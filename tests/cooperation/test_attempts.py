"""Attempts of operations' code: retries, timeouts, heartbeats, and infrastructure that fails."""

from __future__ import annotations

import asyncio
import logging
import threading
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry, current_step
from perdure.cooperation import Failure, InfrastructureFailed, Operation, Scope
from perdure.errors import InvalidDefinition, NonRetryable, ScopeFailed, StoreBusy
from perdure.models.cooperation.message_events import EventType, State
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_cooperation_engine import Diary, agree, run_of, status_of
from tests.cooperation.test_order import world_of
from tests.cooperation.world import SECOND, World

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]

SLOW = Retry(attempts=3, initial=timedelta(seconds=30), jitter=0)
QUICK = Retry(attempts=3, initial=timedelta(milliseconds=100), jitter=0)


# ---------------------------------------------------------------------------------------------------------------------
# Retries


@pytest.mark.parametrize("retry", [SLOW, QUICK])
def test_a_step_that_fails_is_tried_again_and_leaves_nothing_of_its_failures(
    everywhere: Everywhere, retry: Retry
) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)
        keys: set[str] = set()

        @root.step(retry=retry)
        async def ask(scope: Scope, message: Message) -> None:
            here = current_step()
            keys.add(here.idempotency_key)
            assert len(keys) == 1
            await scope.emit(CHILD, {})
            scope.return_value("tried", here.attempt)
            if here.attempt < 3:
                raise ValueError("not yet")
            book.did(f"root {here.attempt}")

        return world_of(book, root, operation(book, "child", CHILD, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == ["root 3", "child 0"]
        assert [row.type for row in world.rows_of("root")] == [
            EventType.SEEN,
            EventType.EMITTED,
            EventType.SUSPENDED,
            EventType.COMMITTED,
        ]
        assert [value.value for value in world.values] == ["3"]

    everywhere.on_engines(scenario, check)


async def test_a_long_pause_survives_the_process_with_the_attempts_made(source: StoreSource) -> None:
    tries: list[tuple[int, int]] = []
    root = Operation("root", ROOT)

    @root.step(retry=SLOW)
    async def work(scope: Scope, message: Message) -> None:
        tries.append((current_step().attempt, scope.now // SECOND))
        raise ValueError("never")

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        begun = tries[0][1]
        assert await status_of(env.engine, "root") == "suspended"
        (wait,) = await env.engine.handle(emitted.run_ids[0]).waits()
        assert (wait.kind, wait.name, wait.attempts) == ("retry", "work", 1)
        env.kill()
        await env.restart()
        await env.advance(29)
        assert len(tries) == 1
        await env.advance(1)
        assert tries == [(1, begun), (2, begun + 30)]
        env.kill()
        await env.restart()
        await env.advance(60)
        assert tries == [(1, begun), (2, begun + 30), (3, begun + 90)]
        await env.settle()
        with pytest.raises(ScopeFailed) as caught:
            await (await env.engine.emit(ROOT, {}, id=emitted.message_id)).finished()
        assert caught.value.failure.attempts == 3
        assert str(caught.value).endswith(" after 3 attempts")
        assert await env.engine.handle(emitted.run_ids[0]).waits() == []
        await agree(env, root)


async def test_attempts_count_anew_for_the_next_execution(source: StoreSource) -> None:
    tries: list[tuple[str, int]] = []
    root = Operation("root", ROOT)

    @root.step(retry=SLOW)
    async def first(scope: Scope, message: Message) -> None:
        tries.append(("first", current_step().attempt))
        if current_step().attempt < 3:
            raise ValueError("not yet")

    @root.step(retry=SLOW)
    def second(scope: Scope, message: Message) -> None:
        tries.append(("second", current_step().attempt))
        if current_step().attempt < 2:
            raise ValueError("not yet")

    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        assert tries == [("first", 1), ("first", 2), ("first", 3), ("second", 1), ("second", 2)]
        assert await env.engine.handle(await run_of(env.engine, "root")).waits() == []
        await agree(env, root)


async def test_what_cannot_be_cured_is_not_tried_again(source: StoreSource) -> None:
    tries: list[int] = []
    root = Operation("root", ROOT)

    class Refused(NonRetryable): ...

    @root.step(retry=SLOW)
    async def work(scope: Scope, message: Message) -> None:
        tries.append(current_step().attempt)
        raise Refused("no")

    async with Environment([root], source) as env:
        with pytest.raises(ScopeFailed, match="no in step 'work'"):
            await (await env.engine.emit(ROOT, {})).finished()
        assert tries == [1]


async def test_a_policy_that_raises_fails_the_step(source: StoreSource) -> None:
    root = Operation("root", ROOT)

    def recoverable(_: BaseException) -> bool:
        raise RuntimeError("the policy is broken")

    @root.step(retry=Retry(recoverable=recoverable))
    async def work(scope: Scope, message: Message) -> None:
        raise ValueError("no")

    async with Environment([root], source) as env:
        with pytest.raises(ScopeFailed, match="RuntimeError: the policy is broken"):
            await (await env.engine.emit(ROOT, {})).finished()


@pytest.mark.parametrize("retry", [SLOW, QUICK])
async def test_a_run_that_pauses_between_attempts_can_be_cancelled(source: StoreSource, retry: Retry) -> None:
    tries: list[int] = []
    root = Operation("root", ROOT)

    @root.step(retry=retry)
    async def work(scope: Scope, message: Message) -> None:
        tries.append(current_step().attempt)
        raise ValueError("not yet")

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await emitted.cancel("no longer wanted")
        with pytest.raises(ScopeFailed, match="no longer wanted"):
            await emitted.finished()
        await env.advance(100)
        assert tries == [1]
        assert await env.engine.handle(emitted.run_ids[0]).waits() == []
        await agree(env, root)


@pytest.mark.parametrize("pause_s", [0.9, 1000.0])
@pytest.mark.parametrize("is_restarted", [False, True])
async def test_a_deadline_ends_the_pause_between_attempts(
    source: StoreSource, pause_s: float, is_restarted: bool
) -> None:
    """Not only once the pause is over."""
    tries, root = list[int](), Operation[Message]("root", ROOT)

    @root.step(retry=Retry(attempts=9, initial=timedelta(seconds=pause_s), jitter=0))
    async def work(scope: Scope, message: Message) -> None:
        tries.append(current_step().attempt)
        raise ValueError("not yet")

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {}, id="one", deadline=timedelta(seconds=pause_s / 2))
        await env.settle()
        if is_restarted:
            await env.restart()
            emitted = await env.engine.emit(ROOT, {}, id="one")
        await env.advance(pause_s / 2)
        await env.settle()
        with pytest.raises(ScopeFailed, match="DeadlineMissed"):
            await emitted.finished()
        assert 1 <= len(tries) <= 2
        assert await env.engine.handle(emitted.run_ids[0]).waits() == []
        await agree(env, root)


async def test_a_deadline_ends_the_pause_of_a_rollback(source: StoreSource) -> None:
    root = Operation[Message]("root", ROOT)

    @root.step
    async def work(scope: Scope, message: Message) -> None: ...

    @work.rollback(retry=Retry(attempts=9, initial=timedelta(hours=5), jitter=0))
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        raise ValueError("not yet")

    @root.step
    async def fail(scope: Scope, message: Message) -> None:
        raise ValueError("no")

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {}, rollback_deadline=timedelta(hours=1))
        await env.settle()
        await env.advance(3600)
        with pytest.raises(ScopeFailed, match="DeadlineMissed"):
            await emitted.finished()
        await agree(env, root)


def test_a_rollback_and_an_answer_to_failures_are_tried_again_too(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        async def ask(scope: Scope, message: Message) -> None:
            await scope.emit(CHILD, {})

        @ask.on_child_failure(retry=SLOW)
        async def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
            assert attempt == 1  # That of children, not of this.
            if current_step().attempt < 3:
                raise ValueError("no answer yet")
            book.did("root answers")

        @ask.rollback(retry=SLOW)
        async def take_back(scope: Scope, message: Message, cause: Failure) -> None:
            if current_step().attempt < 2:
                raise ValueError("cannot undo yet")
            book.did("root undoes")

        @root.step
        async def fail(scope: Scope, message: Message) -> None:
            raise ValueError("the last step fails")

        return world_of(book, root, operation(book, "child", CHILD, [[]], fails_at=0), **options)

    def check(world: World) -> None:
        assert world.log == ["root answers", "root undoes"]
        assert world.state("root") is State.ROLLED_BACK

    everywhere.on_engines(scenario, check)


async def test_a_rollback_whose_last_attempt_fails_has_failed(source: StoreSource) -> None:
    root = Operation("root", ROOT)

    @root.step
    async def work(scope: Scope, message: Message) -> None: ...

    @work.rollback(retry=QUICK)
    def undo(scope: Scope, message: Message, cause: Failure) -> None:
        raise OSError("the bank is closed")

    @root.step
    async def fail(scope: Scope, message: Message) -> None:
        raise ValueError("the last step fails")

    async with Environment([root], source) as env:
        with pytest.raises(ScopeFailed, match=r"the bank is closed.* after 3 attempts"):
            await (await env.engine.emit(ROOT, {})).finished()
        assert await status_of(env.engine, "root") == "rollback_failed"


@pytest.mark.parametrize("is_async", [True, False])
async def test_a_finally_is_called_after_the_last_attempt_only(source: StoreSource, is_async: bool) -> None:
    diary: list[str] = []
    root = Operation("root", ROOT)

    async def work(scope: Scope, message: Message) -> None:
        diary.append(f"work {current_step().attempt}")
        if is_async:
            await asyncio.Event().wait()  # Until its time is up.
        raise ValueError("no")

    root_work = root.step(retry=QUICK, timeout=5)(work)

    @root_work.finally_
    async def tidy(scope: Scope, message: Message) -> None:
        diary.append("tidy")

    async with Environment([root], source) as env:
        with pytest.raises(ScopeFailed, match="StepTimedOut" if is_async else "ValueError: no"):
            await (await env.engine.emit(ROOT, {})).finished()
        assert diary == ["work 1", "work 2", "work 3", "tidy"]
        await agree(env, root)


# ---------------------------------------------------------------------------------------------------------------------
# Time


async def test_an_attempt_that_takes_too_long_is_given_up(source: StoreSource) -> None:
    root = Operation("root", ROOT)
    ended: list[int] = []

    @root.step(timeout=timedelta(seconds=10), retry=QUICK)
    async def work(scope: Scope, message: Message) -> None:
        try:
            if current_step().attempt < 3:
                await asyncio.Event().wait()
        finally:
            ended.append(current_step().attempt)

    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        assert ended == [1, 2, 3]


async def test_a_plain_step_that_takes_too_long_is_given_up_and_its_thread_left_to_end(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    root = Operation("root", ROOT)
    may_end = threading.Event()

    @root.step(timeout=10)
    def work(scope: Scope, message: Message) -> None:
        scope.emit(CHILD, {})
        may_end.wait(60)

    async with Environment([root], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed, match=r"took longer than its timeout of 10\.0 s in attempt 1"):
            await emitted.finished()
        may_end.set()
        assert "its thread is still busy" in caplog.text
        await agree(env, root)


async def test_silence_ends_an_attempt_and_the_next_one_knows_how_far_it_got(source: StoreSource) -> None:
    root = Operation("root", ROOT)
    found: list[Any] = []

    @root.step(heartbeat_timeout=timedelta(seconds=10), retry=SLOW)
    async def work(scope: Scope, message: Message) -> None:
        step = current_step()
        found.append((step.attempt, step.heartbeat_details))
        if step.attempt == 1:
            for row in range(3):
                step.heartbeat({"row": row})
                await asyncio.sleep(0)
            await asyncio.Event().wait()

    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        assert found == [(1, None), (2, {"row": 2})]
        assert await env.engine.handle(await run_of(env.engine, "root")).waits() == []


async def test_what_a_heartbeat_said_survives_the_process(source: StoreSource) -> None:
    root = Operation("root", ROOT)
    found: list[Any] = []
    said = asyncio.Event()

    @root.step
    async def work(scope: Scope, message: Message) -> None:
        step = current_step()
        found.append((step.attempt, step.heartbeat_details))
        if len(found) == 1:
            step.heartbeat("half")
            said.set()
            await asyncio.Event().wait()

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await said.wait()
        while not await env.engine.handle(emitted.run_ids[0]).waits():
            await asyncio.sleep(0)
        env.kill()
        await env.restart()
        await (await env.engine.emit(ROOT, {}, id=emitted.message_id)).finished()
        assert found == [(1, None), (1, "half")]  # A crash is no failure of the step.
        assert await env.engine.handle(emitted.run_ids[0]).waits() == []
        await agree(env, root)


# ---------------------------------------------------------------------------------------------------------------------
# Infrastructure


async def test_infrastructure_that_fails_rolls_nothing_back_and_does_not_count(
    source: StoreSource, caplog: pytest.LogCaptureFixture
) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [])
    child = Operation("child", CHILD)
    tries: list[int] = []
    errors = [*[InfrastructureFailed("the database is down")] * 8, StoreBusy("try later"), ValueError("mine"), None]

    @child.step(retry=QUICK)
    async def work(scope: Scope, message: Message) -> None:
        tries.append(current_step().attempt)
        error = errors[len(tries) - 1]
        if error is not None:
            raise error

    async with Environment([root, child], source) as env:
        caplog.set_level(logging.WARNING)
        await (await env.engine.emit(ROOT, {})).finished()
        assert tries == [1] * 10 + [2]
        assert diary == ["root 0", "root 1"]
        assert caplog.text.count("the database is down") == 8
        await agree(env, root, child)


async def test_a_step_without_a_policy_waits_for_its_infrastructure_across_crashes(source: StoreSource) -> None:
    root = Operation("root", ROOT)
    tries: list[int] = []

    @root.step
    def work(scope: Scope, message: Message) -> None:
        tries.append(scope.now // SECOND)
        if len(tries) < 8:
            raise InfrastructureFailed("the network is down")

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        for _ in range(6):
            await env.advance(1)
        count = len(tries)
        assert count < 8
        assert await status_of(env.engine, "root") == "suspended"
        env.kill()
        await env.restart()
        await env.settle()
        assert len(tries) == count  # The pause goes on.
        await env.advance(600)
        await (await env.engine.emit(ROOT, {}, id=emitted.message_id)).finished()
        assert len(tries) == 8
        await agree(env, root)


async def test_who_waits_for_infrastructure_can_be_cancelled(source: StoreSource) -> None:
    root = Operation("root", ROOT)

    @root.step
    async def work(scope: Scope, message: Message) -> None:
        raise InfrastructureFailed("for ever")

    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.advance(300)
        await emitted.cancel("enough")
        with pytest.raises(ScopeFailed, match="enough"):
            await emitted.finished()
        await agree(env, root)


# ---------------------------------------------------------------------------------------------------------------------
# Definitions


@pytest.mark.parametrize("options", [{"retry": 3}, {"timeout": "5"}, {"heartbeat_timeout": object()}])
def test_options_of_a_wrong_type_are_refused_where_they_are_given(options: dict[str, Any]) -> None:
    async def work(scope: Scope, message: Message) -> None: ...

    root = Operation("root", ROOT)
    for decorate in (root.step, (step := root.step(work)).rollback, step.on_child_failure):
        with pytest.raises(InvalidDefinition, match=f"{next(iter(options))} is a"):
            decorate(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timeout": 0}, "timeout is longer than nothing, not 0"),
        ({"heartbeat_timeout": timedelta(0)}, "heartbeat_timeout is longer than nothing"),
    ],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    root = Operation("root", ROOT)

    async def work(scope: Scope, message: Message) -> None: ...

    async def undo(scope: Scope, message: Message, cause: Failure) -> None: ...

    async def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> None: ...

    with pytest.raises(InvalidDefinition, match=message):
        root.step(**options)(work)
    step = root.step(work)
    about = message.replace("step 'work' at .*: ", "")
    with pytest.raises(InvalidDefinition, match=f"the rollback of step 'work' at .*: {about}"):
        step.rollback(**options)(undo)
    with pytest.raises(InvalidDefinition, match=f"the handler of child failures of step 'work' at .*: {about}"):
        step.on_child_failure(**options)(answer)
