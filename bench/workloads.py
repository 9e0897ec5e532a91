"""The workloads, by name, and their sizes. To add one: a module with `measure`, a line here, rows in report.py."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from bench import (
    between,
    events,
    events_floor,
    fanout,
    fanout_floor,
    fleet,
    floor,
    hierarchies,
    hierarchies_floor,
    idle,
    postgres,
    recovery,
    scale,
    startup,
    steps,
    timers,
)
from bench.figures import Figures

Sizes = dict[str, int]

# A floor stands right before what is measured against it.
MEASURES: Final[dict[str, Callable[..., Coroutine[Any, Any, Figures]]]] = {
    "floor": floor.measure,
    "steps": steps.measure,
    "events_floor": events_floor.measure,
    "events": events.measure,
    "many_events_floor": events_floor.measure,
    "many_events": events.measure,
    "fanout_floor": fanout_floor.measure,
    "fanout": fanout.measure,
    "hierarchies_floor": hierarchies_floor.measure,
    "hierarchies": hierarchies.measure,
    "postgres_floor": postgres.measure_floor,
    "postgres_steps": postgres.measure,
    "postgres_two": fleet.measure_two,
    "postgres_idle": fleet.measure_idle,
    "between": between.measure,
    "postgres_between": between.measure_postgres,
    "timers": timers.measure,
    "recovery": recovery.measure,
    "idle": idle.measure,
    "startup": startup.measure,
    "scale": scale.measure,
}


def _sizes(steps: Sizes, few: int, many: int, senders: int, timers: int, idle_ms: int, balls: int) -> dict[str, Sizes]:
    events, many_events, children = {"waiters": few, "senders": senders}, {"waiters": many, "senders": senders}, few
    return {
        "floor": steps,
        "steps": steps,
        "events_floor": events,
        "events": events,
        "many_events_floor": many_events,
        "many_events": many_events,
        "fanout_floor": {"children": children},
        "fanout": {"children": children},
        "hierarchies_floor": {"hierarchies": 3 * few, "in_flight": 100},
        "hierarchies": {"hierarchies": 3 * few, "in_flight": 100},
        "postgres_floor": steps,
        "postgres_steps": steps,
        "postgres_two": steps,
        "postgres_idle": {"waiters": few, "milliseconds": max(idle_ms, 2_000)},
        "between": {"balls": balls},
        "postgres_between": {"balls": balls},
        "timers": {"timers": timers},
        "recovery": {"waiters": few},
        "idle": {"waiters": few, "milliseconds": idle_ms},
        "startup": {},
    }


FULL: Final = _sizes(
    {"runs": 2_000, "steps": 10, "in_flight": 100, "singles": 300},
    few=1_000,
    many=10_000,
    senders=200,
    timers=2_000,
    idle_ms=11_000,
    balls=100,
)
QUICK: Final = _sizes(
    {"runs": 200, "steps": 10, "in_flight": 100, "singles": 30},
    few=100,
    many=300,
    senders=50,
    timers=200,
    idle_ms=200,
    balls=5,
)
