"""Blame: the recovered runs that are executing now. If the process dies, only these runs are blamed.

The commit that takes over a run of a dead engine counts a recovery for the run, because the run's code starts at once.
If the run then only waits (for its turn, for a thread, or for an attempt that is due within a second), the recovery is
no longer counted. It is counted again before the next attempt begins. Once a run has made progress, it is no longer
watched. A run that was not interrupted by a crash is never watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from typing import Any, Final, TypeVar

from perdure.coordinator.port import CoordinatorPort
from perdure.kernel.ops import Count
from perdure.kernel.runs import Run
from perdure.ports import Clock

T = TypeVar("T")
_LOOK_S: Final = 1.0  # how often a thread that waits for the loop checks whether the loop can still answer


class _Watched:
    """One recovered run. `pending` are the functions to call once the recovery is counted. It is None if no commit is
    under way.
    """

    __slots__ = ("claim", "executing", "is_counted", "pending")

    def __init__(self, claim: int) -> None:
        self.claim = claim
        self.is_counted = True
        self.executing: set[object] = set()
        self.pending: list[Callable[[], None]] | None = None


class Blame:
    """The recovered runs of one host that have made no progress yet."""

    def __init__(self, clock: Clock, coordinator: CoordinatorPort) -> None:
        self._clock = clock
        self._coordinator = coordinator
        # The keys are run ids. The dict is nearly always empty. Every step checks whether it is empty, so callers read
        # it directly.
        self.watched: Final[dict[str, _Watched]] = {}

    def watch(self, run: Run) -> None:
        """Watch a run that comes into memory, if it was recovered and has not made progress since the recovery."""
        if run.recoveries:
            self.watched[run.id] = _Watched(run.claim)
        elif self.watched:
            self.watched.pop(run.id, None)

    def forget(self, run_id: str) -> None:
        """Stop watching a run that has made progress or is closed."""
        if self.watched:
            self.watched.pop(run_id, None)

    def enter(self, run_id: str, execution: object, begin: Callable[[], None]) -> None:
        """Call `begin` as soon as the run counts as executing. This is at once, or after a commit.

        If the run no longer belongs to this engine, `begin` is never called.
        """
        watched = self.watched.get(run_id)
        if watched is None:
            begin()
            return
        watched.executing.add(execution)
        if watched.pending is not None:
            watched.pending.append(begin)
        elif watched.is_counted:
            begin()
        else:
            watched.is_counted = True
            watched.pending = [begin]
            self._count(run_id, watched, 1, partial(self._counted, watched, watched.pending))

    def leave(self, run_id: str, execution: object) -> None:
        """Note that an attempt has ended. The next action of the run decides whether the run waits now."""
        if (watched := self.watched.get(run_id)) is not None:
            watched.executing.discard(execution)

    def rest(self, run_id: str) -> None:
        """Note that a part of the run waits. If no other part of the run is executing, the recovery is no longer
        counted.
        """
        watched = self.watched.get(run_id)
        if watched is not None and watched.is_counted and not watched.executing:
            watched.is_counted = False
            watched.pending = None
            self._count(run_id, watched, -1, lambda _counted, _error: None)

    def call_in_thread(
        self,
        run_id: str,
        execution: object,
        is_current: Callable[[], bool],
        loop: asyncio.AbstractEventLoop,
        function: Callable[[], T],
    ) -> T:
        """Call a function in this thread as soon as the run counts as executing.

        If the attempt is no longer the current attempt, raise CancelledError without calling the function.
        """
        leave: Future[None] = Future()

        def give() -> None:
            if not is_current():
                leave.cancel()
            elif leave.set_running_or_notify_cancel():
                leave.set_result(None)

        def ask() -> None:
            if is_current():
                self.enter(run_id, execution, give)
            else:
                leave.cancel()

        with suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(ask)
        while not wait((leave,), _LOOK_S).done:
            if loop.is_closed() or not is_current():
                leave.cancel()
        leave.result()
        return function()

    def _count(
        self, run_id: str, watched: _Watched, change: int, answered: Callable[[Any, BaseException | None], object]
    ) -> None:
        self._coordinator.request(
            Count(run_id=run_id, at=self._clock.now(), claim=watched.claim, change=change), answered
        )

    @staticmethod
    def _counted(
        watched: _Watched, pending: list[Callable[[], None]], is_counted: bool | None, error: BaseException | None
    ) -> None:
        if watched.pending is pending:
            watched.pending = None
        if is_counted and error is None:
            for begin in pending:
                begin()
