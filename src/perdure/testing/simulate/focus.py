"""Scenarios that show each of the deliberate bugs soon. Each scenario contains the things that its bug needs, and
little else.
"""

from __future__ import annotations

from typing import Any, Final

from perdure.testing.simulate.mix import Mix
from perdure.testing.simulate.network import Weather
from perdure.testing.simulate.transactions import Bug

__all__ = ["FOCUS"]

_NOTHING_ELSE: Final[dict[str, Any]] = {
    "graphs": (0, 0),
    "travellers": (0, 0),
    "deadlines": (0, 0),
    "letters": (0, 0),
    "retried": (0, 0),
    "parents": (0, 0),
    "sleepers": (0, 0),
    "steps_max": (1000,),
    "skews_s": (0.0,),
    "continued": 0.0,
}

# Waits and broadcasts that happen at the same time.
_MEETING = Mix(
    **_NOTHING_ELSE,
    engines=(3, 4),
    runs=(8, 10),
    tasks=(1, 3),
    pauses=(0, 0),
    kills=(0, 0),
    crowded=1.0,
    weights={"nap": 1, "take": 2},
    weather=lambda _: Weather(latency_s=0.1),
)

# Engines that wake up when other engines are about to take over their runs, in the middle of long series of steps.
_TAKEOVER = Mix(
    **_NOTHING_ELSE,
    engines=(2, 2),
    runs=(8, 10),
    tasks=(8, 10),
    starters=1,
    pauses=(5, 6),
    pauses_s=((10.0, 13.0),),
    kills=(0, 0),
    crowded=0.0,
    live_runs_max=(1000,),
    weights={"work": 1},
    weather=lambda _: Weather(latency_s=0.3),
)

# Many clients that send at the same time to runs of one engine. Some of them are slow.
_MAIL = Mix(
    **_NOTHING_ELSE,
    engines=(3, 4),
    starters=1,
    runs=(8, 10),
    tasks=(2, 5),
    pauses=(0, 0),
    kills=(0, 0),
    crowded=1.0,
    live_runs_max=(1000,),
    weights={"meet": 1},
    weather=lambda _: Weather(slow=0.1, slow_s=1.0),
)

_UNKNOWN = Mix(pauses=(0, 0), kills=(0, 0), weather=lambda _: Weather(unknown=0.1))

FOCUS: Final[dict[Bug, Mix]] = {
    Bug.NO_NAME_LOCK: _MEETING,
    Bug.EARLY_SNAPSHOT: _MEETING,
    Bug.NO_FENCE: _TAKEOVER,
    Bug.LATE_MARKING: _TAKEOVER,
    Bug.UNLOCKED_OWNERS: _MAIL,
    Bug.MAIL_CURSOR: _MAIL,
    Bug.UNKNOWN_IS_FAILURE: _UNKNOWN,
}
