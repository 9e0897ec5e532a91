"""Rollbacks of functions and graphs that wait for what they emitted to be undone: the wait is durable, and no step."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Limits, Retry, Workflow, compensate, current_run, first, resource, sleep, step, workflow
from perdure.api.emissions import suppress_emission
from perdure.api.outcomes import outcome_of
from perdure.cooperation import Failure, Operation, Scope, Topic, emit
from perdure.errors import RunCancelled, RunFailed, ScopeFailed
from perdure.graph import Graph, terminate
from perdure.graph import emit as emit_node
from perdure.kernel.batch import Batch
from perdure.models.bridges.function_emissions import emit_message
from perdure.models.functions.children import run_of as child_of
from perdure.testing import Environment, VirtualClock, run_with_crashes
from perdure.testing.environment import StoreSource
from perdure.testing.faults import Fault
from tests.cooperation import engines
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import run_of

ROOT, CHILD, UNDO, NEST = topic("root"), topic("child"), topic("undo"), topic("nest")
DONE: list[str] = []
Message = dict[str, Any]


@pytest.fixture(autouse=True)
def nothing_done() -> None:
    DONE.clear()


@step(retry=Retry.never())
async def release() -> None:
    DONE.append("release")


@workflow
async def checkout() -> None:
    await compensate(release())
    await emit(ROOT, {})
    raise ValueError("too late")


@workflow
async def patient() -> None:
    await compensate(release())
    await emit(ROOT, {})
    await sleep(timedelta(days=1))


def graph() -> Graph[Any, Any]:
    made = Graph("graph")
    made.node("order", emit_node(ROOT), input={})
    made.node("fail", terminate("failed", "'too late'"))
    made.edge("order", "fail")
    return made


def root() -> Operation[Message]:
    """An operation that asks people, and undoes what they did before what it did itself."""
    made = Operation("root", ROOT)

    @made.step
    async def ask(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    @ask.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        DONE.append("undo root")

    return made


async def seen(env: Environment, run_id: str = "r-1") -> tuple[str, str | None, int]:
    found = await env.engine.runs.get(run_id)
    assert found is not None
    return found.status, None if found.hold is None else found.hold.kind, found.recoveries


async def answered(env: Environment, call: Any) -> str:
    """The run of a person who has done what was asked for, and is now to undo it. The function rolls back."""
    await env.engine.topics.register(CHILD, "person")
    await env.engine.start(call, id="r-1")
    await env.settle()
    person = await run_of(env.engine, "person")
    await env.engine.topics.complete(person)
    await env.settle()
    return person


# ---------------------------------------------------------------------------------------------------------------------
# Waiting is no execution


@pytest.mark.parametrize("call", [checkout, graph()], ids=["function", "graph"])
async def test_a_rollback_that_waits_is_not_blamed_for_deaths(call: Any, source: StoreSource) -> None:
    async with Environment([call, root()], source, autojump_s=None, limits=Limits(recoveries_max=2)) as env:
        person = await answered(env, call() if call is checkout else call({}))
        for _ in range(5):
            assert await seen(env) == ("rolling_back", None, 0)
            assert env.engine.runtime.steps_running == 0
            await env.restart()
            await env.settle()
        await env.engine.topics.complete_rollback(person)
        await env.settle()
        assert await seen(env) == ("rolled_back", None, 0)
        assert (["undo root", "release"] if call is checkout else ["undo root"]) == DONE
        await env.check()


async def test_what_a_rollback_waits_for_is_shown(source: StoreSource) -> None:
    async with Environment([checkout, root()], source, autojump_s=None) as env:
        await answered(env, checkout())
        (wait,) = await env.engine.handle("r-1").waits()
        assert (wait.kind, wait.target) == ("run", await run_of(env.engine, "root"))


async def test_a_rollback_that_waits_is_reached_by_holds_and_by_nothing_else(source: StoreSource) -> None:
    async with Environment([checkout, root()], source, autojump_s=None) as env:
        person = await answered(env, checkout())
        assert not await env.engine.handle("r-1").cancel()  # It is being undone already.
        await env.engine.handle("r-1").update(deadline=timedelta(seconds=1))
        await env.advance(5)
        assert await seen(env) == ("rolling_back", None, 0)
        assert await env.engine.handle("r-1").pause()
        await env.engine.topics.complete_rollback(person)  # While it is held, and before it dies.
        await env.restart()
        await env.settle()
        assert await seen(env) == ("rolling_back", "paused", 0)
        assert DONE == ["undo root"]
        assert await env.engine.handle("r-1").resume()
        with pytest.raises(RunFailed, match="too late"):
            await env.engine.handle("r-1").result()
        assert DONE == ["undo root", "release"]
        await env.check()


async def test_rollbacks_wait_though_others_fill_the_memory(source: StoreSource) -> None:
    async with Environment([checkout, root()], source, autojump_s=None, limits=Limits(live_runs_max=1)) as env:
        await env.engine.topics.register(CHILD, "person")
        for number in range(4):
            await env.engine.start(checkout(), id=f"r-{number}")
        await env.settle()
        people = [run.id for run in (await env.engine.runs.list(workflow="person")).runs]
        for person in people:
            await env.engine.topics.complete(person)
        await env.settle()
        await env.restart()
        await env.settle()
        for person in people:
            await env.engine.topics.complete_rollback(person)
        await env.settle()
        assert [await seen(env, f"r-{number}") for number in range(4)] == [("rolled_back", None, 0)] * 4
        assert DONE.count("release") == 4
        await env.check()


async def test_another_engine_takes_over_a_rollback_that_waits(source: StoreSource) -> None:
    """Its engine signs off, and another one goes on."""
    async with Environment([checkout, root()], source, autojump_s=None) as env:
        person = await answered(env, checkout())
        await env.engine.shutdown()
        await env.restart()
        await env.settle()
        assert await seen(env) == ("rolling_back", None, 0)
        await env.engine.topics.complete_rollback(person)
        await env.settle()
        assert await seen(env) == ("rolled_back", None, 0)
        assert DONE == ["undo root", "release"]


async def test_what_cannot_be_undone_fails_the_rollback(source: StoreSource) -> None:
    made = Operation("root", ROOT)

    @made.step
    async def do(scope: Scope, message: Message) -> None: ...

    @do.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        DONE.append("undo root")
        raise OSError("it is gone")

    async with Environment([checkout, made], source) as env:
        await env.engine.start(checkout(), id="r-1")
        await env.settle()
        assert await seen(env) == ("rollback_failed", None, 0)
        assert DONE == ["undo root"]
        with pytest.raises(RunFailed, match="could not be undone by"):
            await env.engine.handle("r-1").result()


async def test_a_rollback_waits_for_one_that_was_begun_further_down(source: StoreSource) -> None:
    """A part of the hierarchy is being undone by hand, so that the whole cannot be undone yet."""
    child = Operation("child", CHILD)

    @child.step
    async def do(scope: Scope, message: Message) -> None: ...

    @do.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        DONE.append("undo child")
        await scope.emit(UNDO, {})

    async with Environment([patient, root(), child], source, autojump_s=None) as env:
        await env.engine.topics.register(UNDO, "person")
        await env.engine.start(patient(), id="r-1")
        await env.settle()
        assert await seen(env) == ("suspended", None, 0)
        assert await env.engine.handle(await run_of(env.engine, "child")).roll_back()
        await env.settle()
        assert await env.engine.handle("r-1").cancel()
        await env.settle()
        assert await seen(env) == ("rolling_back", None, 0)
        assert env.engine.runtime.steps_running == 0
        assert DONE == ["undo child"]
        await env.restart()
        await env.settle()
        await env.engine.topics.complete(await run_of(env.engine, "person"))
        await env.settle()
        assert await seen(env) == ("rolled_back", None, 0)
        assert DONE == ["undo child", "undo root", "release"]
        await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# Nests


@workflow
async def inner(left: int, wide: int) -> None:
    await emit(NEST, {"left": left, "wide": wide})


def nest() -> Operation[Message]:
    """Operations that start functions, which emit to operations, and so on; the last of them waits for a day."""
    made = Operation("nest", NEST)

    @made.step
    async def go_down(scope: Scope, message: Message) -> None:
        if message["left"]:
            for _ in range(message["wide"]):
                await scope.start(inner(message["left"] - 1, message["wide"]))
        else:
            scope.sleep(timedelta(days=1))

    @go_down.rollback
    async def come_up(scope: Scope, message: Message, cause: Failure) -> None:
        DONE.append(f"undo {message['left']}")

    return made


async def statuses(env: Environment) -> set[str]:
    found: set[str] = set()
    page = await env.engine.runs.list(limit=1000)
    found |= {run.status for run in page.runs}
    return found


@pytest.mark.parametrize(("levels", "wide"), [(6, 1), (1, 8), (3, 2)])
async def test_a_nest_is_undone_with_few_slots(levels: int, wide: int, source: StoreSource) -> None:
    async with Environment([inner, nest()], source, autojump_s=None, limits=Limits(steps_max=2)) as env:
        await env.engine.start(inner(levels, wide), id="r-1")
        await env.settle()
        assert await env.engine.handle("r-1").cancel()
        await env.settle()
        with pytest.raises(RunCancelled):
            await env.engine.handle("r-1").result()
        assert await statuses(env) == {"rolled_back"}
        assert wide > 1 or sorted(DONE) == DONE  # From below.
        assert len(DONE) == sum(wide**level for level in range(levels + 1))
        await env.check()


async def test_a_nest_that_has_succeeded_is_undone_with_few_slots(source: StoreSource) -> None:
    async with Environment([inner, nest()], source, limits=Limits(steps_max=2)) as env:
        root = await env.engine.emit(NEST, {"left": 6, "wide": 1})
        await root.finished()
        assert await root.roll_back()
        await env.settle()
        assert await statuses(env) == {"rolled_back"}
        assert [f"undo {left}" for left in range(7)] == DONE
        await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# Runs that earlier versions have left: there the step that asked for the rollback waited for it too


ENGINES: list[Engine] = []  # the last one runs


@step(name="perdure.undo_emission", retry=Retry(attempts=3, initial=timedelta(minutes=1)))
async def undo_as_before(topic: str, message_id: str) -> None:
    engine = ENGINES[-1]
    emitted = await suppress_emission(engine.session, Topic(topic, object), message_id)
    await engine.handle(emitted.id).cancel()
    ended = [(await outcome_of(engine.session, run_id))[0] for run_id in emitted.run_ids]
    if any(run.status == "succeeded" for run in ended):
        await engine.handle(emitted.id).roll_back()
        ended = [(await outcome_of(engine.session, run_id))[0] for run_id in emitted.run_ids]
    if any(run.status == "rollback_failed" for run in ended):
        raise ScopeFailed("what followed could not be undone")


async def emit_as_before(topic: Topic[Any], message: Any) -> None:
    payload, message_id = topic.write(message), str(current_run().uuid4())
    await compensate(undo_as_before(topic.name, message_id))
    emitted = await emit_message(topic.name, payload, message_id)
    for run_id in emitted.run_ids:
        await first(child_of(run_id))


def checkouts(emit: Any) -> Workflow[Any, Any]:
    """The workflow with `emit` as it is, or as it was. What it undoes last takes an hour."""

    @step(name="release", retry=Retry.never())
    async def release() -> None:
        await resource(VirtualClock).sleep(3600)
        DONE.append("release")

    @workflow(name="checkout", compensation="continue")
    async def checkout() -> None:
        await compensate(release())
        await emit(ROOT, {})
        raise ValueError("too late")

    return checkout


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    while not await is_so():
        await asyncio.sleep(0)


async def entries(env: Environment) -> list[tuple[str, str]]:
    """What the rollback has done."""
    journal = (await env.engine.handle("r-1").history()).journal
    return [(entry.kind, entry.name) for entry in journal if entry.position.startswith("undo.")]


@pytest.mark.parametrize("at", ["forward", "waiting", "done"])
async def test_runs_of_earlier_versions_go_on(at: str, source: StoreSource) -> None:
    """The message is being handled; the old step waits; the old step has done its work."""
    async with Environment([checkouts(emit_as_before), root()], source, autojump_s=None) as env:
        ENGINES.append(env.engine)
        await env.engine.topics.register(CHILD, "person")
        await env.engine.start("checkout", id="r-1")
        await env.settle()
        person = await run_of(env.engine, "person")
        if at != "forward":
            await env.engine.topics.complete(person)

            async def is_undoing() -> bool:
                return (await seen(env, person))[0] == "rolling_back"

            await until(is_undoing)
        if at == "done":
            await env.engine.topics.complete_rollback(person)
            await env.settle()
            assert await entries(env) == [("step", "perdure.undo_emission")]
        await env.restart([checkouts(emit), root()])
        await env.settle()
        if at == "forward":
            await env.engine.topics.complete(person)
            await env.settle()
        if at != "done":
            assert (await seen(env))[:2] == ("rolling_back", None)
            assert env.engine.runtime.steps_running == 0
            await env.engine.topics.complete_rollback(person)
            await env.settle()
        await env.advance(timedelta(hours=2))
        assert await seen(env) == ("rolled_back", None, 0)
        assert DONE == ["undo root", "release"]
        if at == "done":
            assert await entries(env) == [("step", "perdure.undo_emission"), ("step", "release")]
        await env.check()


@pytest.mark.parametrize("at", ["pausing", "failed"])
async def test_failures_of_earlier_versions_are_kept(at: str, source: StoreSource) -> None:
    """The old step waits for its next attempt; it has failed for good."""
    made = Operation("root", ROOT)

    @made.step
    async def do(scope: Scope, message: Message) -> None: ...

    @do.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        raise OSError("it is gone")

    async with Environment([checkouts(emit_as_before), made], source, autojump_s=None) as env:
        ENGINES.append(env.engine)
        await env.engine.start("checkout", id="r-1")
        await env.settle()
        (wait,) = await env.engine.handle("r-1").waits()
        assert (wait.kind, wait.name) == ("retry", "perdure.undo_emission")
        if at == "failed":
            await env.advance(timedelta(minutes=5))
            assert await entries(env) == [("step", "perdure.undo_emission")]
        await env.restart([checkouts(emit), made])
        await env.settle()
        await env.advance(timedelta(hours=2))
        assert (await seen(env))[:2] == ("rollback_failed", None)
        assert DONE == ["release"]
        await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# Crashes


class DeathAfterEach(Fault):
    """The process dies after each commit of a new kind: it is stored, and nothing of what follows it has begun.

    The next process starts on what is stored then. So one chain of deaths meets each state once, where a process that
    dies only once needs the whole scenario for each of them. A commit of a kind that came before is let through: what a
    recovery writes would be followed by the same recovery for ever.
    """

    def __init__(self, *, is_deadly: bool) -> None:
        super().__init__("before_effects")
        self.kinds: set[frozenset[str]] = set()
        self._is_deadly = is_deadly

    def strikes(self, batch: Batch) -> bool:
        kind = frozenset(written(batch))
        is_new = kind not in self.kinds
        self.kinds.add(kind)
        return is_new and self._is_deadly

    @property
    def written(self) -> frozenset[str]:
        return frozenset().union(*self.kinds)


def written(batch: Batch) -> Iterator[str]:
    """What a commit writes, without ids and times."""
    yield from (f"{write.run.workflow} is {write.run.status}" for write in batch.runs.values())
    yield from (f"entry {entry.kind} {entry.name}" for entry in batch.journal)
    yield from (f"wait {wait.kind} {wait.name}" for wait in batch.waits.values())
    if batch.cooperation is not None:
        yield from (f"{row.coroutine_name} {row.type} {row.step}" for row in batch.cooperation.events)


async def undone_by_a_person(env: Environment) -> tuple[str, list[str]]:
    engine = env.engine
    await engine.topics.register(CHILD, "person")
    await engine.start(checkout(), id="r-1")
    await env.settle()
    person = (await engine.runs.list(workflow="person")).runs[0]
    if person.status == "created":
        await engine.topics.complete(person.id)
        await env.settle()
    person = (await engine.runs.list(workflow="person")).runs[0]
    if person.status == "rolling_back":
        await engine.topics.complete_rollback(person.id)
    await env.settle()
    assert (await seen(env))[1:] == (None, 0)
    return (await seen(env))[0], sorted(set(DONE))


@pytest.mark.parametrize("on", ["memory", "sqlite"])
async def test_a_rollback_that_waits_survives_crashes_at_every_commit(on: str) -> None:
    report = await run_with_crashes(
        undone_by_a_person, workflows=[checkout, root()], store=engines.SOURCES[on], autojump_s=None
    )
    assert report.result == ("rolled_back", ["release", "undo root"])
    assert report.commits > 10


@pytest.mark.parametrize("on", ["memory", "sqlite", "postgres"])
async def test_a_rollback_that_waits_survives_a_crash_after_each_commit(on: str) -> None:
    """One process after the other dies. On Postgres this takes the place of the test above, which takes 43 engines."""
    peace = DeathAfterEach(is_deadly=False)
    async with Environment([checkout, root()], engines.SOURCES["memory"](), fault=peace, autojump_s=None) as env:
        expected = await env.survive(undone_by_a_person)
    deaths = DeathAfterEach(is_deadly=True)
    async with Environment([checkout, root()], engines.SOURCES[on](), fault=deaths, autojump_s=None) as env:
        assert await env.survive(undone_by_a_person) == expected == ("rolled_back", ["release", "undo root"])
        assert env.restarts == len(deaths.kinds)
        await env.check()
    assert len(peace.kinds) > 10
    assert peace.written <= deaths.written  # Whatever was written first, a death came right after it.


@pytest.mark.parametrize("on", ["memory", "sqlite"])
async def test_a_nest_that_is_cancelled_survives_crashes_at_every_commit(on: str) -> None:
    async def scenario(env: Environment) -> set[str]:
        await env.engine.start(inner(1, 1), id="r-1")
        await env.settle()
        await env.engine.handle("r-1").cancel()
        await env.settle()
        return await statuses(env)

    report = await run_with_crashes(
        scenario, workflows=[inner, nest()], store=engines.SOURCES[on], autojump_s=None, limits=Limits(steps_max=1)
    )
    assert report.result == {"rolled_back"}
    assert report.commits > 10
