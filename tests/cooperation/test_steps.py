"""What steps may say and be: loops, jumps, finally, sleep, schedules, periods, return values, context."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.cooperation import Context, Failure, Key, Operation, Scope, go_on, go_to, repeat
from perdure.models.cooperation.message_events import EventType, State
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_order import only, world_of
from tests.cooperation.world import SECOND, World

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]

NOTE = Key("note", str)
TAGS = Key("tags", list[str], merge=lambda own, other: [*own, *(tag for tag in other if tag not in own)])
SECRET = Key("secret", str)


def failing(book: Book, root: Operation[Message]) -> None:
    @root.step
    def fail(scope: Scope, message: Message) -> None:
        raise ValueError("the last step fails")


def test_a_loop_is_rolled_back_instance_by_instance(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def draw(scope: Scope, message: Message) -> Any:
            book.did(f"root draw {scope.iteration}")
            scope.emit(CHILD, {})
            return repeat() if scope.iteration < 2 else go_on()

        @draw.rollback
        def undraw(scope: Scope, message: Message, cause: Failure) -> None:
            book.did(f"root undraw {scope.iteration}")

        failing(book, root)
        return world_of(book, root, operation(book, "child", CHILD, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == [
            *["root draw 0", "child 0", "root draw 1", "child 0", "root draw 2", "child 0"],
            *["child undo 0", "root undraw 2", "child undo 0", "root undraw 1", "child undo 0", "root undraw 0"],
        ]
        # The children that are rolled back first are those of the newest instance.
        told = [row.message_id for row in world.rows_of("root") if row.type is EventType.ROLLBACK_EMITTED]
        emitted = [row.message_id for row in world.rows_of("root") if row.type is EventType.EMITTED]
        assert told == emitted[::-1]

    everywhere(scenario, check)


def test_a_jump_back_counts_iterations_anew_and_is_rolled_back_in_reverse(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def first(scope: Scope, message: Message) -> None:
            book.did(f"first {scope.iteration}")
            scope.put(NOTE, (scope.get(NOTE) or "") + "x")

        @first.rollback
        def unfirst(scope: Scope, message: Message, cause: Failure) -> None:
            book.did("unfirst")

        @root.step
        def second(scope: Scope, message: Message) -> Any:
            book.did(f"second {scope.iteration}")
            return go_to(0) if scope.get(NOTE) == "x" else go_to("fail")

        @second.rollback
        def unsecond(scope: Scope, message: Message, cause: Failure) -> None:
            book.did("unsecond")

        @root.step
        def skipped(scope: Scope, message: Message) -> None:
            book.did("skipped")

        failing(book, root)
        return world_of(book, root, **options)

    def check(world: World) -> None:
        assert world.log == [
            *["first 0", "second 0", "first 0", "second 0"],
            *["unsecond", "unfirst", "unsecond", "unfirst"],
        ]

    everywhere(scenario, check)


def test_a_jump_to_nowhere_fails_the_step(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def lost(scope: Scope, message: Message) -> Any:
            scope.emit(CHILD, {})
            return go_to("nowhere")

        return world_of(book, root, **options)

    def check(world: World) -> None:
        assert world.state("root") is State.ROLLED_BACK
        assert "no step 'nowhere' to go to; it has 'lost'" in world.failure("root").message
        assert len(world.messages) == 1

    everywhere(scenario, check)


@pytest.mark.parametrize("fails", ["never", "step", "child", "later", "cleanup"])
def test_a_finally_is_run_exactly_once(everywhere: Everywhere, fails: str) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def work(scope: Scope, message: Message) -> None:
            book.did("work")
            scope.emit(CHILD, {})
            if fails == "step":
                raise ValueError("work failed")

        @work.rollback
        def unwork(scope: Scope, message: Message, cause: Failure) -> None:
            book.did("unwork")

        @work.finally_
        def tidy(scope: Scope, message: Message) -> None:
            book.did(f"tidy {'back' if scope.rolling_back else 'on'}")
            if fails == "cleanup" and not scope.rolling_back:
                raise ValueError("tidy failed")

        @root.step
        def later(scope: Scope, message: Message) -> None:
            if fails == "later":
                raise ValueError("later failed")
            book.did("later")

        child = operation(book, "child", CHILD, [[], []], fails_at=1 if fails == "child" else None)
        return world_of(book, root, child, **options)

    expected = {
        "never": ["work", "child 0", "child 1", "tidy on", "later"],
        "step": [],
        "child": ["work", "child 0", "child undo 0", "tidy back", "unwork"],
        "later": ["work", "child 0", "child 1", "tidy on", "child undo 1", "child undo 0", "unwork"],
        "cleanup": ["work", "child 0", "child 1", "child undo 1", "child undo 0", "tidy back", "unwork"],
    }

    def check(world: World) -> None:
        assert world.log == expected[fails]
        if fails == "step":  # Inside the failing step, whose emissions vanish with it.
            assert world.trouble[-2:] == ["work", "tidy on"]
            assert [one.handler for one in world.runs] == ["root"]

    everywhere(scenario, check)


def test_a_step_with_a_finally_goes_where_it_says_after_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def work(scope: Scope, message: Message) -> Any:
            book.did(f"work {scope.iteration}")
            return repeat() if scope.iteration == 0 else go_to("end")

        @work.finally_
        def tidy(scope: Scope, message: Message) -> None:
            book.did(f"tidy {scope.iteration}")

        @root.step
        def skipped(scope: Scope, message: Message) -> None:
            book.did("skipped")

        @root.step
        def end(scope: Scope, message: Message) -> None:
            book.did("end")

        return world_of(book, root, **options)

    def check(world: World) -> None:
        assert world.log == ["work 0", "tidy 0", "work 1", "tidy 1", "end"]

    everywhere(scenario, check)


def test_sleep_and_schedules_wait_and_nothing_else_does(everywhere: Everywhere) -> None:
    book = Book()
    at: list[int] = []

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)
        at.clear()

        @root.step
        def before(scope: Scope, message: Message) -> None:
            book.did(f"before {scope.now // SECOND}")

        root.sleep(timedelta(seconds=30))

        @root.step
        def between(scope: Scope, message: Message) -> None:
            book.did(f"between {scope.now // SECOND}")

        @root.step(at=lambda message: datetime.fromtimestamp(2_000, UTC))
        def scheduled(scope: Scope, message: Message) -> None:
            book.did(f"scheduled {scope.now // SECOND}")

        @root.step(at=datetime.fromtimestamp(1_500, UTC))
        def overdue(scope: Scope, message: Message) -> None:
            book.did(f"overdue {scope.now // SECOND}")

        return world_of(book, root, **options)

    def check(world: World) -> None:
        assert world.log == ["before 1000", "between 1030", "scheduled 2000", "overdue 2000"]

    world = everywhere(scenario, check)
    assert [one.handler for one in world.runs] == ["root"]  # A sleep is a message that has no handlers.


def test_a_sleep_ends_early_when_its_run_is_cancelled(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)
        root.sleep(timedelta(days=1))
        failing(book, root)
        book.world = world = World(root, frozen=True, **options)
        lineage = world.emit(ROOT, {})
        world.run()
        world.cancel(lineage)
        return world.run()

    def check(world: World) -> None:
        assert world.now == 1_000 * SECOND
        assert world.state("root") is State.ROLLED_BACK

    everywhere(scenario, check)


def test_a_periodic_operation_plans_its_next_run_before_its_work(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)
        root.periodic(timedelta(seconds=10), count=3)

        @root.step
        def work(scope: Scope, message: Message) -> None:
            book.did(f"work {message['n']} {scope.now // SECOND}")
            if scope.now // SECOND == 1010:
                raise ValueError("the first fails")

        book.world = World(root, **options)
        book.world.emit(ROOT, {"n": 7})
        return book.world.run()

    def check(world: World) -> None:
        assert world.log == ["work 7 1020", "work 7 1030"]
        assert [world.state("root", number) for number in range(3)] == [
            *[State.ROLLED_BACK, State.COMMITTED, State.COMMITTED]
        ]
        assert len({one.lineage[0] for one in world.runs}) == 3  # Each is the root of a hierarchy of its own.

    everywhere(scenario, check)


def test_a_global_emission_is_nobodys_child_but_vanishes_with_its_step(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def announce(scope: Scope, message: Message) -> None:
            scope.emit_globally(CHILD, {})

        @root.step
        def fail(scope: Scope, message: Message) -> None:
            scope.emit_globally(CHILD, {})
            raise ValueError("fails")

        return world_of(book, root, operation(book, "child", CHILD, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == ["child 0"]
        assert world.states() == {"root": State.ROLLED_BACK, "child": State.COMMITTED}
        assert len(world.run_of("child").lineage) == 2

    everywhere(scenario, check)


def test_a_parent_reads_what_its_committed_children_returned(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.emit(CHILD, {"n": 1})
            scope.emit(CHILD, {"n": 2})

        @ask.on_child_failure
        def ignore(scope: Scope, message: Message, failure: Failure, attempt: int) -> None: ...

        @root.step
        def add(scope: Scope, message: Message) -> None:
            book.did(f"root {scope.returned('price', int)} {scope.returned('other', int)}")

        child = Operation("child", CHILD)

        @child.step
        def price(scope: Scope, message: Message) -> None:
            scope.return_value("price", message["n"] * 10)

        flaky = Operation("flaky", CHILD)

        @flaky.step
        def bid(scope: Scope, message: Message) -> None:
            scope.return_value("price", message["n"])

        @flaky.step
        def bid_again(scope: Scope, message: Message) -> None:
            if message["n"] == 2:
                scope.return_value("price", 0)  # Twice under one name is an error.

        return world_of(book, root, child, flaky, **options)

    def check(world: World) -> None:
        assert world.log == ["root [10, 1, 20] []"]
        assert "has returned 'price' before" in world.failure("flaky", 1).message

    everywhere(scenario, check)


def test_context_travels_down_and_back_and_never_up(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root, child = Operation("root", ROOT), Operation("child", CHILD)

        @root.step
        def begin(scope: Scope, message: Message) -> None:
            book.did(f"root {scope.get(NOTE)}")
            scope.put(NOTE, "from root")
            scope.put(TAGS, ["r"])
            scope.emit(CHILD, {}, context=Context().put(TAGS, ["extra"]))

        @begin.rollback
        def unbegin(scope: Scope, message: Message, cause: Failure) -> None:
            book.did(f"root back {scope.get(NOTE)} {scope.get(TAGS)} {scope.context.values.get('opaque')}")

        @root.step
        def go(scope: Scope, message: Message) -> None:
            book.did(f"root {scope.get(NOTE)} {scope.get(SECRET)}")
            scope.put(NOTE, "changed since")

        @go.rollback
        def ungo(scope: Scope, message: Message, cause: Failure) -> None:
            scope.put(TAGS, ["undone"])

        failing(book, root)

        @child.step
        def take(scope: Scope, message: Message) -> None:
            book.did(f"child {scope.get(NOTE)} {scope.get(TAGS)} {scope.context.values.get('opaque')}")
            scope.put(NOTE, "from child")
            scope.put(SECRET, "of child")

        @child.step
        def look(scope: Scope, message: Message) -> None:
            book.did(f"child {scope.get(NOTE)}")

        @look.rollback
        def unlook(scope: Scope, message: Message, cause: Failure) -> None:
            book.did(f"child back {scope.get(NOTE)} {scope.get(TAGS)} {scope.get(SECRET)} {cause.type}")

        book.world = World(root, child, **options)
        book.world.emit(ROOT, {}, Context({"note": "from outside", "opaque": {"a": [1]}}))
        return book.world.run()

    def check(world: World) -> None:
        assert world.log == [
            "root from outside",
            "child from root ['r', 'extra'] {'a': [1]}",
            "child from child",
            "root from root None",
            # On the way back the parent's context is laid over the child's; lists are merged by their key.
            "child back changed since ['r', 'extra', 'undone'] of child ParentSaidSo",
            "root back changed since ['undone'] {'a': [1]}",
        ]

    everywhere(scenario, check)


def test_a_step_that_is_called_like_a_rollback_is_told_from_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)
        for name in ("a", "Rollback of a[0,]"):
            step = root.step(name=name)(lambda scope, message: None)

            @step.rollback
            def undo(scope: Scope, message: Message, cause: Failure) -> None:
                book.did(f"undo {scope.step}")

        failing(book, root)
        return world_of(book, root, **options)

    def check(world: World) -> None:
        assert world.log == ["undo Rollback of a[0,]", "undo a"]
        assert world.rows_of("root")[-1].step == "Rollback of a[0,]$"

    everywhere(scenario, check)


def test_a_step_that_is_gone_blocks_the_run() -> None:
    book = Book()
    root = operation(book, "root", ROOT, [[CHILD], []])
    book.world = world = World(root)
    world.registry["child"] = {"absent"}
    world.emit(ROOT, {})
    world.run()
    other = Operation("root", ROOT)
    failing(book, other)
    world.plans["root"] = (other, other.plan)
    world._moves.clear()
    move = world.move(world.run_of("root"))
    assert "has no step 's0' any more" in getattr(move, "reason", "")
    assert only(world.log, "root") == ["root 0"]
