"""Unique ids."""

from __future__ import annotations

import hashlib
import os
from typing import Protocol


class Ids(Protocol):
    """Makes unique ids for runs, events and engines."""

    def __call__(self, now: int, /) -> str: ...


def new_id(now: int) -> str:
    """Return a UUIDv7. It has 48 bits of milliseconds, followed by random bits. An id that is made in a later
    millisecond sorts later.
    """
    time = f"{now // 1000:012x}"
    try:
        return f"{time[:8]}-{time[8:]}-{_CHANCES.pop()}"
    except IndexError:
        # Random bits are drawn for many ids at once, because a system call for each id would take longer than
        # everything else. Other threads may fill the list at the same time.
        drawn = os.urandom(10 * _CHANCES_DRAWN).hex()
        _CHANCES.extend([_chance(drawn[start : start + 20]) for start in range(0, len(drawn), 20)])
        return new_id(now)


def derived_id(now: int, seed: str) -> str:
    """Return an id in the form of `new_id`. The same time and seed always give the same id."""
    time = f"{now // 1000:012x}"
    return f"{time[:8]}-{time[8:]}-{_chance(hashlib.sha256(seed.encode()).hexdigest()[:20])}"


def _chance(digits: str) -> str:
    return f"7{digits[:3]}-{_VARIANT[digits[3]]}{digits[4:7]}-{digits[7:19]}"


_CHANCES: list[str] = []  # the random ends of the next ids; each is used once
_CHANCES_DRAWN = 256
os.register_at_fork(after_in_child=_CHANCES.clear)

# the two highest bits of this digit are 10
_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}
