"""What is asked from outside: cancel, undo, complete instead of a handler; and what time does: deadlines, windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from perdure.cooperation import (
    Context,
    Deadline,
    Failure,
    Historical,
    Operation,
    Scope,
    Strategy,
    TimeWindow,
)
from perdure.errors import Misuse, RunFinished
from perdure.models.cooperation.deadlines import HAPPY_DEADLINE, ROLLBACK_DEADLINE
from perdure.models.cooperation.machine import next_move
from perdure.models.cooperation.message_events import EventType, State
from perdure.models.cooperation.missing_handlers import complete, complete_rollback, dismiss, join
from perdure.models.cooperation.moves import Dismiss, Take, Wait, Writes
from tests.cooperation.everywhere import Everywhere
from tests.cooperation.shop import Book, operation, topic
from tests.cooperation.test_order import only, world_of
from tests.cooperation.world import SECOND, World

ROOT, CHILD, GRANDCHILD = topic("root"), topic("child"), topic("grandchild")
Message = dict[str, Any]


class Uncancellable(Strategy):
    def heeds(self, reasons: Sequence[Failure]) -> Sequence[Failure]:
        return ()


def once(when: Callable[[World], bool], then: Callable[[World], object]) -> Callable[[World], None]:
    """Do something right after the first commit at which it is time for it."""
    done = False

    def look(world: World) -> None:
        nonlocal done
        if not done and when(world):
            done = True
            then(world)

    return look


def running(
    book: Book, *operations: Operation[Any], context: Context | None = None, started: bool = True, **options: Any
) -> World:
    book.world = World(*operations, **options)
    if started:
        book.world.emit(ROOT, {}, context or Context())
    return book.world


def quiet(world: World) -> None:
    while world.act():
        pass


# ---------------------------------------------------------------------------------------------------------------------
# Cancel


def test_cancelling_the_root_undoes_all_of_it_wherever_it_is(everywhere: Everywhere) -> None:
    """At every commit: whatever the runs are doing then, nothing is half done afterwards."""
    book = Book()

    def scenario(*, cancel_at: int = 6, **options: Any) -> World:
        world = running(
            book,
            operation(book, "root", ROOT, [[CHILD], []]),
            operation(book, "a", CHILD, [[GRANDCHILD], []]),
            operation(book, "b", CHILD, [[]]),
            operation(book, "leaf", GRANDCHILD, [[]]),
            **options,
        )
        world.on_commit.append(
            once(
                lambda world: world.commits >= cancel_at,
                lambda world: world.cancel(world.events[0].cooperation_lineage),
            )
        )
        return world.run()

    def check(world: World) -> None:
        states = set(world.states().values())
        assert states in ({State.ROLLED_BACK}, {State.COMMITTED})
        if states == {State.ROLLED_BACK}:
            done = [line for line in world.log if "undo" not in line]
            undone = [line.replace(" undo", "") for line in world.log if "undo" in line]
            assert sorted(done) == sorted(undone)
            assert any(one.type == "CancellationRequested" for one in world.failure("root").walk())

    for cancel_at in range(2, 20):
        for seed in (None, 1, 2):
            check(scenario(cancel_at=cancel_at, seed=seed, late=seed == 2))
    for cancel_at in everywhere.few(range(2, 12)):
        everywhere.on_engines(partial(scenario, cancel_at=cancel_at), check)


def test_cancelling_a_part_is_a_failure_for_the_rest(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def ask(scope: Scope, message: Message) -> None:
            scope.emit(CHILD, {})

        @ask.on_child_failure
        def note(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
            book.did(f"root {failure.causes[0].type} {failure.causes[0].causes[0].message}")

        world = running(book, root, operation(book, "child", CHILD, [[], []]), **options)
        world.on_commit.append(
            once(
                lambda world: world.log[-1:] == ["child 0"],
                lambda world: world.cancel(world.run_of("child").lineage, "too slow"),
            )
        )
        return world.run()

    def check(world: World) -> None:
        assert [line for line in world.log if line != "child 1"] == ["child 0", "child undo 0", "root GaveUp too slow"]
        assert world.states() == {"root": State.COMMITTED, "child": State.ROLLED_BACK}

    check(scenario())
    for seed in range(10):
        world = scenario(seed=seed)
        assert world.log[-2:] == ["child undo 0", "root GaveUp too slow"]

    def check_on_engine(world: World) -> None:
        if world.state("child") is State.ROLLED_BACK:
            check(world)
        else:  # Its process died before it had asked for the cancellation.
            assert world.log == ["child 0", "child 1"]

    everywhere.on_engines(scenario, check_on_engine)


def test_what_has_ended_cannot_be_cancelled() -> None:
    book = Book()
    world = world_of(book, operation(book, "root", ROOT, [[]]))
    assert not world.cancel(world.run_of("root").lineage)
    assert world.run().state("root") is State.COMMITTED


def test_a_child_that_was_not_taken_when_it_is_cancelled_never_begins(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        book.world = world = World(operation(book, "root", ROOT, [[CHILD]]), **options)
        world.registry[CHILD.name].add("child")  # Its service is down.
        world.emit(ROOT, {})
        world.run()
        world.cancel(world.run_of("child").lineage)
        if isinstance(world, World):
            world.plans["child"] = (child := operation(book, "child", CHILD, [[]]), child.plan)
        return world.run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "root undo 0"]
        assert [row.type for row in world.rows_of("child")] == [
            *[EventType.CANCELLATION_REQUESTED, EventType.SEEN, EventType.ROLLING_BACK, EventType.ROLLED_BACK]
        ]

    everywhere(scenario, check)


def test_a_strategy_of_ones_own_may_not_heed_a_cancellation(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = operation(book, "root", ROOT, [[], []], strategy=Uncancellable())
        world = running(book, root, **options)
        world.on_commit.append(
            once(lambda world: world.log == ["root 0"], lambda world: world.cancel(world.events[0].cooperation_lineage))
        )
        return world.run()

    def check(world: World) -> None:
        assert world.state("root") is State.COMMITTED

    everywhere(scenario, check)


def test_a_long_step_gives_up_in_the_middle_when_it_asks() -> None:
    book = Book()
    root = Operation("root", ROOT)

    @root.step
    def long(scope: Scope, message: Message) -> None:
        book.did("begun")
        book.world.cancel(scope.lineage)
        scope.give_up_if_needed()
        book.did("went on")

    world = running(book, root).run()
    assert (world.log, world.state("root")) == ([], State.ROLLED_BACK)
    assert world.failure("root").type == "GaveUp"
    assert "went on" not in world.trouble


# ---------------------------------------------------------------------------------------------------------------------
# Deadlines


def until(seconds: int, *, rollback: bool = False) -> Context:
    key = ROLLBACK_DEADLINE if rollback else HAPPY_DEADLINE
    return Context().put(key, Deadline(at=seconds * SECOND, source="test"))


def test_a_missed_deadline_rolls_back_all_that_inherited_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = operation(book, "root", ROOT, [[CHILD], []])
        child = Operation("child", CHILD)

        @child.step
        def work(scope: Scope, message: Message) -> None:
            book.did("child work")

        @work.rollback
        def unwork(scope: Scope, message: Message, cause: Failure) -> None:
            book.did(f"child unwork {cause.causes[0].type}")

        child.sleep(timedelta(seconds=60))
        return running(book, root, child, context=until(1_030), **options).run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "child work", "child unwork DeadlineMissed", "root undo 0"]
        assert set(world.states().values()) == {State.ROLLED_BACK}
        assert world.now == 1_030 * SECOND

    everywhere(scenario, check)


@pytest.mark.parametrize("first", ["deadline", "start"])
def test_a_deadline_that_meets_a_childs_start_leaves_nothing_half_done(first: str) -> None:
    """The parent's own deadline, which the child does not share: it was set after the emission."""
    book = Book()
    root = Operation("root", ROOT)

    @root.step
    def ask(scope: Scope, message: Message) -> None:
        scope.emit(CHILD, {})
        scope.deadline(timedelta(seconds=5))

    child = operation(book, "child", CHILD, [[GRANDCHILD], []])
    leaf = Operation("leaf", GRANDCHILD)
    leaf.sleep(timedelta(days=1))
    world = running(book, root, child, leaf)
    world.down.add("child")
    quiet(world)
    if first == "start":
        # It is taken in the very moment in which the parent gives up, and hears of that later.
        world.now += 5 * SECOND
        world._moves.clear()
        quiet_root = world.run_of("root")
        while world.state("root") is State.ACTIVE:
            world.commit(Writes(rows=world.move(quiet_root).rows))
        stale = world.view(world.run_of("child"))
        world.commit(Writes(rows=(world.move(quiet_root)).rows))
        late = next_move(world.plans["child"][1], stale)
        assert isinstance(late, Take)
        world.commit(Writes(rows=late.rows))
        world.down.clear()
        world.run()
        assert world.state("child") is State.ROLLED_BACK
    else:
        world.run()
        assert world.state("root") is State.ROLLING_BACK  # It waits for the child's word.
        world.down.clear()
        world.run()
        assert [row.type for row in world.rows_of("child")] == [
            *[EventType.SEEN, EventType.ROLLING_BACK, EventType.ROLLED_BACK]
        ]
    assert set(world.states().values()) == {State.ROLLED_BACK}
    assert only(world.log, "child") == []


