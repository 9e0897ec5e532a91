"""Held runs of a hierarchy: a hold stops a run's code, not what is asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import Struct

from perdure import Client, Limits
from perdure.api.outcomes import outcome_of
from perdure.cooperation import Failure, Operation, Scope, TimeWindow, Topic
from perdure.errors import IsOperation, Misuse, ScopeFailed
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.testing.faults import Fault
from perdure.views import RunView
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree, run_of, status_of

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]


class Strict(Struct):
    """What the child's service takes the messages for."""

    number: int


def parent(diary: list[str], *, deadline: timedelta | None = None, path: Any = "happy") -> Operation[Message]:
    made = Operation("root", ROOT)

    @made.step
    async def ask(scope: Scope, message: Message) -> None:
        diary.append("ask")
        await scope.emit(CHILD, {})
        if deadline is not None:
            scope.deadline(deadline, path=path)  # Its own, which the child does not share.

    @ask.rollback
    async def unask(scope: Scope, message: Message, cause: Failure) -> None:
        diary.append("unask")

    @made.step
    async def then(scope: Scope, message: Message) -> None:
        diary.append("then")

    return made


def child(diary: list[str], on: Topic[Any] = CHILD, *, step: str = "work") -> Operation[Any]:
    made = Operation("child", on)

    async def work(scope: Scope, message: Any) -> None:
        diary.append("work")

    worked = made.step(name=step)(work)

    @worked.rollback
    async def unwork(scope: Scope, message: Any, cause: Failure) -> None:
        diary.append("unwork")

    made.sleep(timedelta(hours=1))
    return made


def unreadable() -> Topic[Any]:
    return Topic("child", Strict)


async def held(env: Environment) -> str:
    """The child, which cannot be read."""
    await env.settle()
    await env.engine.recover()
    await env.settle()
    id = await run_of(env.engine, "child")
    view = await env.engine.runs.get(id)
    assert view is not None
    assert view.hold is not None
    assert "does not fit its type" in view.hold.reason
    return id


