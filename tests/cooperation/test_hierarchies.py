"""Random hierarchies with random failures, in random orders with crashes: each ends as a whole, undone in reverse."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any

from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from msgspec import Struct

from perdure.cooperation import Failure, Operation, Scope, Topic, go_on, repeat
from perdure.kernel.lineages import covers
from perdure.models.cooperation.message_events import EventType, MessageEvent, State, state_of
from perdure.models.cooperation.moves import NewRun
from tests.cooperation.shop import Book, topic
from tests.cooperation.world import World

Message = dict[str, Any]
LEVELS = 3
TOPICS = [topic(f"level {level}") for level in range(LEVELS)]


class StepSpec(Struct, frozen=True):
    emits: int = 0
    repeats: int = 0
    fails: bool = False
    undo_fails: bool = False
    undo_emits: bool = False
    answer: str = "none"  # to failures of children: none | ignore | retry
    cleans: bool = False


class OperationSpec(Struct, frozen=True):
    level: int
    steps: tuple[StepSpec, ...]
    policy: str = "halt"


def specs(*, faulty_undo: bool) -> st.SearchStrategy[tuple[OperationSpec, ...]]:
    def steps(level: int) -> st.SearchStrategy[StepSpec]:
        return st.builds(
            StepSpec,
            emits=st.integers(0, 2 if level == 0 else 1) if level < LEVELS - 1 else st.just(0),
            repeats=st.sampled_from([0, 0, 0, 1]),
            fails=st.sampled_from([False] * 5 + [True]),
            undo_fails=st.sampled_from([False] * 3 + [True]) if faulty_undo else st.just(False),
            undo_emits=st.sampled_from([False] * 4 + [True]) if faulty_undo and level < LEVELS - 1 else st.just(False),
            answer=st.sampled_from(["none", "none", "ignore", "retry"]),
            cleans=st.sampled_from([False, False, True]),
        )

    def operations(level: int) -> st.SearchStrategy[list[OperationSpec]]:
        one = st.builds(
            OperationSpec,
            level=st.just(level),
            steps=st.lists(steps(level), min_size=1, max_size=2).map(tuple),
            policy=st.sampled_from(["halt", "continue"]),
        )
        return st.lists(one, min_size=1, max_size=1 if level == 0 else 2)

    return st.tuples(*map(operations, range(LEVELS))).map(lambda levels: tuple(chain(*levels)))


def build(book: Book, name: str, spec: OperationSpec) -> Operation[Message]:
    made = Operation(name, TOPICS[spec.level], policy=spec.policy)  # type: ignore[arg-type]
    below: Topic[Message] | None = TOPICS[spec.level + 1] if spec.level < LEVELS - 1 else None
    for number, step in enumerate(spec.steps):
        _add(book, made, number, step, below)
    return made


def _add(book: Book, made: Operation[Message], number: int, spec: StepSpec, below: Topic[Message] | None) -> None:
    def tell(scope: Scope, what: str) -> None:
        book.did(f"{scope.run_id} {what} {scope.step} {scope.iteration}")

    def invoke(scope: Scope, message: Message) -> Any:
        tell(scope, "do")
        for _ in range(spec.emits):
            assert below is not None
            scope.emit(below, {})
        if spec.fails:
            raise ValueError("a step fails")
        return repeat() if scope.iteration < spec.repeats else go_on()

    step = made.step(name=f"s{number}")(invoke)

    @step.rollback
    def undo(scope: Scope, message: Message, cause: Failure) -> None:
        tell(scope, "undo")
        if spec.undo_emits and below is not None:
            scope.emit(below, {})
        if spec.undo_fails:
            raise OSError("a rollback fails")

    if spec.answer != "none":

        @step.on_child_failure
        def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
            if spec.answer == "retry":
                if attempt > 1:
                    raise failure.error()
                if below is not None and not scope.rolling_back:
                    scope.emit(below, {})

    if spec.cleans:

        @step.finally_
        def tidy(scope: Scope, message: Message) -> None:
            tell(scope, "tidy")


def play(specs: tuple[OperationSpec, ...], **options: Any) -> World:
    book = Book()
    operations = [build(book, f"o{place}", spec) for place, spec in enumerate(specs)]
    cancel_at = options.pop("cancel_at", None)
    book.world = world = World(*operations, **options)

    def cancelling(world: World) -> None:
        if world.commits == cancel_at:
            world.cancel(world.events[0].cooperation_lineage)

    world.on_commit.append(cancelling)
    world.emit(TOPICS[0], {})
    return world.run()


# ---------------------------------------------------------------------------------------------------------------------
# What must hold


class Executed(Struct, frozen=True):
    """One committed execution of a step, with what it and the answers to its children's failures emitted."""

    run: NewRun
    step: str
    iteration: int
    emitted: tuple[str, ...]
    answered: bool


def executions(world: World, run: NewRun) -> Iterator[Executed]:
    """Read from the rows, without the help of the rules."""
    emitted: list[str] = []
    last: Executed | None = None
    before = ("", 0)
    for row in world.hierarchy().own(run.lineage):
        if row.type is EventType.ROLLING_BACK:
            break
        if row.type is EventType.EMITTED:
            emitted.append(row.message_id)
        if row.type is EventType.SUSPENDED:
            if row.child_failure_handler_iteration is not None:
                assert last is not None
                last = Executed(run, last.step, last.iteration, (*last.emitted, *emitted), True)
            else:
                if last is not None:
                    yield last
                step = row.step or ""
                if not step.endswith("(finally)"):
                    before = (step, before[1] + 1 if before[0] == step else 0)
                last = Executed(run, step, before[1], tuple(emitted), False)
            emitted = []
    if last is not None:
        yield last


