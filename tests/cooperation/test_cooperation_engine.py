"""Hierarchies on a real engine: emitting, waiting, giving up, undoing, handlers that are absent, late or people."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Limits, resource
from perdure.api.hierarchies import hierarchy_rows
from perdure.client import Client
from perdure.cooperation import Context, Failure, Historical, Key, Operation, Scope, TimeWindow
from perdure.engine import AnyClient
from perdure.errors import (
    DuplicateWorkflow,
    InvalidArguments,
    Misuse,
    RunExists,
    RunFinished,
    RunNotFound,
    ScopeFailed,
)
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.testing.readiness import assert_readiness_agrees
from tests.cooperation.shop import topic

ROOT, CHILD, LEAF = topic("root"), topic("child"), topic("leaf")
Message = dict[str, Any]


class Diary(list[str]):
    """Operations that write down what they do."""

    def operation(self, name: str, on: Any, *steps: list[Any], fails_at: int | None = None, **options: Any) -> Any:
        made = Operation(name, on, **options)
        for number, topics in enumerate(steps):
            self._add(made, number, topics, fails=number == fails_at)
        return made

    def _add(self, made: Operation[Message], number: int, topics: list[Any], *, fails: bool) -> None:
        async def invoke(scope: Scope, message: Message) -> None:
            self.append(f"{made.name} {number}")
            for one in topics:
                await scope.emit(one, {})
            if fails:
                raise ValueError(f"{made.name} failed")

        step = made.step(name=f"s{number}")(invoke)

        @step.rollback
        async def undo(scope: Scope, message: Message, cause: Failure) -> None:
            self.append(f"{made.name} undo {number}")


async def agree(env: Environment, *operations: Operation[Any]) -> None:
    """What is stored is sound, and nobody waits in vain."""
    await env.settle()
    store = env.engine.session.store  # pyright: ignore[reportPrivateUsage]
    await assert_readiness_agrees(store, operations, now=env.clock.now())
    await env.check()


async def run_of(engine: AnyClient, handler: str) -> str:
    """The id of the one run of an operation."""
    (found,) = (await engine.runs.list(workflow=handler)).runs
    return found.id


async def status_of(engine: AnyClient, handler: str) -> str:
    (found,) = (await engine.runs.list(workflow=handler)).runs
    return found.status


# ---------------------------------------------------------------------------------------------------------------------
# Emitting and waiting


async def test_whoever_emits_can_wait_for_all_that_follows(source: StoreSource) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [])]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {}, tags={"tenant": "acme"})
        await root.finished()
        assert diary == ["root 0", "child 0", "root 1"]
        assert await status_of(env.engine, "root") == "succeeded"
        child = (await env.engine.runs.list(workflow="child")).runs[0]
        assert (child.parent_id, child.model, dict(child.tags)) == (root.run_ids[0], "operation", {"tenant": "acme"})
        assert await env.engine.handle(root.run_ids[0]).result() is None
        await agree(env, *operations)


async def test_a_failure_is_raised_where_the_hierarchy_is_waited_for(source: StoreSource) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [], [], fails_at=1)]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed, match="ChildRolledBack") as caught:
            await root.finished()
        assert diary == ["root 0", "child 0", "child 1", "child undo 0", "root undo 0"]
        lines = str(caught.value.failure).splitlines()
        assert "ChildRolledBack: 1 handler of messages from step 's0' failed: all of them rolled back" in lines[0]
        assert lines[2].startswith("  ValueError: child failed in step 's1' of child[")
        assert __file__ in lines[3]
        assert len(lines) == 4  # Whoever calls steps is of no interest.
        assert await status_of(env.engine, "root") == "rolled_back"
        view = await env.engine.runs.get(root.run_ids[0])
        assert view is not None
        assert view.failure is not None
        assert view.failure.type == "ChildRolledBack"
        await agree(env, *operations)


async def test_a_message_with_an_id_is_emitted_once(source: StoreSource) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [])]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {}, id="m-1")
        again = await env.engine.emit(ROOT, {}, id="m-1")
        assert (again.id, again.run_ids) == (root.id, root.run_ids)
        await again.finished()
        with pytest.raises(RunExists, match="was emitted on topic 'root', not on 'child'"):
            await env.engine.emit(CHILD, {}, id="m-1")
        with pytest.raises(RunExists, match="with another content"):
            await env.engine.emit(ROOT, {"a": 1}, id="m-1")
        await env.restart()
        await (await env.engine.emit(ROOT, {}, id="m-1")).finished()
        assert diary == ["root 0"]


async def test_a_message_that_nobody_handles_is_finished_at_once(source: StoreSource) -> None:
    async with Environment([], source) as env:
        root = await env.engine.emit(ROOT, {})
        assert root.run_ids == ()
        await root.finished()


async def test_what_is_no_message_of_the_topic_is_refused(source: StoreSource) -> None:
    async with Environment([], source) as env:
        with pytest.raises(InvalidArguments, match="this is no message for topic 'root'"):
            await env.engine.emit(ROOT, 17)  # type: ignore[misc]


async def test_a_client_emits_and_follows(make_store: Callable[[], Store]) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [CHILD]), diary.operation("child", CHILD, [])]
    async with Engine(make_store(), workflows=operations), Client(make_store()) as client:
        root = await client.emit(ROOT, {})
        await root.finished()
    assert diary == ["root 0", "child 0"]


async def test_an_operation_is_not_started_by_its_name(make_store: Callable[[], Store]) -> None:
    """It would be a run that nobody can go on with."""
    async with (
        Engine(make_store(), workflows=[Diary().operation("root", ROOT, [])]) as engine,
        Client(make_store()) as client,
    ):
        for asked in (engine, client):
            with pytest.raises(InvalidArguments, match=r"'root' is an operation.*emit one on the topic 'root'"):
                await asked.start("root", {})
        assert (await client.runs.list()).runs == []


async def test_operations_of_one_topic_have_different_names() -> None:
    diary = Diary()
    with pytest.raises(DuplicateWorkflow, match="have the same name, and handle the same topic 'root'"):
        async with Environment([diary.operation("root", ROOT, []), diary.operation("root", ROOT, [])]):
            pass


async def test_steps_have_the_engines_resources(source: StoreSource) -> None:
    class Pool:
        name = "the pool"

    found: list[str] = []
    root = Operation("root", ROOT)

    @root.step
    async def in_the_loop(scope: Scope, message: Message) -> None:
        found.append(resource(Pool).name)

    @root.step
    def in_a_thread(scope: Scope, message: Message) -> None:
        found.append(resource(Pool).name)

    async with Environment([root], source, resources={Pool: Pool}) as env:
        await (await env.engine.emit(ROOT, {})).finished()
    assert found == ["the pool", "the pool"]


async def test_the_context_of_an_emission_reaches_all_below_it(source: StoreSource) -> None:
    tenant = Key("test.tenant", str)
    found: list[str | None] = []
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD])
    child = Operation("child", CHILD)

    @child.step
    async def look(scope: Scope, message: Message) -> None:
        found.append(scope.get(tenant))

    async with Environment([root, child], source) as env:
        await (await env.engine.emit(ROOT, {}, context=Context().put(tenant, "acme"))).finished()
    assert found == ["acme"]


async def test_a_step_that_emits_too_much_fails(source: StoreSource) -> None:
    root = Operation("root", ROOT)

    @root.step
    async def emit(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {"text": "x" * 2_000})

    async with Environment([root], source, limits=Limits(payload_bytes_max=1_000)) as env:
        with pytest.raises(ScopeFailed, match="has 2,011 bytes, and may have 1,000"):
            await (await env.engine.emit(ROOT, {})).finished()


async def test_a_hierarchy_is_shown_as_a_tree(source: StoreSource) -> None:
    diary = Diary()
    operations = [
        diary.operation("root", ROOT, [CHILD], [], fails_at=1),
        diary.operation("child", CHILD, [LEAF]),
        diary.operation("leaf", LEAF, []),
    ]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed):
            await root.finished()
        tree = await env.engine.handle(root.id).tree()
        assert re.sub(r"  [0-9a-f-]{36}", "", tree.text()).splitlines() == [
            "root (message) rolled_back",
            "└─ root (operation) rolled_back",
            "   └─ child (operation) rolled_back",
            "      └─ leaf (operation) rolled_back",
        ]
        assert tree.mermaid().splitlines()[:4] == [
            "flowchart TD",
            '    n0["root<br/>rolled_back"]',
            '    n1["root<br/>rolled_back"]',
            '    n2["child<br/>rolled_back"]',
        ]
        part = await env.engine.handle(root.run_ids[0]).tree()
        assert [child.run.workflow for child in part.children] == ["child"]
        with pytest.raises(RunNotFound):
            await env.engine.handle("nowhere").tree()
        history = await env.engine.handle(root.run_ids[0]).history()
        assert [(entry.seq, entry.kind, entry.name) for entry in history.journal][:4] == [
            (1, "seen", "root"),
            (2, "emitted", "s0"),
            (3, "suspended", "s0"),
            (4, "rolling_back", "s1"),
        ]
        assert history.journal[3].failure is not None
        assert history.journal[3].failure.message == "root failed"


# ---------------------------------------------------------------------------------------------------------------------
# Giving up and undoing


async def test_a_hierarchy_that_is_cancelled_rolls_back(source: StoreSource) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [])]
    operations[1].sleep(timedelta(days=1))
    async with Environment(operations, source, autojump_s=None) as env:
        root = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await root.cancel("no longer wanted")
        assert not await root.cancel()  # Once is enough.
        with pytest.raises(ScopeFailed, match="no longer wanted"):
            await root.finished()
        assert diary == ["root 0", "child 0", "child undo 0", "root undo 0"]
        assert not await env.engine.handle(root.run_ids[0]).cancel()
        await agree(env, *operations)


async def test_a_run_that_is_cancelled_by_its_id_rolls_back_and_its_parent_may_go_on(source: StoreSource) -> None:
    diary = Diary()
    root, child = diary.operation("root", ROOT), diary.operation("child", CHILD, [])
    child.sleep(timedelta(days=1))

    @root.step
    async def ask(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    @ask.on_child_failure
    async def never_mind(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
        diary.append(f"root never mind: {failure.causes[0].type}")

    async with Environment([root, child], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await env.engine.handle(await run_of(env.engine, "child")).cancel()
        await emitted.finished()
        assert diary == ["child 0", "child undo 0", "root never mind: GaveUp"]
        await agree(env, root, child)


async def test_what_nobody_has_taken_never_begins_when_it_is_cancelled(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [])
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "absent")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await status_of(env.engine, "absent") == "created"
        assert await env.engine.handle(await run_of(env.engine, "absent")).cancel()
        with pytest.raises(ScopeFailed, match="ChildRolledBack"):
            await emitted.finished()
        assert await status_of(env.engine, "absent") == "rolled_back"
        assert diary == ["root 0", "root undo 0"]
        await agree(env, root)


async def test_a_root_that_nobody_has_taken_never_begins_when_it_is_cancelled(source: StoreSource) -> None:
    async with Environment([], source, autojump_s=None) as env:
        await env.engine.topics.register(ROOT, "absent")
        emitted = await env.engine.emit(ROOT, {})
        assert await emitted.cancel()
        with pytest.raises(ScopeFailed, match="GaveUp"):
            await emitted.finished()


async def test_a_missed_deadline_reaches_a_child_whose_service_is_down(source: StoreSource) -> None:
    diary = Diary()
    root = Operation("root", ROOT)

    @root.step
    async def ask(scope: Scope, message: Message) -> None:
        scope.deadline(timedelta(seconds=30))
        await scope.emit(CHILD, {})

    async with Environment([root], source) as env:
        await env.engine.topics.register(CHILD, "child")
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed, match="the deadline of the happy path was"):
            await emitted.finished()
        assert await status_of(env.engine, "child") == "rolled_back"
        await agree(env, root)
    # When the service is back, there is nothing for it to do.
    child = diary.operation("child", CHILD, [])
    async with Environment([child], source, clock=env.clock) as later:
        await agree(later, child)
    assert diary == []


async def test_a_committed_hierarchy_is_undone_on_request_and_so_is_a_part_of_it(source: StoreSource) -> None:
    diary = Diary()
    operations = [
        diary.operation("root", ROOT, [CHILD], []),
        diary.operation("child", CHILD, [LEAF]),
        diary.operation("leaf", LEAF, []),
    ]
    async with Environment(operations, source) as env:
        root = await env.engine.emit(ROOT, {})
        await root.finished()
        diary.clear()
        assert await env.engine.handle(await run_of(env.engine, "child")).roll_back()
        await env.settle()
        assert diary == ["leaf undo 0", "child undo 0"]
        assert await status_of(env.engine, "root") == "succeeded"
        assert not await env.engine.handle(await run_of(env.engine, "child")).roll_back()  # It is.
        diary.clear()
        assert await root.roll_back("changed my mind")
        with pytest.raises(ScopeFailed, match="changed my mind"):
            await root.finished()
        assert diary == ["root undo 1", "root undo 0"]
        assert not await root.roll_back()
        assert not await env.engine.handle("nowhere").roll_back()
        await agree(env, *operations)


async def test_what_has_nothing_to_undo_is_not_undone_on_request(source: StoreSource) -> None:
    root = Operation[Any]("root", ROOT)

    @root.step
    async def fail(scope: Scope, message: Any) -> None:
        raise ValueError("no")

    async with Environment([root], source) as env:
        failed = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed, match="ValueError: no"):
            await failed.finished()
        unheard = await env.engine.emit(CHILD, {})
        for emitted in (failed, unheard):
            rows = len((await hierarchy_rows(env.engine.session, emitted.id)).events)
            assert not await emitted.roll_back()
            assert len((await hierarchy_rows(env.engine.session, emitted.id)).events) == rows
        await unheard.finished()
        await agree(env, root)


async def test_what_is_still_at_work_is_not_undone_on_request(source: StoreSource) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [])]
    operations[0].sleep(timedelta(days=1))
    async with Environment(operations, source, autojump_s=None) as env:
        root = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await status_of(env.engine, "child") == "succeeded"
        assert not await root.roll_back()
        assert not await env.engine.handle(await run_of(env.engine, "child")).roll_back()


# ---------------------------------------------------------------------------------------------------------------------
# Handlers


async def test_a_handler_is_expected_while_its_service_is_down(source: StoreSource) -> None:
    diary = Diary()
    root, child = diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [])
    async with Environment([child], source):
        pass  # It was there once.
    async with Environment([root], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert diary == ["root 0"]
        assert await status_of(env.engine, "root") == "suspended"
    async with Environment([root, child], source, clock=env.clock) as env:
        await env.engine.handle(emitted.run_ids[0]).result()
        assert diary == ["root 0", "child 0", "root 1"]
        assert "child" in (await env.engine.topics.handlers())[CHILD.name]
        assert await env.engine.topics.retire(CHILD, "child")
        assert "child" not in (await env.engine.topics.handlers()).get(CHILD.name, [])
        assert not await env.engine.topics.retire(CHILD, "child")
        await (await env.engine.emit(ROOT, {})).finished()
        assert diary[3:] == ["root 0", "root 1"]
        await agree(env, root, child)


async def test_a_person_does_what_a_handler_was_to_do(source: StoreSource) -> None:
    diary = Diary()
    root = Operation("root", ROOT)

    @root.step
    async def ask(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    @root.step
    async def read(scope: Scope, message: Message) -> None:
        diary.append(f"root {scope.returned('price', int)}")

    async with Environment([root], source) as env:
        await env.engine.topics.register(CHILD, "person")
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        person = await run_of(env.engine, "person")
        assert await env.engine.topics.message(person) == {}
        await env.engine.topics.complete(person, {"price": 17}, actor="ann")
        await emitted.finished()
        assert [(row.became, row.actor) for row in await env.engine.handle(person).audit()][-1] == ("succeeded", "ann")
        assert diary == ["root [17]"]
        with pytest.raises(RunFinished):
            await env.engine.topics.complete(person)
        with pytest.raises(Misuse, match="was not completed by an external party and then asked to roll back"):
            await env.engine.topics.complete_rollback(person)
        with pytest.raises(RunNotFound):
            await env.engine.topics.complete("nobody")
        with pytest.raises(RunNotFound):
            await env.engine.topics.message("nobody")
        await agree(env, root)


async def test_a_person_cannot_do_it_or_undoes_it(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [], fails_at=1)
    async with Environment([root], source) as env:
        await env.engine.topics.register(CHILD, "person")
        refused = await env.engine.emit(ROOT, {})
        await env.settle()
        await env.engine.topics.fail(await run_of(env.engine, "person"), "the boss says no")
        with pytest.raises(ScopeFailed) as caught:
            await refused.finished()
        assert caught.value.failure.causes[0].message == "the boss says no"
        done = await env.engine.emit(ROOT, {})
        await env.settle()
        (person,) = [run.id for run in (await env.engine.runs.list(workflow="person", status="created")).runs]
        await env.engine.topics.complete(person)
        await env.settle()
        assert (await env.engine.runs.get(person)).status == "rolling_back"  # type: ignore[union-attr]
        await env.engine.topics.complete_rollback(person)
        with pytest.raises(ScopeFailed, match="root failed"):
            await done.finished()
        assert diary == ["root 0", "root undo 0", "root 0", "root 1", "root undo 0"]
        await agree(env, root)


async def test_a_handler_that_has_begun_is_not_completed_from_outside(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [])
    root.sleep(timedelta(days=1))
    async with Environment([root], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        with pytest.raises(Misuse, match="was taken by its handler, and is active"):
            await env.engine.topics.complete(emitted.run_ids[0])


async def test_the_historical_strategy_expects_who_came_before(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [], strategy=Historical())
    child = diary.operation("child", CHILD, [])
    async with Environment([root, child], source) as env:
        await (await env.engine.emit(ROOT, {})).finished()
        assert diary == ["root 0", "root 1"]
        await (await env.engine.emit(CHILD, {})).finished()
        await (await env.engine.emit(ROOT, {})).finished()
        assert diary[2:] == ["child 0", "root 0", "child 0", "root 1"]
        await env.engine.topics.retire(CHILD, "child")
        await (await env.engine.emit(ROOT, {})).finished()
        assert diary[6:] == ["root 0", "root 1"]


async def test_a_window_that_is_closed_leaves_out_those_who_have_not_begun(source: StoreSource) -> None:
    diary = Diary()
    root = diary.operation("root", ROOT, [CHILD], [], strategy=TimeWindow(timedelta(seconds=30)))
    async with Environment([root, diary.operation("prompt", CHILD, [])], source) as env:
        await env.engine.topics.register(CHILD, "absent")
        began = env.clock.now()
        await (await env.engine.emit(ROOT, {})).finished()
        assert diary == ["root 0", "prompt 0", "root 1"]
        assert env.clock.now() == began + 30_000_000
        assert await status_of(env.engine, "absent") == "cancelled"
        await agree(env, root)


# ---------------------------------------------------------------------------------------------------------------------
# Engines


async def test_more_runs_wait_than_are_kept_in_memory(source: StoreSource) -> None:
    diary = Diary()
    root, child = diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [])
    child.sleep(timedelta(hours=1))
    async with Environment([root, child], source, limits=Limits(live_runs_max=3)) as env:
        roots = [await env.engine.emit(ROOT, {}) for _ in range(10)]
        for emitted in roots:
            await emitted.finished()
        assert sorted(diary) == sorted(["root 0", "child 0", "root 1"] * 10)
        await agree(env, root, child)


async def test_an_engine_that_stops_leaves_its_runs_to_the_next(source: StoreSource) -> None:
    diary = Diary()
    operations = [diary.operation("root", ROOT, [CHILD], []), diary.operation("child", CHILD, [])]
    operations[1].sleep(timedelta(hours=1))
    async with Environment(operations, source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {}, id="m-1")
        await env.settle()
        await env.engine.shutdown()
    async with Environment(operations, source, clock=env.clock) as later:
        await (await later.engine.emit(ROOT, {}, id="m-1")).finished()
        assert diary == ["root 0", "child 0", "root 1"]
        assert (await later.engine.runs.get(emitted.run_ids[0])) is not None
        await agree(later, *operations)


async def test_code_that_does_not_fit_the_rows_any_more_holds_the_run(source: StoreSource) -> None:
    diary = Diary()
    old = Operation("root", ROOT)

    @old.step(name="gone")
    async def gone(scope: Scope, message: Message) -> None:
        diary.append("gone")

    old.sleep(timedelta(days=1))
    async with Environment([old], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
    new = diary.operation("root", ROOT, [])
    async with Environment([new], source, clock=env.clock) as later:
        await later.settle()
        view = await later.engine.runs.get(emitted.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert "has no step 'gone' any more" in view.hold.reason
    async with Environment([old], source, clock=env.clock) as again:
        await again.engine.handle(emitted.run_ids[0]).result()
