"""Idempotency keys in operations: one for all attempts of an execution, also after a crash, and another for each other
execution."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry, current_step
from perdure.cooperation import Failure, Operation, Scope, go_on, repeat
from perdure.errors import ScopeFailed
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic

ROOT, CHILD = topic("root"), topic("child")
Message = dict[str, Any]
TWICE = Retry(attempts=2, initial=timedelta(milliseconds=1))


class Keys:
    """The keys that each execution was given, by run, code and iteration, and how often it was given one."""

    def __init__(self) -> None:
        self.given: dict[tuple[str, str, int], list[str]] = {}
        self.begun, self.gate = asyncio.Event(), asyncio.Event()

    def note(self, what: str, number: int) -> int:
        """Return which attempt of the execution this is, counted across processes."""
        here = current_step()
        keys = self.given.setdefault((here.run_id, what, number), [])
        keys.append(here.idempotency_key)
        return len(keys)

    def operations(self) -> list[Operation[Message]]:
        root, child = Operation[Message]("root", ROOT), Operation[Message]("child", CHILD)

        @root.step(retry=TWICE)
        async def draw(scope: Scope, message: Message) -> Any:
            if self.note("draw", scope.iteration) == 1:
                raise ValueError("not yet")
            return repeat() if scope.iteration < 2 else go_on()

        @draw.rollback(retry=TWICE)
        async def undraw(scope: Scope, message: Message, cause: Failure) -> None:
            if self.note("undraw", scope.iteration) == 1:
                raise ValueError("not yet")

        @root.step
        async def waits(scope: Scope, message: Message) -> None:
            if self.note("waits", 0) == 1:
                self.begun.set()
                await self.gate.wait()
            await scope.emit(CHILD, {})

        @waits.on_child_failure(retry=TWICE)
        async def answer(scope: Scope, message: Message, failure: Failure, attempt: int) -> None:
            if self.note("answer", attempt) == 1:
                raise ValueError("not yet")
            if attempt < 2:
                await scope.emit(CHILD, {})
            else:
                raise ValueError("that was enough")

        @child.step
        async def fails(scope: Scope, message: Message) -> None:
            self.note("fails", 0)
            raise ValueError("no")

        return [root, child]


async def test_an_execution_has_one_key_and_no_other_execution_has_it(source: StoreSource) -> None:
    keys = Keys()
    async with Environment(keys.operations(), source) as env:
        await env.engine.emit(ROOT, {}, id="m")
        await env.engine.emit(ROOT, {}, id="n")
        await keys.begun.wait()
        await env.restart()  # It dies in a step of one run, or of both. The next process runs them again.
        keys.gate.set()
        for id in ("m", "n"):
            with pytest.raises(ScopeFailed):
                await (await env.engine.emit(ROOT, {}, id=id)).finished()
    codes = [(what, number) for _, what, number in keys.given]
    for what in ("draw", "undraw"):
        assert sorted(number for code, number in codes if code == what) == [0, 0, 1, 1, 2, 2]
    assert len({number for code, number in codes if code == "answer"}) >= 2
    assert any(len(given) > 1 for (_, what, _), given in keys.given.items() if what == "waits")
    each = [set(given) for given in keys.given.values()]
    assert {len(one) for one in each} == {1}, keys.given
    assert len(set[str]().union(*each)) == len(each)