def check_ended(world: World) -> None:
    hierarchy = world.hierarchy()
    for run in world.runs:
        rows = hierarchy.own(run.lineage)
        assert state_of(rows) in {State.COMMITTED, State.ROLLED_BACK, State.ROLLBACK_FAILED}, run


def check_whole(world: World, *, faulty_undo: bool) -> None:
    """A committed run has committed children, but for failures that it answered; one that rolled back has none that did
    not, but for what its rollback emitted."""
    hierarchy = world.hierarchy()
    states = {run.lineage: state_of(hierarchy.own(run.lineage)) for run in world.runs}
    for run in world.runs:
        for executed in executions(world, run):
            below = [one for one in world.runs if one.message_id in executed.emitted]
            if states[run.lineage] is State.COMMITTED and not executed.answered:
                assert all(states[one.lineage] is State.COMMITTED for one in below)
            if states[run.lineage] is State.ROLLED_BACK:
                allowed = {State.ROLLED_BACK, State.ROLLBACK_FAILED} if faulty_undo else {State.ROLLED_BACK}
                assert all(states[one.lineage] in allowed for one in below)
    if not faulty_undo and not any(_is_of_rollback(world, run) for run in world.runs):
        assert State.ROLLBACK_FAILED not in states.values()


def _is_of_rollback(world: World, run: NewRun) -> bool:
    """Whether the run, or one above it, handles what a rollback emitted."""
    emitted = [row for row in world.events if row.type is EventType.EMITTED and row.message_id == run.message_id]
    if (emitted[0].step or "").startswith("Rollback of"):
        return True
    above = [one for one in world.runs if one.lineage == run.lineage[:-1]]
    return bool(above) and _is_of_rollback(world, above[0])


def check_undone_in_reverse(world: World) -> None:
    """Nothing twice; per run the newest first; and what an execution's children undo comes before its own undoing, and
    after that of every later execution."""
    assert len(set(world.log)) == len(world.log), "something was done or undone twice"
    places = {line: place for place, line in enumerate(world.log)}
    for run in world.runs:
        done = [one for one in executions(world, run) if f"{run.id} do {one.step} {one.iteration}" in places]
        undone = [line.replace(" undo ", " do ") for line in world.log if line.startswith(f"{run.id} undo ")]
        expected = [f"{run.id} do {one.step} {one.iteration}" for one in reversed(done)]
        assert undone == [line for line in expected if line in undone]
        if state_of(world.hierarchy().own(run.lineage)) is State.ROLLED_BACK:
            assert undone == expected
        bound = len(world.log)
        for one in done:
            own = places.get(f"{run.id} undo {one.step} {one.iteration}")
            below = _undoing_below(world, one, places)
            if own is not None:
                assert all(place < own for place in below)
                assert own < bound
                bound = own
            if below and own is not None:
                later = [
                    places[f"{run.id} undo {other.step} {other.iteration}"]
                    for other in done[done.index(one) + 1 :]
                    if f"{run.id} undo {other.step} {other.iteration}" in places
                ]
                by_itself = _failed_by_themselves(world, one)
                assert all(
                    place > other for place in below for other in later if _line_run(world, place) not in by_itself
                )


def _undoing_below(world: World, executed: Executed, places: dict[str, int]) -> list[int]:
    below = {
        one.id
        for top in world.runs
        if top.message_id in executed.emitted
        for one in world.runs
        if covers(top.lineage, one.lineage) and not _is_of_rollback(world, one)
    }
    return [place for line, place in places.items() if line.split()[0] in below and " undo " in line]


def _line_run(world: World, place: int) -> str:
    return world.log[place].split()[0]


def _failed_by_themselves(world: World, executed: Executed) -> set[str]:
    """Runs below that were undone because one of them failed, not because the parent said so."""
    found: set[str] = set()
    for top in world.runs:
        if top.message_id in executed.emitted:
            for one in world.runs:
                if covers(top.lineage, one.lineage) and not _told_by(world, executed, one):
                    found.add(one.id)
    return found


def _told_by(world: World, executed: Executed, run: NewRun) -> bool:
    """Whether every run from the executing one's child down to this one was told to roll back by the one above it."""
    hierarchy = world.hierarchy()
    for length in range(len(executed.run.lineage) + 1, len(run.lineage) + 1):
        rows: list[MessageEvent] = list(hierarchy.own(run.lineage[:length]))
        reasons = [row.exception.type for row in rows if row.type is EventType.ROLLING_BACK and row.exception]
        if reasons != ["ParentSaidSo"]:
            return False
    return True


def check(world: World, *, faulty_undo: bool) -> None:
    note(f"{world.states()}")
    check_ended(world)
    check_whole(world, faulty_undo=faulty_undo)
    check_undone_in_reverse(world)


OPTIONS = st.fixed_dictionaries(
    {
        "seed": st.one_of(st.none(), st.integers(0, 2**32)),
        "crash_at": st.one_of(st.none(), st.integers(2, 60)),
        "crash_after": st.booleans(),
        "late": st.booleans(),
        "cancel_at": st.one_of(st.none(), st.none(), st.integers(1, 60)),
    }
)
HARD = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.generate],  # Worlds are large: shrinking one takes minutes.
)


@HARD
@given(specs=specs(faulty_undo=False), options=OPTIONS)
def test_every_hierarchy_ends_committed_or_rolled_back_as_a_whole(
    specs: tuple[OperationSpec, ...], options: dict[str, Any]
) -> None:
    check(play(specs, **options), faulty_undo=False)


@HARD
@given(specs=specs(faulty_undo=True), options=OPTIONS)
def test_what_cannot_be_undone_stops_nothing_from_ending(
    specs: tuple[OperationSpec, ...], options: dict[str, Any]
) -> None:
    check(play(specs, **options), faulty_undo=True)
