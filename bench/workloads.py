"""The workloads, by name, and their sizes. To add one: a module with `measure`, a line here, rows in report.py."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Final

from bench import floor, startup, steps, timers
from bench.figures import Figures

Sizes = dict[str, int]

MEASURES: Final[dict[str, Callable[..., Coroutine[Any, Any, Figures]]]] = {
    "floor": floor.measure,
    "steps": steps.measure,
    "timers": timers.measure,
    "startup": startup.measure,
}

_STEPS: Final[Sizes] = {"runs": 2_000, "steps": 10, "in_flight": 100, "singles": 300}
FULL: Final[dict[str, Sizes]] = {"floor": _STEPS, "steps": _STEPS, "timers": {"timers": 2_000}, "startup": {}}

_FEW: Final[Sizes] = {"runs": 200, "steps": 10, "in_flight": 100, "singles": 30}
QUICK: Final[dict[str, Sizes]] = {"floor": _FEW, "steps": _FEW, "timers": {"timers": 200}, "startup": {}}