@pytest.mark.parametrize("by", ["root", "child", "deadline", "fail"])
async def test_a_held_child_that_did_nothing_does_not_keep_its_hierarchy(source: StoreSource, by: str) -> None:
    diary: list[str] = []
    root = parent(diary, deadline=timedelta(hours=2) if by == "deadline" else None)
    operations = [root, child(diary, unreadable())]
    async with Environment(operations, source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        id = await held(env)
        if by == "deadline":
            await env.advance(timedelta(hours=3))
        elif by == "fail":
            await env.engine.topics.fail(id, "cannot be read")
        else:
            assert await env.engine.handle(emitted.id if by == "root" else id).cancel()
        with pytest.raises(ScopeFailed):
            await emitted.finished()
        assert diary == ["ask", "unask"]
        assert await status_of(env.engine, "child") == "rolled_back"
        await agree(env, *operations)


@pytest.mark.parametrize("by", ["complete", "release"])
async def test_a_hierarchy_goes_on_without_a_held_child(source: StoreSource, by: str) -> None:
    diary: list[str] = []
    operations = [parent(diary), child(diary, unreadable())]
    async with Environment(operations, source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        id = await held(env)
        if by == "complete":
            await env.engine.topics.complete(id)
        else:
            await env.engine.topics.retire(CHILD, "child", release=True)
        await emitted.finished()
        assert diary == ["ask", "then"]
        assert await status_of(env.engine, "child") == ("succeeded" if by == "complete" else "cancelled")
        await agree(env, *operations)


@pytest.mark.parametrize("by", ["complete", "fail", "release"])
async def test_a_person_s_run_that_a_client_has_paused_can_be_ended(make_store: Callable[[], Store], by: str) -> None:
    """No engine looks at what a client has paused: nobody has the code of the run, which has not begun."""
    async with Client(make_store()) as client:
        await client.topics.register(CHILD, "person")
        emitted = await client.emit(CHILD, {})
        (id,) = emitted.run_ids
        assert await client.handle(id).pause("not today")
        if by == "complete":
            await client.topics.complete(id, {"price": 5})
            assert await emitted.returned("price", int) == [5]
        elif by == "fail":
            await client.topics.fail(id, "no")
        else:
            assert await client.topics.retire(CHILD, "person", release=True)
        ended = {"complete": "succeeded", "fail": "rolled_back", "release": "cancelled"}
        assert await status_of(client, "person") == ended[by]


async def test_a_window_closes_over_a_run_that_a_client_has_paused(make_store: Callable[[], Store]) -> None:
    root = Operation[Message]("root", ROOT, strategy=TimeWindow(timedelta(hours=1)))

    @root.step
    async def ask(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    async with Environment([root], make_store, autojump_s=None) as env, Client(make_store(), clock=env.clock) as client:
        await client.topics.register(CHILD, "person")
        await env.engine.emit(ROOT, {})
        await env.settle()
        assert await client.handle(await run_of(client, "person")).pause("not today")
        await env.advance(timedelta(hours=2))
        assert await status_of(client, "person") == "cancelled"
        await agree(env, root)
        assert await status_of(client, "root") == "succeeded"


async def test_a_person_undoes_what_a_client_has_paused(make_store: Callable[[], Store]) -> None:
    async with Client(make_store()) as client:
        await client.topics.register(CHILD, "person")
        emitted = await client.emit(CHILD, {})
        (id,) = emitted.run_ids
        await client.topics.complete(id)
        assert await emitted.roll_back()
        assert await client.handle(id).pause("not today")
        await client.topics.complete_rollback(id)
        assert await status_of(client, "person") == "rolled_back"


async def test_a_run_whose_message_can_be_read_again_goes_on_by_itself(source: StoreSource) -> None:
    diary: list[str] = []
    root = parent(diary)
    async with Environment([root, child(diary, unreadable())], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        await held(env)
        await env.restart()  # with the same code
        await held(env)
        await env.restart([root, mended := child(diary)])
        await env.engine.handle(emitted.run_ids[0]).result()
        assert diary == ["ask", "work", "then"]
        await agree(env, root, mended)


async def test_a_held_child_that_has_something_to_undo_says_so(source: StoreSource) -> None:
    diary: list[str] = []
    root, good = parent(diary), child(diary)
    async with Environment([root, good], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        await env.restart([root, child(diary, step="renamed")])
        await env.settle()
        id = await run_of(env.engine, "child")
        await env.advance(timedelta(hours=2))  # Its time has come, and it is taken.
        view = await env.engine.runs.get(id)
        assert view is not None
        assert view.hold is not None
        assert await env.engine.handle(emitted.id).cancel()
        view = await env.engine.runs.get(id)
        assert view is not None
        assert view.hold is not None
        assert "has something to undo" in view.hold.details
        with pytest.raises(Misuse):
            await env.engine.topics.fail(id, "no")
        assert diary == ["ask", "work"]
        await env.restart([root, good])
        assert (await outcome_of(env.engine.session, emitted.run_ids[0]))[0].status == "rolled_back"
        assert diary == ["ask", "work", "unwork", "unask"]
        await agree(env, root, good)


async def test_a_run_that_was_to_give_up_before_it_was_held_says_so(source: StoreSource) -> None:
    """It is cancelled while only an engine without its code is there. Code that does not fit finds both at once."""
    diary: list[str] = []
    good = child(diary)
    async with Environment([good], source, autojump_s=None) as env:
        emitted = await env.engine.emit(CHILD, {})
        await env.settle()
        await env.restart([])
        assert await env.engine.handle(emitted.id).cancel()
        await env.restart([child(diary, step="renamed")])
        await env.settle()
        view = await env.engine.runs.get(emitted.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert "It is to give up, and it has something to undo" in view.hold.details
        await env.restart([good])
        await env.settle()
        assert await status_of(env.engine, "child") == "rolled_back"
        assert diary == ["work", "unwork"]
        await agree(env, good)


# ---------------------------------------------------------------------------------------------------------------------
# Deadlines, and rollbacks, of held runs


async def of(env: Environment, handler: str) -> RunView:
    view = await env.engine.runs.get(await run_of(env.engine, handler))
    assert view is not None
    return view


async def types_of(env: Environment, handler: str) -> list[str]:
    view = await of(env, handler)
    rows = await env.engine.handle(view.id).hierarchy()
    return [event.kind for event in sorted(rows.events, key=lambda row: row.seq) if event.scope == view.id]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_held_root_run_that_did_nothing_ends_by_its_deadline(source: StoreSource, restarts: bool) -> None:
    diary: list[str] = []
    made = child(diary, unreadable())
    async with Environment([made], source, autojump_s=None) as env:
        emitted = await env.engine.emit(CHILD, {}, deadline=timedelta(hours=1))
        await held(env)
        if restarts:
            await env.restart()
            await env.settle()
        await env.advance(timedelta(minutes=59))
        assert await status_of(env.engine, "child") != "rolled_back"
        await env.advance(timedelta(minutes=2))
        run, outcome = await outcome_of(env.engine.session, emitted.run_ids[0])
        assert run.status == "rolled_back"
        assert "it was to give up while it was held" in (outcome.failure or "")
        await agree(env, made)


@pytest.mark.parametrize("path", ["happy", "both"])
async def test_a_held_root_run_that_has_something_to_undo_is_late(source: StoreSource, path: Any) -> None:
    """By the deadline of the happy path it says what is in the way; by that of its rollback it has ended."""
    diary: list[str] = []
    good = child(diary)
    async with Environment([good], source, autojump_s=None) as env:
        rollback = timedelta(hours=3) if path == "both" else None
        await env.engine.emit(CHILD, {}, deadline=timedelta(hours=2), rollback_deadline=rollback)
        await env.settle()
        await env.restart([other := child(diary, step="renamed")])
        await env.advance(timedelta(minutes=90))  # It has slept, and is taken.
        hold = (await of(env, "child")).hold
        assert hold is not None
        assert hold.details == ""
        await env.restart()
        await env.advance(timedelta(minutes=60))
        hold = (await of(env, "child")).hold
        assert hold is not None
        assert hold.details.startswith("Its deadline has passed, and it has something to undo")
        await env.advance(timedelta(minutes=60))
        if path == "both":
            assert await status_of(env.engine, "child") == "rollback_failed"
            assert (await types_of(env, "child"))[-2:] == ["rolling_back", "rollback_failed"]
            await agree(env, other)
            return
        await env.restart([good])
        await env.settle()
        assert await status_of(env.engine, "child") == "rolled_back"
        assert diary == ["work", "unwork"]
        await agree(env, good)


def quick(diary: list[str], *, step: str = "work") -> Operation[Any]:
    """A child that ends at once."""
    made = Operation("child", CHILD)

    async def work(scope: Scope, message: Any) -> None:
        diary.append("work")

    worked = made.step(name=step)(work)

    @worked.rollback
    async def unwork(scope: Scope, message: Any, cause: Failure) -> None:
        diary.append("unwork")

    return made


@pytest.mark.parametrize("has_deadline", [False, True])
async def test_a_rollback_is_asked_of_a_child_whose_code_does_not_fit(source: StoreSource, has_deadline: bool) -> None:
    diary: list[str] = []
    root = parent(diary)
    async with Environment([root, good := quick(diary)], source, autojump_s=None) as env:
        limit = timedelta(hours=1) if has_deadline else None
        emitted = await env.engine.emit(ROOT, {}, rollback_deadline=limit)
        await emitted.finished()
        await env.restart([root, other := quick(diary, step="renamed")])
        assert await env.engine.handle(emitted.id).roll_back()
        await env.settle()
        found = await of(env, "child")
        assert (found.status, found.hold is not None) == ("rolling_back", True)
        await env.restart()
        await env.advance(timedelta(hours=2))
        if has_deadline:
            assert await status_of(env.engine, "child") == "rollback_failed"
            assert await status_of(env.engine, "root") == "rollback_failed"
            assert (await types_of(env, "child"))[-2:] == ["rolling_back", "rollback_failed"]
            assert diary == ["ask", "work", "then"]
            await agree(env, root, other)
            return
        assert await status_of(env.engine, "root") == "rolling_back"
        await env.restart([root, good])
        await env.settle()
        assert await status_of(env.engine, "root") == "rolled_back"
        assert diary == ["ask", "work", "then", "unwork", "unask"]
        await agree(env, root, good)


async def test_a_rollback_deadline_ends_a_child_that_is_held_on_its_way_back(source: StoreSource) -> None:
    diary: list[str] = []
    gate = asyncio.Event()
    root, bad = parent(diary), Operation[Any]("child", CHILD)

    @bad.step
    async def work(scope: Scope, message: Any) -> None:
        diary.append("work")

    @work.rollback
    async def unwork(scope: Scope, message: Any, cause: Failure) -> None:
        diary.append("unwork")
        await gate.wait()

    async with Environment([root, bad], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {}, rollback_deadline=timedelta(hours=1))
        await emitted.finished()
        assert await env.engine.handle(emitted.id).roll_back()
        while "unwork" not in diary:
            await asyncio.sleep(0)
        assert await env.engine.handle(await run_of(env.engine, "child")).pause()
        await env.settle()
        await env.advance(timedelta(hours=2))
        assert await status_of(env.engine, "child") == "rollback_failed"
        assert await status_of(env.engine, "root") == "rollback_failed"
        await agree(env, root, bad)


@pytest.mark.parametrize("by", ["cancel", "deadline", "before"])
async def test_a_paused_run_that_has_only_begun_gives_up(source: StoreSource, by: str) -> None:
    diary: list[str] = []
    gate = asyncio.Event()
    root, waits = parent(diary, deadline=timedelta(hours=1)), Operation[Any]("child", CHILD)

    @waits.step
    async def work(scope: Scope, message: Any) -> None:
        diary.append("work")
        await gate.wait()

    async with Environment([root, waits], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        while "work" not in diary:
            await asyncio.sleep(0)
        if by == "before":
            assert await env.engine.handle(emitted.id).cancel()
        id = await run_of(env.engine, "child")
        assert await env.engine.handle(id).pause()
        await env.settle()
        if by == "cancel":
            assert await env.engine.handle(emitted.id).cancel()
        elif by == "deadline":
            await env.advance(timedelta(hours=2))
        with pytest.raises(ScopeFailed):
            await emitted.finished()
        assert await types_of(env, "child") == ["seen", "rolling_back", "rolled_back"]
        assert diary == ["ask", "work", "unask"]
        await agree(env, root, waits)


async def test_a_held_run_ends_after_those_below_it(source: StoreSource) -> None:
    """Its rollback was to be done by now, but a run below it has not ended."""
    diary: list[str] = []
    root, slow = parent(diary, deadline=timedelta(minutes=20), path="both"), child(diary)
    async with Environment([root, slow], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        assert await env.engine.handle(await run_of(env.engine, "root")).pause()
        await env.settle()
        await env.advance(timedelta(minutes=30))
        hold = (await of(env, "root")).hold
        assert hold is not None
        assert "once the runs below it have ended" in hold.details
        await env.advance(timedelta(minutes=40))
        assert await status_of(env.engine, "child") == "succeeded"
        with pytest.raises(ScopeFailed):
            await emitted.finished()
        assert await status_of(env.engine, "root") == "rollback_failed"
        await agree(env, root, slow)


async def test_a_run_of_an_operation_is_given_no_deadline_by_hand(source: StoreSource) -> None:
    diary: list[str] = []
    async with Environment([made := child(diary)], source, autojump_s=None) as env:
        await env.engine.emit(CHILD, {})
        await env.settle()
        with pytest.raises(IsOperation):
            await env.engine.handle(await run_of(env.engine, "child")).update(deadline=timedelta(hours=1))
        await agree(env, made)


async def test_a_failure_that_cannot_be_encoded_fails_alone(source: StoreSource) -> None:
    """File names that are no UTF-8 have lone surrogates."""
    diary: list[str] = []
    names: dict[str, Any] = {}
    exec(compile("def fails(): raise ValueError('no')", "/tmp/\udcff.py", "exec"), names)
    operations = [parent(diary), bad := Operation[Message]("bad", CHILD), child(diary)]
    gate = asyncio.Event()

    @bad.step
    async def break_off(scope: Scope, message: Message) -> None:
        await gate.wait()
        names["fails"]()

    async with Environment(operations, source) as env:
        emitted = await env.engine.emit(ROOT, {})
        gate.set()
        with pytest.raises(ScopeFailed, match="ValueError: no"):
            await emitted.finished()
        assert diary == ["ask", "work", "unwork", "unask"]
        await agree(env, *operations)


def idle(diary: list[str], version: str = "") -> Operation[Message]:
    made = Operation[Message]("child", CHILD, version=version)

    @made.step
    async def work(scope: Scope, message: Message) -> None:
        diary.append("work")

    return made


async def gives_up(env: Environment, root_id: str, run_id: str, by: str) -> None:
    """A paused run that waited for its delay of three hours, and has two."""
    if by == "cancel":
        assert await env.engine.handle(root_id).cancel()
    else:
        await env.advance(timedelta(minutes=119))
        assert await env.engine.handle(run_id).status() == "suspended"
        await env.advance(timedelta(minutes=2))
    await env.settle()
    view = await env.engine.runs.get(run_id)
    assert view is not None
    assert (view.status, view.hold, view.deadline) == ("rolled_back", None, None)


@pytest.mark.parametrize("version", ["", "2"])
@pytest.mark.parametrize("by", ["cancel", "deadline"])
async def test_what_a_client_pauses_while_no_engine_is_there_gives_up(
    make_store: Callable[[], Store], by: str, version: str
) -> None:
    """The run has begun. A client cannot look at its rows, so the next engine does."""
    diary: list[str] = []
    made = idle(diary, version)
    async with Environment([made], make_store, autojump_s=None) as env:
        emitted = await env.engine.emit(CHILD, {}, delay=timedelta(hours=3), deadline=timedelta(hours=2))
        await env.settle()
    async with Client(make_store(), clock=env.clock, poll_s=None) as client:
        assert await client.handle(emitted.run_ids[0]).pause("not today")
    async with Environment([made], make_store, clock=env.clock, autojump_s=None) as env:
        await env.settle()
        await gives_up(env, emitted.id, emitted.run_ids[0], by)
        assert diary == []
        await agree(env, made)


@pytest.mark.parametrize("by", ["cancel", "deadline"])
async def test_what_a_client_pauses_and_no_engine_has_in_memory_gives_up(
    make_store: Callable[[], Store], by: str
) -> None:
    """An engine runs all the time, and is not told that the client has paused the run."""
    diary: list[str] = []
    made = idle(diary)
    async with (
        Environment([made], make_store, autojump_s=None, limits=Limits(live_runs_max=1)) as env,
        Client(make_store(), clock=env.clock, poll_s=None) as client,
    ):
        emitted = await env.engine.emit(CHILD, {}, delay=timedelta(hours=3), deadline=timedelta(hours=2))
        for _ in range(2):
            await env.engine.emit(CHILD, {}, delay=timedelta(days=1))
        await env.settle()
        (id,) = emitted.run_ids
        view = await env.engine.runs.get(id)
        assert view is not None
        assert view.owner is None
        assert await client.handle(id).pause("not today")
        await gives_up(env, emitted.id, id, by)
        assert diary == []
        await agree(env, made)


async def test_what_a_client_pauses_stays_paused_and_goes_on_when_resumed(make_store: Callable[[], Store]) -> None:
    """That an engine looks at it is no reason to give up."""
    diary: list[str] = []
    made = idle(diary)
    async with Environment([made], make_store, autojump_s=None) as env:
        emitted = await env.engine.emit(CHILD, {}, delay=timedelta(hours=3))
        await env.settle()
    async with Client(make_store(), clock=env.clock, poll_s=None) as client:
        assert await client.handle(emitted.run_ids[0]).pause("not today")
    async with Environment([made], make_store, clock=env.clock, autojump_s=None) as env:
        await env.advance(timedelta(hours=4))
        view = await env.engine.runs.get(emitted.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert (view.hold.kind, view.hold.details, view.deadline, diary) == ("paused", "", None, [])
        assert await env.engine.handle(emitted.run_ids[0]).resume()
        await env.engine.handle(emitted.run_ids[0]).result()
        assert diary == ["work"]
        await agree(env, made)


@pytest.mark.parametrize("version", ["", "2"])
async def test_a_hold_that_a_process_left_incomplete_is_completed(source: StoreSource, version: str) -> None:
    """The process dies after it has paused the run, and before it has looked at the run's rows."""
    diary: list[str] = []
    made = idle(diary, version)
    fault = Fault("before_effects", when=lambda batch: any(write.run.hold for write in batch.runs.values()))
    async with Environment([made], source, autojump_s=None, fault=fault) as env:
        emitted = await env.engine.emit(CHILD, {}, delay=timedelta(hours=3), deadline=timedelta(hours=2))
        await env.settle()
        (id,) = emitted.run_ids

        async def pause(env: Environment) -> None:
            await env.engine.handle(id).pause("not today")
            await env.settle()

        await env.survive(pause)
        assert env.restarts == 1
        await gives_up(env, emitted.id, id, "deadline")
        assert diary == []
        await agree(env, made)
