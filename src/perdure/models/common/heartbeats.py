"""The times at which the details of heartbeats are written to the store. The steps of functions and of operations share
this module.
"""

from __future__ import annotations

from typing import Protocol

from perdure.ports import Clock, TimerHandle

WRITE_EVERY_US = 200_000


class BeatsListener(Protocol):
    """The step whose heartbeat details are written."""

    def write_details(self) -> None:
        """Write the newest details to the store, and call `Beats.written` when they are committed."""
        ...


class Beats:
    """Decides when the details of one step are written. They are written at once, but not during another write, and not
    too soon after it.
    """

    __slots__ = ("_clock", "_is_hasty", "_is_stale", "_is_writing", "_listener", "_next_at", "_timer")

    def __init__(self, clock: Clock, listener: BeatsListener) -> None:
        self._clock = clock
        self._listener = listener
        self._is_stale = False
        self._is_writing = False
        self._is_hasty = False
        self._next_at = clock.monotonic()
        self._timer: TimerHandle | None = None

    def changed(self) -> None:
        """Note that the step has new details."""
        self._is_stale = True
        self._go_on()

    def written(self) -> None:
        self._is_writing = False
        self._go_on()

    def flush(self) -> None:
        """From now on, write as soon as possible, because the engine may be about to end."""
        self._is_hasty = True
        self._stop_timer()
        self._go_on()

    def settle(self) -> None:
        """Write nothing more, because the newest details are stored in another way or no longer matter."""
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
        self._listener.write_details()

    def _due(self) -> None:
        self._timer = None
        self._go_on()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
