"""Operations with versions: a run stays with the version that has begun it, on every store, also after a crash."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine
from perdure.cli.engines import code_of
from perdure.client import Client
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import DuplicateWorkflow, InvalidDefinition
from perdure.kernel.batch import Batch
from perdure.kernel.cooperation import MessageEventRow
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.faults import CRASH_POINTS, DEADLY, Fault, Point
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree
from tests.cooperation.test_identity import EarlierCode

ORDERS, CHILD, PARENT = topic("orders"), topic("child"), topic("parent")
Message = dict[str, Any]


def handler(diary: list[str], version: str = "", *, on: Topic[Message] = ORDERS) -> Operation[Message]:
    """Its first step emits for a person. The steps of versions differ."""
    made = Operation("work", on, version=version)

    @made.step(name=f"ask of {version}")
    async def ask(scope: Scope, message: Message) -> None:
        diary.append(f"ask {version}")
        if on is ORDERS:
            await scope.emit(CHILD, {})

    @ask.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        diary.append(f"undo {version}")

    @made.step(name=f"end of {version}")
    async def end(scope: Scope, message: Message) -> None:
        diary.append(f"end {version}")

    return made


async def redeploy(env: Environment, *operations: Operation[Any]) -> None:
    await env.restart(operations)
    await env.settle()


async def complete(engine: Engine, parent: str) -> None:
    """What the person does that the operation waits for."""
    (child,) = [run for run in (await engine.runs.list(workflow="person")).runs if run.parent_id == parent]
    await engine.topics.complete(child.id)


async def version_of(engine: Engine, run_id: str) -> str:
    view = await engine.runs.get(run_id)
    assert view is not None
    assert view.topic == "orders"
    return view.workflow_version


async def test_runs_stay_with_the_version_that_has_begun_them(make_store: Callable[[], Store]) -> None:
    diary: list[str] = []
    one, two = handler(diary, "1"), handler(diary, "2")
    async with Environment([one], make_store) as env:
        await env.engine.topics.register(CHILD, "person")
        old = await env.engine.emit(ORDERS, {})
        await env.settle()
        await redeploy(env, one, two)
        new = await env.engine.emit(ORDERS, {})
        await env.settle()
        assert await version_of(env.engine, old.run_ids[0]) == "1"
        assert await version_of(env.engine, new.run_ids[0]) == "2"
        for root in (old, new):
            await complete(env.engine, root.run_ids[0])
            await env.engine.handle(root.run_ids[0]).result()
        assert diary == ["ask 1", "ask 2", "end 1", "end 2"]
        assert await env.engine.handle(old.id).roll_back()  # What it did is undone by the same version, too.
        await env.settle()
        (child,) = [
            run for run in (await env.engine.runs.list(workflow="person")).runs if run.parent_id == old.run_ids[0]
        ]
        await env.engine.topics.complete_rollback(child.id)
        await env.settle()
        assert diary[4:] == ["undo 1"]
        assert (await env.engine.topics.handlers())["orders"] == ["work"]
        (engine,) = [engine for engine in await env.engine.engines.list() if engine.workflows]
        assert engine.workflows == [("work", "orders")]
        assert engine.versions == [("work", "orders", "1"), ("work", "orders", "2")]
        assert code_of(engine) == engine.versions
        await agree(env, one, two)


@pytest.mark.parametrize("begun_by", ["", "1"])
async def test_a_run_waits_for_its_version_and_says_so(
    make_store: Callable[[], Store], begun_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    diary: list[str] = []
    one, two = handler(diary, begun_by), handler(diary, "2")
    async with Environment([one], make_store) as env:
        await env.engine.topics.register(CHILD, "person")
        root = await env.engine.emit(ORDERS, {})
        (run_id,) = root.run_ids
        await env.settle()
        with caplog.at_level(logging.WARNING, "perdure"):
            await redeploy(env, two)
        which = f"operation 'work' version '{begun_by}'" if begun_by else "operation 'work'"
        reason = f"no engine has {which} on topic 'orders'"
        assert f"1 or more runs of operation 'work' do not go on: {reason}" in caplog.text
        await complete(env.engine, run_id)
        await env.settle()
        view = await env.engine.runs.get(run_id)
        assert view is not None
        assert view.hold is None
        assert view.stranded is not None
        assert view.stranded.startswith(reason)
        assert view.stranded.endswith("there are versions: '2'")
        assert ("code", view.stranded) in [(wait.kind, wait.name) for wait in await env.engine.handle(run_id).waits()]
        assert diary == [f"ask {begun_by}"]

        # Who waits for it is told.
        caplog.clear()
        said = asyncio.Event()

        class Watching(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                if "does not go on" in record.getMessage():
                    said.set()

        watching = Watching()
        logging.getLogger("perdure").addHandler(watching)
        waiting = asyncio.create_task(env.engine.handle(run_id).result())
        await asyncio.wait_for(said.wait(), 30)
        logging.getLogger("perdure").removeHandler(watching)
        assert reason in caplog.text

        async with Engine(make_store(), workflows=[one], clock=env.clock, poll_s=None) as other:
            await other.handle(run_id).result()
        await waiting
        assert diary == [f"ask {begun_by}", f"end {begun_by}"]
        await agree(env, one, two)


@pytest.mark.parametrize("listed", [("1", "2"), ("2", "1"), ("", "2"), ("2", "")])
async def test_what_nobody_has_begun_is_begun_by_the_version_listed_last(
    make_store: Callable[[], Store], listed: tuple[str, str]
) -> None:
    """From a client, from a step, and of a run that another service left."""
    diary: list[str] = []
    operations = [handler(diary, version) for version in listed]
    parent = Operation("parent", PARENT)

    @parent.step
    async def first(scope: Scope, message: Message) -> None:
        await scope.emit(ORDERS, {})

    async with Environment([*operations, parent], make_store) as env:
        async with Client(make_store(), clock=env.clock, poll_s=None) as client:
            await client.topics.retire(CHILD, "person")
            left = await client.emit(ORDERS, {})
        await env.engine.recover()
        await env.engine.handle(left.run_ids[0]).result()
        await (await env.engine.emit(ORDERS, {})).finished()
        await (await env.engine.emit(PARENT, {})).finished()
        assert diary == [f"ask {listed[1]}", f"end {listed[1]}"] * 3
        assert await version_of(env.engine, left.run_ids[0]) == listed[1]
        await agree(env, *operations, parent)


async def test_a_run_without_a_version_stays_with_code_without_one(make_store: Callable[[], Store]) -> None:
    diary: list[str] = []
    plain, two = handler(diary), handler(diary, "2")
    async with Environment([plain], make_store) as env:
        await env.engine.topics.register(CHILD, "person")
        root = await env.engine.emit(ORDERS, {})
        await env.settle()
        await redeploy(env, plain, two)
        await complete(env.engine, root.run_ids[0])
        await env.engine.handle(root.run_ids[0]).result()
        assert diary == ["ask ", "end "]
        assert await version_of(env.engine, root.run_ids[0]) == ""
        await agree(env, plain, two)


@pytest.mark.parametrize("begun_by", ["", "1"])
async def test_a_run_whose_process_died_in_a_step_is_left_to_its_version(
    make_store: Callable[[], Store], begun_by: str
) -> None:
    diary: list[str] = []
    stuck = Operation("work", ORDERS, version=begun_by)
    is_there, never = asyncio.Event(), asyncio.Event()

    @stuck.step
    async def wait(scope: Scope, message: Message) -> None:
        diary.append("wait")
        is_there.set()
        if len(diary) == 1:
            await never.wait()

    two = handler(diary, "2")
    async with Environment([stuck], make_store, autojump_s=None) as env:
        root = await env.engine.emit(ORDERS, {})
        (run_id,) = root.run_ids
        await is_there.wait()
        await redeploy(env, two)
        view = await env.engine.runs.get(run_id)
        assert view is not None
        assert (view.status, view.hold, view.workflow_version, diary) == ("running", None, begun_by, ["wait"])
        assert view.stranded is not None
        await redeploy(env, two, stuck)
        await env.engine.handle(run_id).result()
        assert diary == ["wait", "wait"]
        await agree(env, stuck, two)


@pytest.mark.parametrize("other", ["", "1"])
async def test_a_message_that_does_not_fit_the_last_version_holds_its_run_once(
    make_store: Callable[[], Store], other: str
) -> None:
    """The other version does not lift the hold of a run that it does not get."""
    diary: list[str] = []
    numbers = Operation("work", Topic("orders", int), version="2")

    @numbers.step
    async def count(scope: Scope, message: int) -> None:
        diary.append("count")

    texts = handler(diary, other)
    async with Environment([texts, numbers], make_store) as env:
        async with Client(make_store(), clock=env.clock, poll_s=None) as client:
            root = await client.emit(ORDERS, {})
        for _ in range(3):
            await env.engine.recover()
            await env.settle()
        view = await env.engine.runs.get(root.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert view.workflow_version == ""
        held = [one for one in await env.engine.handle(view.id).audit() if one.became == "blocked"]
        assert (len(held), diary) == (1, [])
        await redeploy(env, numbers, texts)
        await env.engine.handle(view.id).result()
        assert diary == [f"ask {other}", f"end {other}"]
        await agree(env, texts, numbers)


@pytest.mark.parametrize("is_taken", [False, True])
async def test_rows_of_earlier_versions_are_as_those_without_a_version(
    make_store: Callable[[], Store], is_taken: bool
) -> None:
    """They have no topic. What was not begun may be begun by any version, what was begun goes on without one."""
    diary: list[str] = []
    plain, two = handler(diary), handler(diary, "2")
    nobody = Operation("nobody", PARENT)

    @nobody.step
    async def nothing(scope: Scope, message: Message) -> None: ...

    async with Environment([plain if is_taken else nobody], lambda: EarlierCode(make_store())) as env:
        await env.engine.topics.register(CHILD, "person")
        await env.engine.topics.register(ORDERS, "work")
        root = await env.engine.emit(ORDERS, {})
        (run_id,) = root.run_ids
        await env.settle()
        env.kill()
    async with Environment([two], make_store, clock=env.clock) as env:
        await env.settle()
        assert diary == (["ask "] if is_taken else ["ask 2"])
        await complete(env.engine, run_id)
        await env.settle()
        if is_taken:
            assert diary == ["ask "]
            await redeploy(env, two, plain)
        await env.engine.handle(run_id).result()
        assert diary == (["ask ", "end "] if is_taken else ["ask 2", "end 2"])
        await agree(env, plain, two, nobody)


@pytest.mark.parametrize("point", CRASH_POINTS)
async def test_a_crash_around_the_commit_that_begins_a_run(make_store: Callable[[], Store], point: Point) -> None:
    """Either version may be there afterwards: a run that was begun waits for its own, one that was not is begun."""
    diary: list[str] = []
    one, two = handler(diary, "1"), handler(diary, "2")
    run_ids: list[str] = []

    def begins(batch: Batch) -> bool:
        added = batch.cooperation
        events: list[MessageEventRow] = [] if added is None else added.events
        return any(row.type == "SEEN" and row.scope in run_ids for row in events)

    async with Environment([one], make_store, fault=Fault(point, when=begins)) as env:
        await env.engine.topics.register(CHILD, "person")
        async with Client(make_store(), clock=env.clock, poll_s=None) as client:
            root = await client.emit(ORDERS, {})
        run_ids += root.run_ids

        async def go_on() -> None:
            await env.engine.recover()
            await env.settle()

        working = asyncio.ensure_future(go_on())
        dying = asyncio.ensure_future(env._death.wait())  # pyright: ignore[reportPrivateUsage]
        await asyncio.wait({working, dying}, return_when=asyncio.FIRST_COMPLETED)
        assert env.is_dead == (point in DEADLY)
        for task in (working, dying):
            task.cancel()
        await asyncio.wait({working, dying})
        await redeploy(env, two)
        is_begun_by_one = point != "before"
        assert await version_of(env.engine, run_ids[0]) == ("1" if is_begun_by_one else "2")
        await redeploy(env, one, two)
        await complete(env.engine, run_ids[0])
        await env.engine.handle(run_ids[0]).result()
        assert diary[-1] == ("end 1" if is_begun_by_one else "end 2")
        assert {did.split()[1] for did in diary} == {"1" if is_begun_by_one else "2"}
        await agree(env, one, two)


async def test_a_delayed_run_and_one_that_joins_late_have_versions(make_store: Callable[[], Store]) -> None:
    diary: list[str] = []
    one, two = handler(diary, "1"), handler(diary, "2", on=CHILD)
    async with Environment([one], make_store, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "person")
        delayed = await env.engine.emit(ORDERS, {}, delay=timedelta(minutes=5))
        await env.settle()
        assert await version_of(env.engine, delayed.run_ids[0]) == "1"
        root = await env.engine.emit(ORDERS, {})
        await env.settle()
        await env.restart([one, two])
        await env.settle()
        found = [run for run in (await env.engine.runs.list(workflow="work")).runs if run.topic == "child"]
        assert [(run.parent_id, run.workflow_version) for run in found] == [(root.run_ids[0], "2")]
        await agree(env, one, two)


async def test_two_operations_of_one_version_are_refused() -> None:
    with pytest.raises(DuplicateWorkflow, match="version '2'"):
        await Engine("memory://", workflows=[handler([], "2"), handler([], "2")]).open()


@pytest.mark.parametrize("version", [2, "v" * 101, "a\0b", "\ud800"])
def test_what_a_version_may_be(version: Any) -> None:
    with pytest.raises(InvalidDefinition, match="version"):
        Operation("work", ORDERS, version=version)
    with pytest.raises(InvalidDefinition, match=r"U\+001F"):
        Topic("a\x1fb", dict)
