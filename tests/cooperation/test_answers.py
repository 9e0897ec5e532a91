"""What parents get from their children: values by handler and by topic, failures with their root cause, and what the
answer to a failure sees of where its step said to go on."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from perdure.cooperation import Failure, NextStep, Operation, Scope, go_on, go_to, repeat
from perdure.errors import ScopeFailed, UnstorableValue
from perdure.models.cooperation.message_events import State
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_cooperation_engine import Diary, agree
from tests.cooperation.test_order import world_of
from tests.cooperation.world import World

ROOT, CHILD, OTHER = topic("root"), topic("child"), topic("other")
Message = dict[str, Any]


def pricing(name: str, on: Any, price: int) -> Operation[Message]:
    made = Operation(name, on)

    @made.step
    def quote(scope: Scope, message: Message) -> None:
        scope.return_value("price", price)

    return made


def test_a_parent_reads_values_by_handler_and_by_topic(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.emit(CHILD, {})
            scope.emit(OTHER, {})

        @root.step
        def compare(scope: Scope, message: Message) -> None:
            book.did(f"all {scope.returned('price', int)}")
            book.did(f"b {scope.returned('price', int, handler='b')}")
            book.did(f"child {scope.returned('price', int, topic=CHILD)}")
            book.did(f"other {scope.returned('price', int, topic='other')}")
            book.did(f"none {scope.returned('price', int, handler='b', topic=OTHER)}")

        offers = [pricing("a", CHILD, 1), pricing("b", CHILD, 2), pricing("c", OTHER, 3)]
        return world_of(book, root, *offers, **options)

    def check(world: World) -> None:
        assert world.log == ["all [1, 2, 3]", "b [2]", "child [1, 2]", "other [3]", "none []"]

    everywhere(scenario, check)


async def test_who_emits_from_outside_reads_what_the_handlers_returned(source: StoreSource) -> None:
    operations = [pricing("a", ROOT, 1), pricing("b", ROOT, 2), Diary().operation("c", ROOT, [], fails_at=0)]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed):
            await root.finished()
        assert sorted(await root.returned("price", int)) == [1, 2]
        assert await root.returned("price", int, handler="b") == [2]
        assert await root.returned("rebate", int) == []
        with pytest.raises(UnstorableValue, match="what 'b' has returned as 'price' does not fit the type"):
            await root.returned("price", str, handler="b")
        await root.roll_back()
        await env.settle()
        assert await root.returned("price", int) == []  # What is undone was not returned.
        await agree(env, *operations)


# ---------------------------------------------------------------------------------------------------------------------
# Where to go on after a child has failed


@pytest.mark.parametrize(
    ("says", "sees"),
    [
        (None, go_on()),
        (go_on(), go_on()),
        (go_to(3), go_to("last")),
        (go_to("timed"), go_to("timed")),
        (repeat(), repeat()),
    ],
)
@pytest.mark.parametrize("answers", [None, go_on(), go_to("last")])
def test_the_answer_to_a_failure_sees_the_next_step_and_may_replace_it(
    everywhere: Everywhere, says: NextStep | None, sees: NextStep, answers: NextStep | None
) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> NextStep | None:
            assert scope.next_step is None
            if scope.iteration:
                return go_to("last")
            scope.emit(CHILD, {})
            return says

        @ask.on_child_failure
        def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> NextStep | None:
            assert scope.next_step == (sees if attempt == 1 or answers is None else answers)
            if attempt == 1:
                scope.emit(CHILD, {})  # It fails too, and this is called again.
                return answers
            return None

        @root.step
        def following(scope: Scope, message: Message) -> NextStep:
            book.did("following")
            return go_to("last")

        @root.step(at=datetime.fromtimestamp(1_100, UTC))
        def timed(scope: Scope, message: Message) -> NextStep:
            book.did("timed")
            return go_to("last")

        @root.step
        def last(scope: Scope, message: Message) -> None:
            book.did("last")

        return world_of(book, root, operation(book, "child", CHILD, [[]], fails_at=0), **options)

    goes = answers or sees

    def check(world: World) -> None:
        if goes == go_on():
            assert world.log == ["following", "last"]
        elif goes == go_to("timed"):
            assert world.log == ["timed", "last"]
        else:
            assert world.log == ["last"]
        assert world.state("root") is State.COMMITTED

    everywhere(scenario, check, seeds=2)


# ---------------------------------------------------------------------------------------------------------------------
# Root causes


async def test_the_error_names_the_root_cause_in_its_first_line(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [])
    child = diary.operation("child", CHILD, [OTHER], [])
    leaf = diary.operation("leaf", OTHER, [], [], fails_at=1)
    async with Environment([root, child, leaf], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed) as caught:
            await emitted.finished()
        (run,) = (await env.engine.runs.list(workflow="leaf")).runs
        first, second = str(caught.value).splitlines()
        assert first == f"ValueError: leaf failed in step 's1' of leaf[{run.id}]"
        assert second.startswith("ChildRolledBack: 1 handler of messages from step 's0' failed")
        assert caught.value.failure.root_cause.step == "s1"


async def test_the_root_cause_is_what_could_not_be_undone(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [], fails_at=1)
    child = Operation("child", CHILD)

    @child.step
    async def pay(scope: Scope, message: Message) -> None: ...

    @pay.rollback
    async def pay_back(scope: Scope, message: Message, cause: Failure) -> None:
        raise OSError("the bank is closed")

    async with Environment([root, child], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed) as caught:
            await emitted.finished()
        first = str(caught.value).splitlines()[0]
        assert first.startswith("OSError: the bank is closed in step 'Rollback of pay[0,]' of child[")


async def test_the_root_cause_of_a_cancelled_hierarchy_is_who_cancelled_it(source: StoreSource) -> None:
    root = Diary().operation("root", ROOT, [CHILD], [])
    async with Environment([root], source) as env:
        await env.engine.topics.register(CHILD, "person")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        await emitted.cancel("no longer wanted")
        with pytest.raises(ScopeFailed) as caught:
            await emitted.finished()
        assert str(caught.value).splitlines()[0] == "CancellationRequested: no longer wanted in api"


def test_the_root_cause_of_an_exception_is_what_the_step_raised() -> None:
    inner = Failure(type="KeyError", message="'sku'", source="child[c]", step="pay")
    raised = Failure(type="ValueError", message="unknown", source="child[c]", step="pay", causes=(inner,))
    wrapped = Failure(type="ChildRolledBack", message="1 handler failed", source="root[r]", causes=(raised,))
    answered = Failure(type="OrderLost", message="sorry", source="root[r]", step="ask", causes=(wrapped,))
    assert raised.root_cause is raised
    assert wrapped.root_cause is raised
    assert answered.root_cause is raised
    assert str(answered.error()) == (
        "ValueError: unknown in step 'pay' of child[c]\nOrderLost: sorry in step 'ask' of root[r]"
    )
