"""Lives: how often a run has gone on as another call. Positions begin anew in each, so what names one names its life.

The number stands at the end of the run's origin, after what the run was started as: `poll 5d41… #3`. A run that has not
continued has none, and neither has one that continued before lives were counted: its keys stay as they were.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBERED: Final = re.compile(r"(.*) #([1-9][0-9]*)", re.DOTALL)


def life_of(origin: str) -> int:
    """How often the run with this origin has continued: 0 in its first life."""
    found = _NUMBERED.fullmatch(origin) if origin else None
    return 0 if found is None else int(found[2])


def without_life(origin: str) -> str:
    """The origin itself: what the run was started as, or its message and lineage."""
    found = _NUMBERED.fullmatch(origin)
    return origin if found is None else found[1]


def next_life(origin: str) -> str:
    """The origin of the same run in its next life."""
    return f"{without_life(origin)} #{life_of(origin) + 1}"
