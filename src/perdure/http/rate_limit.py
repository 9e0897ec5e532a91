"""Rate limits. Each caller has a token bucket. The buckets are in memory, for a bounded number of callers."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic
from typing import Final

CALLERS_MAX: Final = 10_000


class Pace:
    """Allows each caller `burst` requests at once, and then `per_s` requests per second."""

    def __init__(self, per_s: float, burst: int, now: Callable[[], float] = monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._now = now
        self._left: OrderedDict[str, tuple[float, float]] = (
            OrderedDict()
        )  # by caller: the number of tokens in its bucket, and when it was computed

    def wait_s(self, caller: str) -> int:
        """Count a request. Return 0 if it is allowed. Otherwise return the number of seconds until the next request is
        allowed.

        A request that is not allowed is not counted. If there are too many callers, the caller whose last request is
        the oldest is forgotten. After that, this caller has its whole burst again.
        """
        now = self._now()
        left, since = self._left.pop(caller, (float(self._burst), now))
        left = min(self._burst, left + (now - since) * self._per_s)
        is_allowed = left >= 1
        self._left[caller] = (left - 1 if is_allowed else left, now)
        if len(self._left) > CALLERS_MAX:
            self._left.popitem(last=False)
        return 0 if is_allowed else max(1, math.ceil((1 - left) / self._per_s))


__all__ = ["CALLERS_MAX", "Pace"]
