"""The server's clock: all engines on a database go by it, so that none is early because its own machine is ahead.

Nobody asks the server what time it is. Answers that are wanted anyway (at the opening, and with every heartbeat) bring
its time, and the machine's own count of seconds, which nobody sets, tells how much has passed since.
"""

from __future__ import annotations

import time
from typing import Final

from perdure.ports import SystemClock

_TOLERANCE_US: Final = 50_000  # Answers take their time, so that no two of them say quite the same.
_BOOT_TIME: Final[int | None] = getattr(
    time, "CLOCK_BOOTTIME", None
)  # Linux has it; elsewhere the ordinary clock counts.


def passed_us() -> int:
    """Microseconds that have passed, those that the machine slept among them."""
    return (time.monotonic_ns() if _BOOT_TIME is None else time.clock_gettime_ns(_BOOT_TIME)) // 1000


class ServerClock(SystemClock):
    """The server's time, as far as it is known; until then the machine's."""

    def __init__(self) -> None:
        self._ahead: int | None = None  # of the time passed

    def now(self) -> int:
        ahead = self._ahead
        return super().now() if ahead is None else ahead + passed_us()

    def learn(self, server_us: int, asked_at: int, answered_at: int) -> None:
        """The server had this time when it answered, at some moment between two of `passed_us`. From any thread.

        What lies within the doubt about that moment changes nothing, so that the clock does not waver.
        """
        ahead = server_us - (asked_at + answered_at) // 2
        doubt = max((answered_at - asked_at) // 2, _TOLERANCE_US)
        if self._ahead is None or abs(ahead - self._ahead) > doubt:
            self._ahead = ahead
