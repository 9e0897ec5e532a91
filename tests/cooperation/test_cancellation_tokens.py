"""Cancellation tokens: runs of any hierarchy that were given a token give up together once it is cancelled."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits, step, workflow
from perdure.client import Client
from perdure.cooperation import CancellationToken, Context, Failure, Operation, Scope
from perdure.errors import InvalidArguments, ScopeFailed
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cancelling import CHILD, ROOT, Gated, Message, passing
from tests.cooperation.test_cooperation_engine import agree, run_of

TOKEN = CancellationToken("deploy-17")
LEAF = topic("leaf")
HOUR = timedelta(hours=1)


async def rolled_back(root: Any, match: str = "deploy-17") -> None:
    with pytest.raises(ScopeFailed, match=match):
        await root.finished()


@pytest.mark.parametrize("number", [0, 1, 2])
async def test_a_run_gives_up_at_its_next_step_boundary(source: StoreSource, number: int) -> None:
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await gated.at(number)
        assert await env.engine.topics.cancel_token(TOKEN, reason="broken build", actor="ops")
        gated.gate.set()
        with pytest.raises(ScopeFailed, match="token 'deploy-17' was cancelled: broken build") as raised:
            await root.finished()
        (cause,) = raised.value.failure.causes
        assert (cause.type, cause.source) == ("CancellationRequested", "ops")
        steps = [f"step {n}" for n in range(number + 1)]
        assert gated.done == [*steps, *(f"undo {n}" for n in reversed(range(number + 1)))]
        await agree(env, gated.operation)


async def test_a_token_that_is_cancelled_before(source: StoreSource) -> None:
    """Nobody has it when it is cancelled. What is emitted with it later gives up before its first step."""
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        assert await env.engine.topics.cancel_token(TOKEN)
        await env.restart()
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await rolled_back(root)
        assert gated.done == []
        await agree(env, gated.operation)


async def test_the_first_reason_counts(source: StoreSource) -> None:
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        assert await env.engine.topics.cancel_token(TOKEN, reason="first")
        assert not await env.engine.topics.cancel_token(TOKEN, reason="second")
        await rolled_back(await env.engine.emit(ROOT, {}, tokens=[TOKEN]), "cancelled: first")


async def test_any_of_several_tokens(source: StoreSource) -> None:
    one, other = CancellationToken("one"), CancellationToken("other/50% ü")
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[one, other])
        await gated.at(0)
        assert await env.engine.topics.cancel_token(other)
        gated.gate.set()
        await rolled_back(root, "other/50% ü")
        await agree(env, gated.operation)


async def test_several_hierarchies_and_no_others(source: StoreSource) -> None:
    gated = Gated(steps=1)
    async with Environment([gated.operation], source) as env:
        roots = [await env.engine.emit(ROOT, {}, tokens=[TOKEN]) for _ in range(3)]
        other = await env.engine.emit(ROOT, {}, tokens=[CancellationToken("deploy-18")])
        without = await env.engine.emit(ROOT, {})
        while env.engine.runtime.steps_running < 5:
            await asyncio.sleep(0)
        assert await env.engine.topics.cancel_token(TOKEN)
        gated.gate.set()
        for root in roots:
            await rolled_back(root)
        await other.finished()
        await without.finished()
        await agree(env, gated.operation)


async def test_a_token_is_inherited_by_all_below(source: StoreSource) -> None:
    root, child, leaf = Gated("root", ROOT, CHILD), Gated("child", CHILD, LEAF), Gated("leaf", LEAF)
    root.gate.set()
    child.gate.set()
    operations = [root.operation, child.operation, leaf.operation]
    async with Environment(operations, source) as env:
        emitted = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await leaf.at(1)
        assert await env.engine.topics.cancel_token(TOKEN)
        leaf.gate.set()
        await rolled_back(emitted)
        assert leaf.done == ["step 0", "step 1", "undo 1", "undo 0"]
        assert child.done == root.done == ["step 0", "undo 0"]
        await agree(env, *operations)


async def test_a_token_of_one_emission_leaves_the_emitter_alone(source: StoreSource) -> None:
    """The emitter is asked what to do about its child, and goes on."""
    seen = list[Any]()
    root, child, leaf = Operation[Message]("root", ROOT), Gated("child", CHILD, LEAF), Gated("leaf", LEAF)
    child.gate.set()

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        seen.append(scope.tokens)
        await scope.emit(CHILD, {}, tokens=[TOKEN])

    @emits.on_child_failure
    async def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
        seen.append(failure.root_cause.type)

    operations = [root, child.operation, leaf.operation]
    tenant = CancellationToken("tenant")
    async with Environment(operations, source) as env:
        emitted = await env.engine.emit(ROOT, {}, tokens=[tenant])
        await leaf.at(0)
        run = await env.engine.runs.get(await run_of(env.engine, "leaf"))
        assert run is not None
        assert await env.engine.topics.cancel_token(TOKEN)
        leaf.gate.set()
        await emitted.finished()
        assert seen == [(tenant,), "CancellationRequested"]
        assert leaf.done == ["step 0", "undo 0"]
        await agree(env, *operations)


async def test_what_a_rollback_emits_is_not_stopped_by_its_reason(source: StoreSource) -> None:
    begun, gate, done = asyncio.Event(), asyncio.Event(), list[Any]()
    root, child = Operation[Message]("root", ROOT), Operation[Message]("child", CHILD)

    @root.step
    async def works(scope: Scope, message: Message) -> None:
        begun.set()
        await gate.wait()

    @works.rollback
    async def undo(scope: Scope, message: Message, cause: Failure) -> None:
        await scope.emit(CHILD, {"number": 1})
        await scope.emit(CHILD, {"number": 2}, tokens=[CancellationToken("other")])

    @child.step
    async def notes(scope: Scope, message: Message) -> None:
        done.append((message["number"], scope.tokens))

    async with Environment([root, child], source) as env:
        emitted = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await begun.wait()
        assert await env.engine.topics.cancel_token(TOKEN)
        gate.set()
        await rolled_back(emitted)
        assert sorted(done) == [(1, ()), (2, (CancellationToken("other"),))]
        await agree(env, root, child)


async def test_a_hierarchy_of_its_own_has_only_the_tokens_that_it_is_given(source: StoreSource) -> None:
    seen = list[Any]()
    root, child = Operation[Message]("root", ROOT), Operation[Message]("child", CHILD)

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        await scope.emit_globally(CHILD, {"number": 1})
        await scope.emit_globally(CHILD, {"number": 2}, tokens=scope.tokens)

    @child.step
    async def notes(scope: Scope, message: Message) -> None:
        seen.append((message["number"], scope.tokens))

    async with Environment([root, child], source) as env:
        await (await env.engine.emit(ROOT, {}, tokens=[TOKEN])).finished()
        await env.settle()
        assert sorted(seen) == [(1, ()), (2, (TOKEN,))]
        tags = [run.tags for run in (await env.engine.runs.list(workflow="child")).runs]
        assert {"perdure.token:deploy-17": "given"} in tags
        assert {} in tags


async def test_a_periodic_operation_keeps_its_tokens(source: StoreSource) -> None:
    rounds = list[int]()
    periodic: Operation[Message] = Operation("root", ROOT)
    periodic.periodic(HOUR, count=10)

    @periodic.step
    async def works(scope: Scope, message: Message) -> None:
        rounds.append(len(rounds))

    async with Environment([periodic], source, autojump_s=None) as env:
        await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await env.advance(3.5 * HOUR)
        assert len(rounds) == 3
        assert await env.engine.topics.cancel_token(TOKEN)
        await env.advance(24 * HOUR)
        assert len(rounds) == 3
        await agree(env, periodic)


async def test_workflows_that_an_operation_has_started(source: StoreSource) -> None:
    begun, never, done = asyncio.Event(), asyncio.Event(), list[str]()

    @step
    async def packs() -> None:
        done.append("packs")
        begun.set()
        await never.wait()

    @workflow
    async def pack() -> None:
        await packs()

    root: Operation[Message] = Operation("root", ROOT)

    @root.step
    async def starts(scope: Scope, message: Message) -> None:
        await scope.start(pack())

    @root.step
    async def more(scope: Scope, message: Message) -> None:
        done.append("more")

    async with Environment([root, pack], source) as env:
        emitted = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await begun.wait()
        assert await env.engine.topics.cancel_token(TOKEN)
        await rolled_back(emitted)
        assert done == ["packs"]
        assert await env.engine.handle(await run_of(env.engine, pack.name)).status() == "cancelled"


# Members, wherever they are.


async def test_members_that_sleep_and_that_nobody_has_in_memory(source: StoreSource) -> None:
    sleeper: Operation[Message] = Operation("root", ROOT)
    sleeper.sleep(HOUR)

    @sleeper.step
    async def never(scope: Scope, message: Message) -> None:
        raise AssertionError("it has given up before")

    async with Environment([sleeper], source, autojump_s=None, limits=Limits(live_runs_max=1)) as env:
        roots = [await env.engine.emit(ROOT, {}, tokens=[TOKEN]) for _ in range(5)]
        delayed = await env.engine.emit(ROOT, {}, tokens=[TOKEN], delay=HOUR)
        await env.settle()
        owners = [run.owner for run in (await env.engine.runs.list()).runs]
        assert owners.count(None) >= 4
        assert await env.engine.topics.cancel_token(TOKEN)
        for root in (*roots, delayed):
            await rolled_back(root)
        await agree(env, sleeper)


async def test_members_that_are_held_and_have_done_nothing(source: StoreSource) -> None:
    gated = Gated()
    async with Environment([gated.operation], source, autojump_s=None) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN], delay=HOUR)
        assert await env.engine.handle(root.run_ids[0]).pause()
        assert await env.engine.topics.cancel_token(TOKEN)
        await rolled_back(root, "it was to give up while it was held")
        assert gated.done == []
        await agree(env, gated.operation)


@pytest.mark.parametrize("first", ["hold", "cancel"])
async def test_members_that_are_held_and_have_something_to_undo(source: StoreSource, first: str) -> None:
    """They say that they are to give up, and do so when they are resumed."""
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await gated.at(1)
        if first == "hold":
            assert await env.engine.handle(root.run_ids[0]).pause()
            assert await env.engine.topics.cancel_token(TOKEN)
        else:
            assert await env.engine.topics.cancel_token(TOKEN)
            assert await env.engine.handle(root.run_ids[0]).pause()
        await env.quiet()
        view = await env.engine.runs.get(root.run_ids[0])
        assert view is not None
        assert view.hold is not None
        assert "It is to give up" in view.hold.details
        assert await env.engine.handle(root.run_ids[0]).resume()
        await rolled_back(root)
        assert gated.done == ["step 0", "step 1", "undo 0"]
        await agree(env, gated.operation)


async def test_members_whose_service_is_down(make_store: Callable[[], Store]) -> None:
    """Nobody has the code of the handler: its run never begins, whether it was emitted before the cancellation or
    after."""
    gated, root = Gated("child", CHILD), Operation[Message]("root", ROOT)

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {}, tokens=[TOKEN])

    async with Environment([gated.operation], make_store):
        pass  # It is registered.
    async with Environment([root], make_store) as env:
        before = [await env.engine.emit(CHILD, {}, tokens=[TOKEN]), await env.engine.emit(ROOT, {})]
        await env.quiet()
        assert await env.engine.topics.cancel_token(TOKEN)
        for emitted in before:
            await rolled_back(emitted)
        await rolled_back(await env.engine.emit(ROOT, {}))
        await rolled_back(await env.engine.emit(CHILD, {}, tokens=[TOKEN]))
        assert gated.done == []
        await agree(env, root, gated.operation)


async def test_handlers_that_come_late_have_the_tokens_of_what_they_handle(source: StoreSource) -> None:
    """The emitter waits for more messages than are drafted in one turn. The first and the last have a token."""
    root = Operation[Message]("root", ROOT)

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        for number in range(300):
            await scope.emit(CHILD, {}, tokens=[TOKEN] if number in (0, 299) else [])

    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "absent")
        await env.engine.emit(ROOT, {})
        await env.settle()
        await env.engine.topics.register(CHILD, "late")
        await env.settle()
        assert await env.engine.topics.cancel_token(TOKEN)
        await env.settle()
        runs = (await env.engine.runs.list(limit=1000)).runs
        found = Counter(f"{run.workflow} {run.status}" for run in runs if run.workflow != "root")
        assert found == {"absent created": 298, "absent rolled_back": 2, "late created": 298, "late rolled_back": 2}
        await agree(env, root)


async def test_members_that_roll_back_or_have_ended_are_left_alone(source: StoreSource) -> None:
    gated = Gated(steps=1)
    gated.gate.set()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await root.finished()
        assert await env.engine.topics.cancel_token(TOKEN)
        await root.finished()
        assert await env.engine.handle(root.id).roll_back()
        await rolled_back(root, "asked for")
        assert gated.done == ["step 0", "undo 0"]
        await agree(env, gated.operation)


async def test_members_of_other_engines(make_store: Callable[[], Store]) -> None:
    """Once the answer is there, no step of theirs begins. They look for mail once a second."""
    root, child = Gated("root", ROOT, CHILD, steps=2), Gated("child", CHILD)
    root.gate.set()
    async with Environment([root.operation, child.operation], make_store, autojump_s=None, poll_s=1.0) as env:
        async with Client(make_store(), clock=env.clock, poll_s=1.0) as client:
            emitted = await client.emit(ROOT, {}, tokens=[TOKEN])
            await passing(env, child.at(1))
            assert await passing(env, client.topics.cancel_token(TOKEN))
            child.gate.set()
            with pytest.raises(ScopeFailed, match="deploy-17"):
                await passing(env, emitted.finished())
        assert child.done == ["step 0", "step 1", "undo 1", "undo 0"]
        assert root.done == ["step 0", "undo 0"]
        await agree(env, root.operation, child.operation)


async def test_tags_that_users_change_leave_tokens_alone(source: StoreSource) -> None:
    gated = Gated()
    async with Environment([gated.operation], source) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN], tags={"tenant": "acme"})
        await gated.at(0)
        view = await env.engine.handle(root.run_ids[0]).update(tags={"tenant": "other"})
        assert view.tags == {"tenant": "other", "perdure.token:deploy-17": "given"}
        assert await env.engine.topics.cancel_token(TOKEN)
        gated.gate.set()
        await rolled_back(root)


def test_what_is_no_token() -> None:
    for name in ("", "x" * 401, "a\0b", "\ud800", 5):
        with pytest.raises(InvalidArguments, match="cancellation token"):
            CancellationToken(name)  # type: ignore[arg-type]


async def test_what_is_no_list_of_tokens() -> None:
    gated = Gated()
    async with Environment([gated.operation]) as env:
        for tokens in ("deploy-17", TOKEN, ["deploy-17"]):
            with pytest.raises(InvalidArguments, match="token"):
                await env.engine.emit(ROOT, {}, tokens=tokens)  # type: ignore[arg-type]
        with pytest.raises(InvalidArguments, match="token"):
            await env.engine.topics.cancel_token("deploy-17")  # type: ignore[arg-type]
        assert (await env.engine.runs.list()).runs == []


async def test_the_context_says_which_tokens_there_are(source: StoreSource) -> None:
    seen = list[Any]()
    root: Operation[Message] = Operation("root", ROOT)

    @root.step
    async def notes(scope: Scope, message: Message) -> None:
        seen.append(scope.tokens)

    async with Environment([root], source) as env:
        await (await env.engine.emit(ROOT, {}, context=Context(), tokens=[TOKEN, TOKEN])).finished()
        assert seen == [(TOKEN,)]
