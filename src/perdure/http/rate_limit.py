"""How fast callers may ask: a bucket of tokens for each, in memory, of a bounded number of callers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

CALLERS_MAX: Final = 10_000


class Pace:
    """Each caller may ask `burst` times at once, and `per_s` times a second from then on."""

    def __init__(self, per_s: float, burst: int, now: Callable[[], float] = monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, and since when

    def wait_s(self, caller: str) -> int:
        """Count a request; 0, or, if it is one too many, after how many seconds there is room for one. One too many
        counts for nothing. Who has not asked for longest is forgotten first, and then has all of the burst again."""
        now = self._now()
        left, since = self._left.pop(caller, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._per_s)
        is_allowed = left >= 1
        self._left[caller] = (left - 1 if is_allowed else left, now)
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)
        return 0 if is_allowed else max(1, math.ceil((1 - left) / self._per_s))


__all__ = ["CALLERS_MAX", "Pace"]
