"""Lives: the number of times that a run has continued as another call. Positions begin again in each life, so
idempotency keys include the life.

The number is at the end of the run's origin, after the call with which the run was started: `poll 5d41… #3`. A run that
has not continued has no number. Older versions of Perdure did not count lives. A run that continued under such a
version has no number either, so its keys stay the same.
"""

from __future__ import annotations

import re
from typing import Final

_NUMBERED: Final = re.compile(r"(.*) #([1-9][0-9]*)", re.DOTALL)


def life_of(origin: str) -> int:
    """Return how often the run with this origin has continued. The result is 0 in the run's first life."""
    found = _NUMBERED.fullmatch(origin) if origin else None
    return 0 if found is None else int(found[2])


def without_life(origin: str) -> str:
    """Return the origin without the life. It is the call with which the run was started, or the run's message and
    lineage.
    """
    found = _NUMBERED.fullmatch(origin)
    return origin if found is None else found[1]


def next_life(origin: str) -> str:
    """Return the origin of the same run in its next life."""
    return f"{without_life(origin)} #{life_of(origin) + 1}"
