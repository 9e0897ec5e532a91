"""Drives a workflow's loop by hand: asks for steps and answers them by name, keeps all commands as plain tuples."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any

from perdure.models.functions.loop import Commands, Completed, Raised, WorkflowLoop, running_loop

SECOND = 1_000_000
START = 1_700_000_000 * SECOND


class Step:
    """As plain as a call of a step can be."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __await__(self) -> Generator[Any, Any, Any]:
        loop = running_loop()
        assert loop is not None
        return loop.request_step(self.name, self).__await__()


async def step(name: str) -> Any:
    return await Step(name)


async def durable_sleep(seconds: float) -> Any:
    loop = running_loop()
    assert loop is not None
    return await loop.request_timer(loop.now() + round(seconds * SECOND), "sleep")


def plain(commands: Commands) -> tuple[Any, ...]:
    """Commands without what differs between two objects that mean the same."""
    end: tuple[str, ...] | None = None
    if isinstance(commands.end, Completed):
        end = ("completed", repr(commands.end.value))
    elif isinstance(commands.end, Raised):
        end = ("raised", type(commands.end.error).__name__, str(commands.end.error))
    return (
        [(one.position, one.name, one.emitted_at) for one in commands.steps],
        list(commands.steps_cancelled),
        [(one.position, one.name, one.due_at, one.since) for one in commands.timers],
        list(commands.timers_dropped),
        end,
    )


class Driver:
    def __init__(
        self, program: Callable[[], Coroutine[Any, Any, Any]], *, run_id: str = "run-1", callbacks_max: int = 1_000
    ) -> None:
        self.loop = WorkflowLoop(run_id=run_id, callbacks_max=callbacks_max)
        self.now = START
        self.history: list[tuple[Any, ...]] = []
        self.last = self._took(self.loop.begin(program, self.now))

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        self.loop.close()

    def complete(self, name: str, value: Any = None, error: BaseException | None = None, after: float = 1) -> Commands:
        """Complete the first outstanding step of that name, or at that position."""
        self.now += round(after * SECOND)
        return self._took(self.loop.complete_step(self.position(name), self.now, value, error))

    def fire(self, position: str) -> Commands:
        due_at = next(timer.due_at for timer in self.loop.outstanding_timers if timer.position == position)
        self.now = max(self.now, due_at)
        return self._took(self.loop.fire_timer(position, self.now))

    def position(self, name: str) -> str:
        return next(one.position for one in self.loop.outstanding_steps if name in (one.name, one.position))

    @property
    def waiting(self) -> dict[str, str]:
        return {one.position: one.name for one in self.loop.outstanding_steps}

    @property
    def result(self) -> Any:
        assert isinstance(self.last.end, Completed), self.last
        return self.last.end.value

    @property
    def error(self) -> BaseException:
        assert isinstance(self.last.end, Raised), self.last
        return self.last.end.error

    def _took(self, commands: Commands) -> Commands:
        assert not isinstance(asyncio._get_running_loop(), WorkflowLoop)
        self.last = commands
        self.history.append(plain(commands))
        return commands
