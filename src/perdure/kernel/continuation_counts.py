"""Lives: how often a run has continued as another call. Positions begin again in each life, so a key includes the life.

The number is at the end of the run's origin, after the call that the run was started as: `poll 5d41… #3`. A run that
has not continued has no number. A run that continued under an older version, which did not count lives, has no number
either: its keys are unchanged.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBERED: Final = re.compile(r"(.*) #([1-9][0-9]*)", re.DOTALL)


def life_of(origin: str) -> int:
    """Return how often the run with this origin has continued: 0 in its first life."""
    found = _NUMBERED.fullmatch(origin) if origin else None
    return 0 if found is None else int(found[2])


def without_life(origin: str) -> str:
    """Return the origin without the life: the call that the run was started as, or its message and lineage."""
    found = _NUMBERED.fullmatch(origin)
    return origin if found is None else found[1]


def next_life(origin: str) -> str:
    """Return the origin of the same run in its next life."""
    return f"{without_life(origin)} #{life_of(origin) + 1}"
