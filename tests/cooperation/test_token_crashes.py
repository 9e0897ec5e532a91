"""Cancellation tokens when processes die, and when a cancellation meets an emission."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Limits
from perdure.client import Client
from perdure.cooperation import CancellationToken, Operation, Scope
from perdure.errors import ScopeFailed
from perdure.ports import Store
from perdure.testing import CRASH_POINTS, Environment, Fault, YieldPoints
from perdure.testing.environment import StoreSource
from tests.cooperation.test_cancelling import CHILD, ROOT, Gated, Message, passing
from tests.cooperation.test_cooperation_engine import agree
from tests.cooperation.test_crashes import survives
from tests.races.races import ORDERS, Order, Racer, meet

TOKEN = CancellationToken("deploy-17")
POINTS = ["before_commit", "committed"]


# On Postgres each trial takes a while, so those of one point are a test.
@pytest.fixture(params=["memory", "sqlite", *(f"postgres {point}" for point in CRASH_POINTS)])
def on(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def sleeper(name: str, topic: Any, *emits: Any) -> Operation[Message]:
    """An operation that emits, then sleeps for ever."""
    made: Operation[Message] = Operation(name, topic)

    @made.step
    async def begin(scope: Scope, message: Message) -> None:
        for one in emits:
            await scope.emit(one, {})

    made.sleep(timedelta(days=1000))

    @made.step
    async def never(scope: Scope, message: Message) -> None:
        raise AssertionError("nobody slept so long")

    return made


# The process dies, at every commit.


async def test_members_in_several_hierarchies(on: str) -> None:
    async def scenario(env: Environment) -> None:
        for number in range(2):
            await env.engine.emit(ROOT, {}, id=f"m-{number}", tokens=[TOKEN])
        await env.settle()
        await env.engine.topics.cancel_token(TOKEN)

    operations = [sleeper("root", ROOT, CHILD), sleeper("child", CHILD)]
    expected = [(name, "rolled_back", False) for name in ("child", "child", "root", "root")]
    await survives(on, operations, scenario, expected)


async def test_a_token_that_is_cancelled_before(on: str) -> None:
    """The service of one handler is down: its runs, emitted from outside and by a step, end all the same."""
    root = Operation[Message]("root", ROOT)

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {}, tokens=[TOKEN])

    async def scenario(env: Environment) -> None:
        await env.engine.topics.register(CHILD, "child")
        await env.engine.topics.cancel_token(TOKEN)
        await env.engine.emit(CHILD, {}, id="m-1", tokens=[TOKEN])
        await env.engine.emit(ROOT, {}, id="m-2")
        await env.settle()

    expected = [(name, "rolled_back", False) for name in ("child", "child", "root")]
    await survives(on, [root], scenario, expected)


async def test_members_that_are_at_work(on: str) -> None:
    """One has the token from outside and one from a step, which emits while the token is cancelled. What they have done
    is undone; the emitter of the second one forgives that."""
    operations, begun = [Operation[Message]("member", CHILD), Operation[Message]("root", ROOT)], asyncio.Event()
    member, root = operations

    @member.step
    async def works(scope: Scope, message: Message) -> None: ...

    @works.rollback
    async def undo(scope: Scope, message: Message, cause: Any) -> None: ...

    @member.step
    async def waits(scope: Scope, message: Message) -> None:
        scope.sleep(timedelta(days=1000))

    @root.step
    async def emits(scope: Scope, message: Message) -> None:
        begun.set()
        await asyncio.sleep(0)
        await scope.emit(CHILD, {}, tokens=[TOKEN])

    @emits.on_child_failure
    async def forgives(scope: Scope, message: Message, failure: Any, attempt: int) -> None: ...

    async def scenario(env: Environment) -> None:
        begun.clear()
        await env.engine.emit(CHILD, {}, id="m-1", tokens=[TOKEN])
        await env.settle()
        emitting = asyncio.create_task(env.engine.emit(ROOT, {}, id="m-2"))
        if not (await env.engine.runs.list(workflow="root")).runs:
            await begun.wait()
        await env.engine.topics.cancel_token(TOKEN)
        await emitting

    expected = [("member", "rolled_back", False), ("member", "rolled_back", False), ("root", "succeeded", False)]
    await survives(on, operations, scenario, expected)


@pytest.mark.parametrize("point", ["before_effects", "after_effects"])
@pytest.mark.parametrize("commit", [1, 2])
async def test_a_canceller_that_dies_when_the_token_is_cancelled(
    make_store: Callable[[], Store], point: Any, commit: int
) -> None:
    """It dies after it has cancelled the token, or after it has told the members. Another engine reads its mail, as all
    do regularly."""
    member = Gated("root", ROOT)
    async with (
        Environment([member.operation], make_store, autojump_s=None) as env,
        Environment([], make_store, clock=env.clock, autojump_s=None, fault=Fault(point, commit)) as dying,
    ):
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        await member.at(0)
        cancelling = asyncio.ensure_future(dying.engine.topics.cancel_token(TOKEN, reason="broken build"))
        await dying.death()
        cancelling.cancel()
        await env.engine.recover()
        member.gate.set()
        with pytest.raises(ScopeFailed, match="broken build"):
            await root.finished()
        assert member.done == ["step 0", "undo 0"]
        await agree(env, member.operation)


@pytest.mark.parametrize("commit", [1, 2, 3])
async def test_a_canceller_that_dies_before_all_are_told(make_store: Callable[[], Store], commit: int) -> None:
    """Members are told page by page."""
    made = sleeper("root", ROOT)
    async with (
        Environment([made], make_store, autojump_s=None, limits=Limits(live_runs_max=10)) as env,
        Environment([], make_store, clock=env.clock, autojump_s=None, fault=Fault("before_effects", commit)) as dying,
    ):
        roots = await asyncio.gather(*(env.engine.emit(ROOT, {}, tokens=[TOKEN]) for _ in range(450)))
        await env.settle()
        cancelling = asyncio.ensure_future(dying.engine.topics.cancel_token(TOKEN))
        await dying.death()
        cancelling.cancel()
        await env.engine.recover()
        for root in roots:
            with pytest.raises(ScopeFailed, match="deploy-17"):
                await root.finished()
        await agree(env, made)


# A cancellation meets an emission.


@pytest.mark.parametrize("order", ORDERS)
async def test_a_cancellation_that_meets_an_emission(source: StoreSource, order: Order) -> None:
    made, points, tasks = sleeper("root", ROOT, CHILD), YieldPoints(), list[asyncio.Task[Any]]()
    child = sleeper("child", CHILD)
    async with Environment([made, child], source, autojump_s=None, probe=points) as env:

        def emit() -> None:
            tasks.append(asyncio.create_task(env.engine.emit(ROOT, {}, id="m-1", tokens=[TOKEN])))

        def cancel() -> None:
            tasks.append(asyncio.create_task(env.engine.topics.cancel_token(TOKEN)))

        await meet(env, points, order, Racer("emit", None, emit), Racer("cancelscope", None, cancel))
        await asyncio.gather(*tasks)
        root = await env.engine.emit(ROOT, {}, id="m-1")
        with pytest.raises(ScopeFailed, match="deploy-17"):
            await root.finished()
        await agree(env, made, child)


@pytest.mark.parametrize("place", ["outside", "step"])
@pytest.mark.parametrize("point", POINTS)
async def test_a_cancellation_elsewhere_while_an_emission_is_committed(
    make_store: Callable[[], Store], point: str, place: str
) -> None:
    """The canceller looks for members before the emission is committed, or right after."""
    made, points, emitter = sleeper("root", ROOT), YieldPoints(), Operation[Message]("emitter", CHILD)

    @emitter.step
    async def emits(scope: Scope, message: Message) -> None:
        await scope.emit(ROOT, {}, tokens=[TOKEN])

    async with (
        Environment([made, emitter], make_store, autojump_s=None, poll_s=1.0, probe=points) as env,
        Client(make_store(), clock=env.clock, poll_s=1.0) as client,
    ):
        kind = "emit" if place == "outside" else "cooperate"
        with points.hold(f"{kind}.{point}") as held:
            if place == "outside":
                emitting = asyncio.create_task(env.engine.emit(ROOT, {}, tokens=[TOKEN]))
            else:
                emitting = asyncio.create_task(env.engine.emit(CHILD, {}))
            await held.reached()
            cancelling = asyncio.create_task(client.topics.cancel_token(TOKEN))
            while point == "before_commit" and not cancelling.done():
                await asyncio.sleep(0.001)
            for _ in range(200):
                await asyncio.sleep(0.001)
        root = await passing(env, emitting)
        assert await passing(env, cancelling)
        with pytest.raises(ScopeFailed, match="deploy-17"):
            await passing(env, root.finished())
        await agree(env, made, emitter)


@pytest.mark.parametrize("op", ["cancelscope", "notifymembers"])
@pytest.mark.parametrize("point", POINTS)
async def test_an_emission_elsewhere_while_a_cancellation_is_committed(
    make_store: Callable[[], Store], op: str, point: str
) -> None:
    made, points = sleeper("root", ROOT), YieldPoints()
    async with (
        Environment([made], make_store, autojump_s=None, poll_s=1.0) as env,
        Client(make_store(), clock=env.clock, poll_s=1.0, probe=points) as client,
    ):
        early = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        with points.hold(f"{op}.{point}") as held:
            cancelling = asyncio.create_task(client.topics.cancel_token(TOKEN))
            # The other engine may be faster to read the mail.
            reached = asyncio.ensure_future(held.reached())
            await asyncio.wait({reached, cancelling}, timeout=1, return_when=asyncio.FIRST_COMPLETED)
            reached.cancel()
            late = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
            for _ in range(50):
                await asyncio.sleep(0.001)
        assert await passing(env, cancelling)
        for root in (early, late):
            with pytest.raises(ScopeFailed, match="deploy-17"):
                await passing(env, root.finished())
        await agree(env, made)


async def test_two_who_cancel_the_same_token_at_once(source: StoreSource) -> None:
    made = sleeper("root", ROOT)
    async with Environment([made], source, autojump_s=None) as env:
        root = await env.engine.emit(ROOT, {}, tokens=[TOKEN])
        reasons = ["one", "two", "three"]
        answers = await asyncio.gather(*(env.engine.topics.cancel_token(TOKEN, reason=reason) for reason in reasons))
        assert sorted(answers) == [False, False, True]
        with pytest.raises(ScopeFailed, match=f"cancelled: {reasons[answers.index(True)]}"):
            await root.finished()
        await agree(env, made)
