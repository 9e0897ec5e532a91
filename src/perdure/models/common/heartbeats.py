"""When what heartbeats say is written: what functions' steps and operations' steps share."""

from __future__ import annotations

from collections.abc import Callable

from perdure.ports import Clock, TimerHandle

WRITE_EVERY_US = 200_000


class Beats:
    """When one step's details are written: at once, but not before the last write has landed, nor soon after it.

    `write` is to take the newest details to the store; `written` is called when they are there.
    """

    __slots__ = ("_clock", "_is_hasty", "_is_stale", "_is_writing", "_next_at", "_timer", "_write")

    def __init__(self, clock: Clock, write: Callable[[], None]) -> None:
        self._clock = clock
        self._write = write
        self._is_stale = False
        self._is_writing = False
        self._is_hasty = False
        self._next_at = clock.monotonic()
        self._timer: TimerHandle | None = None

    def changed(self) -> None:
        """There are new details."""
        self._is_stale = True
        self._go_on()

    def written(self) -> None:
        self._is_writing = False
        self._go_on()

    def flush(self) -> None:
        """From now on write as soon as possible: there may be no later."""
        self._is_hasty = True
        self._stop_timer()
        self._go_on()

    def settle(self) -> None:
        """The newest details go to the store in another way, or matter no more."""
        self._is_stale = False
        self._stop_timer()

    def _go_on(self) -> None:
        if not self._is_stale or self._is_writing or self._timer is not None:
            return
        now = self._clock.monotonic()
        if now < self._next_at and not self._is_hasty:
            self._timer = self._clock.call_after(self._next_at - now, self._due)
            return
        self._is_stale = False
        self._is_writing = True
        self._next_at = now + WRITE_EVERY_US
        self._write()

    def _due(self) -> None:
        self._timer = None
        self._go_on()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
