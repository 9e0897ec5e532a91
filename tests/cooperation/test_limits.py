"""Deadlines and delays of single emissions: from outside, of a step, and of what is emitted on the global scope."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import InvalidArguments, RunFinished, ScopeFailed
from perdure.kernel.status import Status
from perdure.models.cooperation.context import NOT_BEFORE
from perdure.models.cooperation.deadlines import HAPPY_DEADLINE
from perdure.models.cooperation.message_events import EventType, State
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_cooperation_engine import Diary, agree, status_of
from tests.cooperation.test_order import only, world_of
from tests.cooperation.world import SECOND, World

ROOT, CHILD, LEAF = topic("root"), topic("child"), topic("leaf")
Message = dict[str, Any]


def test_the_handlers_of_a_delayed_message_begin_after_the_delay(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.emit(CHILD, {"at": "once"})
            scope.emit(CHILD, {"at": "later"}, delay=timedelta(seconds=30))

        @root.step
        def end(scope: Scope, message: Message) -> None:
            book.did(f"root {scope.now // SECOND}")

        child = Operation("child", CHILD)

        @child.step
        def work(scope: Scope, message: Message) -> None:
            book.did(f"child {message['at']} {scope.now // SECOND}")
            scope.emit(LEAF, {})

        leaf = Operation("leaf", LEAF)

        @leaf.step
        def deep(scope: Scope, message: Message) -> None:
            assert scope.get(NOT_BEFORE) is None

        return world_of(book, root, child, leaf, **options)

    def check(world: World) -> None:
        assert world.log == ["child once 1000", "child later 1030", "root 1030"]
        assert set(world.states().values()) == {State.COMMITTED}

    everywhere(scenario, check)


def test_a_run_that_waits_for_its_delay_is_cancelled_without_running_code(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.emit(CHILD, {}, delay=timedelta(days=1))

        book.world = world = World(root, operation(book, "child", CHILD, [[]]), frozen=True, **options)
        lineage = world.emit(ROOT, {})
        world.run()
        world.cancel(lineage)
        return world.run()

    def check(world: World) -> None:
        assert world.log == []
        assert world.states() == {"root": State.ROLLED_BACK, "child": State.ROLLED_BACK}

    everywhere(scenario, check)


def test_an_emission_of_its_own_deadline_gives_up_and_the_parent_hears_of_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.emit(CHILD, {}, deadline=timedelta(seconds=20))
            assert scope.get(HAPPY_DEADLINE) is None  # It bounds that message, and nothing else.

        @ask.on_child_failure
        def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
            book.did(f"root answers {failure.root_cause.type}")

        child = operation(book, "child", CHILD, [[]])
        child.sleep(timedelta(seconds=60))
        return world_of(book, root, child, **options)

    def check(world: World) -> None:
        assert world.log == ["child 0", "child undo 0", "root answers DeadlineMissed"]
        assert world.states() == {"root": State.COMMITTED, "child": State.ROLLED_BACK}

    everywhere(scenario, check)


def test_the_earliest_deadline_counts_and_a_delay_does_not_move_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.deadline(timedelta(seconds=20))
            scope.emit(CHILD, {}, deadline=timedelta(days=2), delay=timedelta(days=1))

        return world_of(book, root, operation(book, "child", CHILD, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == []
        assert world.states() == {"root": State.ROLLED_BACK, "child": State.ROLLED_BACK}
        ended = [row.created_at for row in world.rows_of("child") if row.type is EventType.ROLLED_BACK]
        assert ended[0] // SECOND == 1020

    everywhere(scenario, check)


def test_a_rollback_deadline_of_an_emission_ends_its_rollback(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            when = datetime.fromtimestamp(1_020, UTC)
            scope.emit(CHILD, {}, deadline=when, rollback_deadline=when)

        child = operation(book, "child", CHILD, [[]])
        child.sleep(timedelta(seconds=60))
        return world_of(book, root, child, **options)

    def check(world: World) -> None:
        assert only(world.log, "child") == ["child 0"]
        assert world.states() == {"root": State.ROLLBACK_FAILED, "child": State.ROLLBACK_FAILED}
        assert "the deadline of the rollback was" in world.failure("child").message

    everywhere(scenario, check)


async def test_a_message_from_outside_has_a_delay_that_survives_its_process(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [])
    child = diary.operation("child", CHILD, [])
    async with Environment([root, child], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {}, delay=timedelta(hours=1))
        await env.settle()
        assert await status_of(env.engine, "root") == "suspended"
        await env.advance(timedelta(minutes=59))
        env.kill()
        await env.restart()
        await env.settle()
        assert diary == []
        await env.advance(timedelta(minutes=2))
        await emitted_again(env, emitted.message_id)
        assert diary == ["root 0", "child 0", "root 1"]
        await agree(env, root, child)


async def emitted_again(env: Environment, message_id: str) -> None:
    """The same message is the same hierarchy, whoever asks."""
    await (await env.engine.emit(ROOT, {}, id=message_id)).finished()


async def test_a_message_from_outside_has_deadlines(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [])
    root.sleep(timedelta(days=1))
    async with Environment([root], source) as env:
        emitted = await env.engine.emit(ROOT, {}, deadline=timedelta(seconds=30), actor="ada")
        with pytest.raises(ScopeFailed, match=r"DeadlineMissed.*set by ada"):
            await emitted.finished()
        assert diary == ["root 0", "root undo 0"]
        await agree(env, root)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"deadline": datetime(2030, 1, 1)}, "has no time zone"),  # noqa: DTZ001 - that is the point
        (
            {"rollback_deadline": "5"},
            "rollback_deadline is a datetime with a time zone, a duration",
        ),
        ({"deadline": -5}, "deadline is a datetime with a time zone, a duration"),
        ({"deadline": timedelta.max}, "is beyond the year 9999"),
        ({"delay": timedelta(seconds=-1)}, "delay is a duration"),
        ({"delay": float("inf")}, "delay is a duration"),
        ({"delay": timedelta.max}, "is beyond the year 9999"),
    ],
)
async def test_limits_that_make_no_sense_are_refused_at_once(options: dict[str, Any], message: str) -> None:
    async with Environment([Diary().operation("root", ROOT, [])]) as env:
        with pytest.raises(InvalidArguments, match=message):
            await env.engine.emit(ROOT, {}, **options)
        assert (await env.engine.runs.list()).runs == []


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_missed_rollback_ends_what_nobody_has_taken(source: StoreSource, is_cancelled: bool) -> None:
    """Its emitter ends at once, and nobody would tell it later."""
    root, hours = Diary().operation("root", ROOT, [CHILD], []), timedelta(hours=2)
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "person")
        emitted = await env.engine.emit(ROOT, {}, deadline=None if is_cancelled else hours, rollback_deadline=hours)
        await env.settle()
        await env.advance(hours)
        if is_cancelled:
            assert await emitted.cancel()
        with pytest.raises(ScopeFailed, match="the deadline of the rollback"):
            await emitted.finished()
        (person,) = (await env.engine.runs.list(workflow="person")).runs
        assert person.status is Status.ROLLED_BACK
        with pytest.raises(RunFinished):
            await env.engine.topics.complete(person.id)
        await agree(env, root)


async def test_a_missed_rollback_that_crashes(fresh: Callable[[], StoreSource]) -> None:
    root = Diary().operation("root", ROOT, [CHILD], [])

    async def scenario(env: Environment) -> list[str]:
        await env.engine.topics.register(CHILD, "person")
        hour = timedelta(hours=1)
        emitted = await env.engine.emit(ROOT, {}, id="one", deadline=hour, rollback_deadline=hour)
        with pytest.raises(ScopeFailed, match="the deadline of the rollback"):
            await emitted.finished()
        return [run.status for run in (await env.engine.runs.list(workflow="person")).runs]

    report = await run_with_crashes(scenario, workflows=[root], store=fresh)
    assert report.result == [Status.ROLLED_BACK]