def test_the_earliest_deadline_counts_and_keeps_the_others(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def begin(scope: Scope, message: Message) -> None:
            scope.deadline(timedelta(seconds=10), path="both")
            scope.deadline(timedelta(seconds=99))
            found = scope.get(HAPPY_DEADLINE)
            assert found is not None
            book.did(f"{found.at // SECOND} {[one.at // SECOND for one in found.trace]}")

        return running(book, root, context=until(1_050), **options).run()

    def check(world: World) -> None:
        assert world.log == ["1010 [1050, 1099]"]

    everywhere(scenario, check)


def test_a_missed_deadline_of_the_rollback_is_a_failed_rollback(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = operation(book, "root", ROOT, [[], [CHILD], []], fails_at=2)
        child = Operation("child", CHILD)

        @child.step
        def work(scope: Scope, message: Message) -> None: ...

        @work.rollback
        def unwork(scope: Scope, message: Message, cause: Failure) -> None:
            book.did("child unwork")
            scope.sleep(timedelta(seconds=60))

        return running(book, root, child, context=until(1_030, rollback=True), **options).run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "root 1", "child unwork"]
        assert set(world.states().values()) == {State.ROLLBACK_FAILED}
        assert "the deadline of the rollback was 1970-01-01T00:17:10" in str(world.failure("root"))

    everywhere(scenario, check)


def test_what_a_rollback_emits_is_not_stopped_by_what_began_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = Operation("root", ROOT)

        @root.step
        def pay(scope: Scope, message: Message) -> None:
            book.did("pay")

        @pay.rollback
        def refund(scope: Scope, message: Message, cause: Failure) -> None:
            scope.emit(CHILD, {})

        root.sleep(timedelta(days=1))
        refunds = operation(book, "refund", CHILD, [[GRANDCHILD], []])
        leaf = operation(book, "leaf", GRANDCHILD, [[]])
        world = running(book, root, refunds, leaf, context=until(1_500), **options)
        world.on_commit.append(
            once(lambda world: world.log == ["pay"], lambda world: world.cancel(world.events[0].cooperation_lineage))
        )
        return world.run()

    def check(world: World) -> None:
        if world.log:
            assert world.log == ["pay", "refund 0", "leaf 0", "refund 1"]
        assert world.state("root") is State.ROLLED_BACK

    everywhere(scenario, check)


# ---------------------------------------------------------------------------------------------------------------------
# Undo


def committed(book: Book, **options: Any) -> World:
    return world_of(
        book,
        operation(book, "root", ROOT, [[CHILD], []]),
        operation(book, "a", CHILD, [[GRANDCHILD], []]),
        operation(book, "b", CHILD, [[]]),
        operation(book, "leaf", GRANDCHILD, [[]]),
        **options,
    )


def test_a_committed_hierarchy_is_undone_on_request(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = committed(book, **options)
        world.log.clear()
        world.roll_back(world.events[0].cooperation_lineage, "changed my mind")
        return world.run()

    def check(world: World) -> None:
        back = [line for line in world.log if "undo" in line]
        assert only(back, "root", "a", "leaf") == [
            *["root undo 1", "a undo 1", "leaf undo 0", "a undo 0", "root undo 0"]
        ]
        assert set(world.states().values()) == {State.ROLLED_BACK}
        assert world.failure("root").type == "RollbackRequested"

    world = everywhere(scenario, check)
    assert not world.roll_back(world.events[0].cooperation_lineage)


def test_a_part_is_undone_on_request_and_not_again_with_the_whole(everywhere: Everywhere) -> None:
    book = Book()
    between: dict[str, State] = {}

    def scenario(**options: Any) -> World:
        world = committed(book, **options)
        world.log.clear()
        world.roll_back(world.run_of("a").lineage)
        world.run()
        between.update(world.states())
        world.roll_back(world.events[0].cooperation_lineage)
        return world.run()

    def check(world: World) -> None:
        assert world.log[:3] == ["a undo 1", "leaf undo 0", "a undo 0"]
        assert between == {
            "root": State.COMMITTED,
            "b": State.COMMITTED,
            "a": State.ROLLED_BACK,
            "leaf": State.ROLLED_BACK,
        }
        assert world.log[3:] == ["root undo 1", "b undo 0", "root undo 0"]

    everywhere(scenario, check)


def test_what_is_still_at_work_is_not_undone_on_request() -> None:
    book = Book()
    refused: list[bool] = []
    world = running(book, operation(book, "root", ROOT, [[CHILD], []]), operation(book, "a", CHILD, [[], []]))
    world.on_commit.append(
        lambda world: (
            refused.append(world.roll_back(world.events[0].cooperation_lineage))
            if world.state("root") is State.ACTIVE
            else None
        )
    )
    world.run()
    assert len(refused) > 5
    assert not any(refused)


# ---------------------------------------------------------------------------------------------------------------------
# Handlers that are absent, external, late


def waiting_for(book: Book, *handlers: str, fails_at: int | None = None, **options: Any) -> World:
    """A root that waits for handlers whose code nobody has."""
    book.world = world = World(operation(book, "root", ROOT, [[CHILD], []], fails_at=fails_at), **options)
    for handler in handlers:
        world.registry[CHILD.name].add(handler)
    world.emit(ROOT, {})
    return world.run()


def test_a_handler_that_is_absent_is_waited_for_and_can_be_taken_out_for_later_messages(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "human", **options)
        assert world.log == ["root 0"]
        world.retire(CHILD, "human")
        world.emit(ROOT, {})
        return world.run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "root 0", "root 1"]
        assert [world.state("root", number) for number in range(2)] == [State.ACTIVE, State.COMMITTED]
        assert world.state("human") is State.CREATED

    world = everywhere(scenario, check)
    assert isinstance(world.move(world.run_of("root")), Wait)


def test_an_external_party_completes_a_handler_and_undoes_it(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "human", fails_at=1, **options)
        world.complete("human")
        world.run()
        assert world.state("human") is State.COMMITTED
        assert world.state("root") is State.ROLLING_BACK
        world.complete_rollback("human")
        return world.run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "root undo 0"]
        assert set(world.states().values()) == {State.ROLLED_BACK}

    world = everywhere(scenario, check)
    with pytest.raises(RunFinished):
        complete(world.view(world.run_of("human")))
    with pytest.raises(Misuse, match="not completed by an external party"):
        complete_rollback(world.view(world.run_of("human")))


