"""A parent's answer to the failures of its children, forwards and on the way back; what cannot be undone."""

from __future__ import annotations

from typing import Any

from perdure.cooperation import Failure, Operation, Scope, go_to
from perdure.models.cooperation.message_events import State
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_order import only, world_of
from tests.cooperation.world import World

ROOT, CHILD, SPARE = topic("root"), topic("child"), topic("spare")


def emitting_root(book: Book, **options: Any) -> tuple[Operation[dict[str, Any]], Any]:
    root = Operation("root", ROOT, **options)

    @root.step
    def order(scope: Scope, message: dict[str, Any]) -> None:
        book.did("root order")
        scope.emit(CHILD, {})

    @order.rollback
    def unorder(scope: Scope, message: dict[str, Any], cause: Failure) -> None:
        book.did("root unorder")

    return root, order


def ending(book: Book, root: Operation[dict[str, Any]], fails: bool = False) -> None:
    @root.step
    def end(scope: Scope, message: dict[str, Any]) -> None:
        book.did("root end")
        if fails:
            raise ValueError("the end fails")


def test_a_failure_that_is_dealt_with_lets_the_parent_go_on(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root, order = emitting_root(book)

        @order.on_child_failure
        def elsewhere(scope: Scope, message: dict[str, Any], failure: Failure, attempt: int) -> None:
            book.did(f"root elsewhere {attempt} {failure.type} {failure.causes[0].message}")
            scope.emit(SPARE, {})

        ending(book, root)
        bad = operation(book, "bad", CHILD, [[], []], fails_at=1)
        return world_of(book, root, bad, operation(book, "spare", SPARE, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == [
            "root order",
            "bad 0",
            "bad undo 0",
            "root elsewhere 1 ChildRolledBack bad failed",
            "spare 0",
            "root end",
        ]
        assert world.states() == {"root": State.COMMITTED, "bad": State.ROLLED_BACK, "spare": State.COMMITTED}

    everywhere(scenario, check)


def test_a_retry_that_fails_too_is_tried_again_and_at_last_rolls_back_what_was_retried(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root, order = emitting_root(book)

        @order.on_child_failure
        async def again(scope: Scope, message: dict[str, Any], failure: Failure, attempt: int) -> None:
            book.did(f"root again {attempt}")
            if attempt == 3:
                raise failure.error()
            await scope.emit(SPARE, {})
            await scope.emit(CHILD, {})

        bad = operation(book, "bad", CHILD, [[], []], fails_at=1)
        return world_of(book, root, bad, operation(book, "spare", SPARE, [[]]), **options)

    def check(world: World) -> None:
        # The third answer raises, so it is not among what was committed.
        assert only(world.log, "root", "bad") == [
            *["root order", "bad 0", "bad undo 0"],
            *["root again 1", "bad 0", "bad undo 0"],
            *["root again 2", "bad 0", "bad undo 0"],
            "root unorder",
        ]
        # Each answer's own children are rolled back, the newest first, before the step itself.
        assert [line for line in world.log if "un" in line] == [
            *["bad undo 0", "bad undo 0", "bad undo 0", "spare undo 0", "spare undo 0", "root unorder"]
        ]
        assert world.state("root") is State.ROLLED_BACK
        assert [row.step for row in world.rows_of("root") if row.type == "ROLLBACK_EMITTED"] == [
            "Rollback of order[0,1] (rolling back child scopes)",
            "Rollback of order[0,1] (rolling back child scopes)",
            "Rollback of order[0,0] (rolling back child scopes)",
            "Rollback of order[0,0] (rolling back child scopes)",
            "Rollback of order[0,] (rolling back child scopes)",
        ]
        failure = world.failure("root")
        assert failure.type == "ChildRolledBack"
        assert failure.source.startswith("root[")

    everywhere(scenario, check)


def test_a_later_failure_rolls_back_what_an_answer_emitted(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root, order = emitting_root(book)

        @order.on_child_failure
        def elsewhere(scope: Scope, message: dict[str, Any], failure: Failure, attempt: int) -> None:
            scope.emit(SPARE, {})

        ending(book, root, fails=True)
        bad = operation(book, "bad", CHILD, [[], []], fails_at=1)
        return world_of(book, root, bad, operation(book, "spare", SPARE, [[]]), **options)

    def check(world: World) -> None:
        assert world.log == ["root order", "bad 0", "bad undo 0", "spare 0", "spare undo 0", "root unorder"]
        assert set(world.states().values()) == {State.ROLLED_BACK}

    everywhere(scenario, check)


def test_an_answer_may_choose_the_next_step(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root, order = emitting_root(book)

        @order.on_child_failure
        def skip(scope: Scope, message: dict[str, Any], failure: Failure, attempt: int) -> Any:
            return go_to("end")

        @root.step
        def skipped(scope: Scope, message: dict[str, Any]) -> None:
            book.did("root skipped")

        ending(book, root)
        return world_of(book, root, operation(book, "bad", CHILD, [[]], fails_at=0), **options)

    def check(world: World) -> None:
        assert world.log == ["root order", "root end"]

    everywhere(scenario, check)


def test_a_rollback_that_fails_halts_there_and_all_above_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[], [CHILD], []], fails_at=2),
            operation(book, "child", CHILD, [[], [], []], undo_fails_at=1),
            **options,
        )

    def check(world: World) -> None:
        assert world.log == ["root 0", "root 1", "child 0", "child 1", "child 2", "child undo 2"]
        assert set(world.states().values()) == {State.ROLLBACK_FAILED}
        failure = world.failure("root")
        assert failure.type == "ChildRollbackFailed"
        assert [one.message for one in failure.walk() if not one.causes] == ["root failed", "root failed"]
        assert failure.causes[0].message == "child cannot undo"

    everywhere(scenario, check)


def test_with_the_policy_continue_the_rest_is_undone_all_the_same(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[], [CHILD], []], fails_at=2, policy="continue"),
            operation(book, "child", CHILD, [[], [], []], undo_fails_at=1, policy="continue"),
            **options,
        )

    def check(world: World) -> None:
        assert world.log[5:] == ["child undo 2", "child undo 0", "root undo 1", "root undo 0"]
        assert set(world.states().values()) == {State.ROLLBACK_FAILED}
        assert "child cannot undo" in str(world.failure("root"))

    everywhere(scenario, check)


def test_a_parent_may_deal_with_what_a_child_could_not_undo(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root, order = emitting_root(book)

        @order.on_child_failure
        def mend(scope: Scope, message: dict[str, Any], failure: Failure, attempt: int) -> None:
            book.did(f"root mend {attempt} {failure.type} {scope.rolling_back}")
            scope.emit(SPARE, {})  # Also on the way back an emission is waited for.

        ending(book, root, fails=True)
        return world_of(
            book,
            root,
            operation(book, "child", CHILD, [[]], undo_fails_at=0),
            operation(book, "spare", SPARE, [[], []]),
            **options,
        )

    def check(world: World) -> None:
        # What a rollback emits is part of the rollback: it is not itself rolled back.
        assert world.log == [
            *["root order", "child 0", "root mend 1 ChildRollbackFailed True"],
            *["spare 0", "spare 1", "root unorder"],
        ]
        assert world.states() == {"root": State.ROLLED_BACK, "child": State.ROLLBACK_FAILED, "spare": State.COMMITTED}

    everywhere(scenario, check)


def test_an_emission_of_a_rollback_that_fails_is_a_failed_rollback(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def first(scope: Scope, message: dict[str, Any]) -> None:
            book.did("root first")

        @first.rollback
        def refund(scope: Scope, message: dict[str, Any], cause: Failure) -> None:
            book.did("root refund")
            scope.emit(SPARE, {})

        ending(book, root, fails=True)
        return world_of(book, root, operation(book, "spare", SPARE, [[], []], fails_at=1), **options)

    def check(world: World) -> None:
        assert world.log == ["root first", "root refund", "spare 0", "spare undo 0"]
        assert world.states() == {"root": State.ROLLBACK_FAILED, "spare": State.ROLLED_BACK}

    everywhere(scenario, check)


def test_the_failure_reads_across_the_hierarchy(everywhere: Everywhere) -> None:
    book = Book()
    deep = topic("deep")

    def scenario(**options: Any) -> World:
        return world_of(
            book,
            operation(book, "root", ROOT, [[CHILD]]),
            operation(book, "middle", CHILD, [[deep]]),
            operation(book, "leaf", deep, [[]], fails_at=0),
            **options,
        )

    everywhere(scenario, check_failure)


def check_failure(world: World) -> None:
    lines = str(world.failure("root")).splitlines()
    leaf, middle, root = (world.run_of(name).id for name in ("leaf", "middle", "root"))
    assert lines[0].startswith("ChildRolledBack: 1 handler of messages from step 's0' failed")
    assert lines[0].endswith(f" in root[{root}]")
    assert lines[1] == "caused by:"
    assert lines[2].endswith(f" in middle[{middle}]")
    assert lines[4] == f"    ValueError: leaf failed in step 's0' of leaf[{leaf}]"
    assert lines[-1].startswith('      File "')
    assert lines[-1].endswith("in invoke")
