"""One service of a fleet: a process with an engine that has some of the operations. Its program is
`python -m tests.cooperation.service URL GROUP CLOCK_SKEW_S`; it says when it is open, and runs until it is killed."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

from perdure import Engine
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.ports import SystemClock, TimerHandle

Message = dict[str, Any]

TOPICS: Sequence[Topic[Message]] = [Topic(f"level {level}", dict[str, Any]) for level in range(3)]
LEVELS = {"root": 0, "middle a": 1, "middle b": 1, "leaf a": 2, "leaf b": 2}
GROUPS = [["root", "leaf a"], ["middle a", "leaf b"], ["middle b", "leaf a"]]
OPEN = "open"


def operation(name: str) -> Operation[Message]:
    """Emits to the level below, and fails where its message says so; the leaves fail before they have done anything,
    others when all below them is done."""
    level = LEVELS[name]
    made = Operation(name, TOPICS[level])

    @made.step
    async def first(scope: Scope, message: Message) -> None:
        if level < len(TOPICS) - 1:
            await scope.emit(TOPICS[level + 1], message)

    @first.rollback
    async def undo_first(scope: Scope, message: Message, cause: Failure) -> None: ...

    @made.step
    def second(scope: Scope, message: Message) -> None:
        if message["fails"] == name:
            raise ValueError(f"{name} was told to fail")

    @second.rollback
    def undo_second(scope: Scope, message: Message, cause: Failure) -> None: ...

    return made


class SkewedClock(SystemClock):
    """Another machine's clock."""

    def __init__(self, skew_s: float) -> None:
        self._skew = round(skew_s * 1_000_000)

    def now(self) -> int:
        return super().now() + self._skew

    def call_at(self, when: int, callback: Any) -> TimerHandle:
        return super().call_at(when, callback)


async def serve(url: str, group: int, skew_s: float) -> None:
    operations = [operation(name) for name in GROUPS[group]]
    async with Engine(url, workflows=operations, clock=SkewedClock(skew_s)):
        print(OPEN, flush=True)  # noqa: T201 - whoever started it waits for that
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], int(sys.argv[2]), float(sys.argv[3])))