def test_an_external_party_fails_a_handler(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = waiting_for(book, "human", "other", **options)
        world.complete("other")
        world.fail("human", "by the boss")
        world.run()
        world.complete_rollback("other")
        return world.run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "root undo 0"]
        assert world.failure("root").causes[0].message == "by the boss"
        assert set(world.states().values()) == {State.ROLLED_BACK}

    everywhere(scenario, check)


def test_a_missed_deadline_reaches_a_child_whose_service_is_down(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        world = running(book, operation(book, "root", ROOT, [[], [CHILD], []]), started=False, **options)
        world.registry[CHILD.name].add("absent")
        world.emit(ROOT, {}, until(1_030))
        return world.run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "root 1", "root undo 1", "root undo 0"]
        assert set(world.states().values()) == {State.ROLLED_BACK}

    everywhere.on_engines(scenario, check)


def test_a_handler_that_was_taken_is_not_completed_from_outside() -> None:
    book = Book()
    world = running(book, operation(book, "root", ROOT, [[], []]))
    world.act()
    with pytest.raises(Misuse, match="was taken by its handler, and is active"):
        complete(world.view(world.run_of("root")))


def test_a_time_window_ends_for_those_who_have_not_begun(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = operation(book, "root", ROOT, [[CHILD], []], strategy=TimeWindow(timedelta(seconds=30)))
        book.world = World(root, operation(book, "prompt", CHILD, [[]]), **options)
        book.world.registry["child"].add("absent")
        book.world.emit(ROOT, {})
        return book.world.run()

    def check(world: World) -> None:
        assert world.log == ["root 0", "prompt 0", "root 1"]
        assert world.now == 1_030 * SECOND
        assert world.state("absent") is State.DISMISSED
        assert world.state("root") is State.COMMITTED

    everywhere(scenario, check)


def test_who_begins_as_the_window_closes_is_waited_for() -> None:
    book = Book()
    root = operation(book, "root", ROOT, [[CHILD], []], strategy=TimeWindow(timedelta(seconds=30)))
    world = running(book, root, operation(book, "child", CHILD, [[], []]))
    world.down.add("child")
    quiet(world)
    world.now += 30 * SECOND
    world._moves.clear()
    assert isinstance(world.move(world.run_of("root")), Dismiss)
    child = world.run_of("child")
    world.commit(Writes(rows=world.move(child).rows))  # It takes the message before the word reaches it.
    assert dismiss(world.view(child)) == ()
    assert isinstance(world.move(world.run_of("root")), Wait)
    world.down.clear()
    world.run()
    assert world.log == ["root 0", "child 0", "child 1", "root 1"]


def test_the_historical_strategy_expects_who_came_before(everywhere: Everywhere) -> None:
    book = Book()

    def scenario(**options: Any) -> World:
        root = operation(book, "root", ROOT, [[CHILD], []], strategy=Historical())
        world = running(book, root, operation(book, "child", CHILD, [[]]), **options)
        world.run()
        for later in (CHILD, ROOT):
            world.emit(later, {})
            world.run()
        return world

    def check(world: World) -> None:
        assert world.log == ["root 0", "root 1", "child 0", "root 0", "child 0", "root 1"]

    world = everywhere(scenario, check)
    book.world = world
    world.retire(CHILD, "child")
    world.emit(ROOT, {})
    assert world.run().log[6:] == ["root 0", "root 1"]


def test_a_handler_that_registers_late_may_join_while_its_emitter_waits() -> None:
    book = Book()
    plain = operation(book, "root", ROOT, [[CHILD], []])
    world = running(book, plain, operation(book, "child", CHILD, [[]]))
    world.down.add("child")
    world.registry["child"] = {"child"}
    quiet(world)
    emitter, message_id = world.run_of("root"), world.run_of("child").message_id
    assert join(plain.plan, world.view(emitter), message_id, "child", "x") is None  # It has a run already.
    late = join(plain.plan, world.view(emitter), message_id, "late", "x")
    assert late is not None
    assert late.lineage == (*emitter.lineage, "x")
    world.down.clear()
    world.run()
    assert join(plain.plan, world.view(emitter), message_id, "late", "y") is None  # Its emitter has gone on.


def test_a_store_that_fails_is_not_a_failure_of_the_step() -> None:
    """A commit that does not land leaves no ROLLING_BACK: the step is simply run again."""
    book = Book()
    world = running(book, operation(book, "root", ROOT, [[], []]), crash_at=3)
    world.run()
    assert world.trouble == ["root 0"]
    assert world.log == ["root 0", "root 1"]
    assert EventType.ROLLING_BACK not in {row.type for row in world.events}
