"""An operation whose strategy does not mind a deadline waits on after it, and asks no more often for that."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from perdure import Retry
from perdure.cooperation import Failure, Operation, Scope, Strategy
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import agree, run_of, status_of

ROOT, CHILD = topic("root"), topic("child")
HOUR = timedelta(hours=1)
Message = dict[str, Any]


class Steadfast(Strategy):
    """Minds nothing, but loses its patience with who asks without end."""

    def __init__(self) -> None:
        self.asked = 0

    def heeds(self, reasons: Sequence[Failure]) -> Sequence[Failure]:
        self.asked += 1
        return reasons if self.asked > 50 else ()


def asking() -> Operation[Message]:
    root = Operation[Message]("root", ROOT, strategy=Steadfast())

    @root.step
    async def ask(scope: Scope, message: Message) -> None:
        await scope.emit(CHILD, {})

    return root


async def test_a_run_that_waits_for_a_child(source: StoreSource) -> None:
    root = asking()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "person")
        await env.engine.emit(ROOT, {}, deadline=HOUR)
        await env.advance(2 * HOUR)
        assert await status_of(env.engine, "root") == "suspended"
        await env.engine.topics.complete(await run_of(env.engine, "person"))
        await agree(env, root)
        assert await status_of(env.engine, "root") == "succeeded"


async def test_a_run_that_waits_for_a_child_to_be_undone(source: StoreSource) -> None:
    root = asking()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.topics.register(CHILD, "person")
        emitted = await env.engine.emit(ROOT, {}, rollback_deadline=HOUR)
        await env.settle()
        await env.engine.topics.complete(await run_of(env.engine, "person"))
        await env.settle()
        assert await emitted.roll_back()
        await env.advance(2 * HOUR)
        assert await status_of(env.engine, "root") == "rolling_back"
        await env.engine.topics.complete_rollback(await run_of(env.engine, "person"))
        await agree(env, root)
        assert await status_of(env.engine, "root") == "rolled_back"


async def test_a_run_that_has_a_delay(source: StoreSource) -> None:
    root = asking()
    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.emit(ROOT, {}, deadline=HOUR, delay=3 * HOUR)
        await env.advance(2 * HOUR)
        assert await status_of(env.engine, "root") == "suspended"
        await env.advance(2 * HOUR)
        await agree(env, root)
        assert await status_of(env.engine, "root") == "succeeded"


async def test_a_run_that_waits_for_its_next_attempt(source: StoreSource) -> None:
    root = Operation[Message]("root", ROOT, strategy=Steadfast())
    attempts: list[int] = []

    @root.step(retry=Retry(attempts=2, initial=3 * HOUR, jitter=0))
    async def try_it(scope: Scope, message: Message) -> None:
        attempts.append(1)
        if len(attempts) < 2:
            raise ValueError("not yet")

    async with Environment([root], source, autojump_s=None) as env:
        await env.engine.emit(ROOT, {}, deadline=HOUR)
        await env.advance(2 * HOUR)
        assert await status_of(env.engine, "root") == "suspended"
        await env.advance(2 * HOUR)
        await agree(env, root)
        assert await status_of(env.engine, "root") == "succeeded"
