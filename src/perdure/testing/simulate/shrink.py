"""Make a failing scenario smaller: fewer engines, runs, tasks and faults, while the same problem shows.

A scenario is drawn from a seed, so a change of its parameters draws everything anew. For this reason each change is
tried with the same seed and with some others. A change is kept if one of these seeds shows the same problem.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from random import Random
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import fields, replace

from perdure.errors import InvalidArguments
from perdure.testing.simulate.mix import Mix
from perdure.testing.simulate.network import Weather
from perdure.testing.simulate.scenario import Report, simulate
from perdure.testing.simulate.transactions import Bug

__all__ = ["Settings", "Shrunk", "changed", "shrink"]

Settings = Mapping[str, str]  # parameters of a Mix that differ from the usual ones, as on the command line

_SMALLEST: Final = {"engines": 1, "runs": 1, "tasks": 1}
_RANGES: Final = (
    "kills", "pauses", "graphs", "travellers", "tokens", "deadlines", "letters", "runs", "engines", "tasks",
)  # fmt: skip
_CALM: Final = ("slow", "busy", "unknown", "answers_lost", "hints_lost")
_SEEDS_PER_CHANGE: Final = 25
_SIMULATIONS_MAX: Final = 1_500


class Shrunk(Struct, kw_only=True):
    """The smallest scenario that was found, and how many simulations it took to find it."""

    report: Report
    settings: dict[str, str]
    simulations: int

    def again(self, options: str = "") -> str:
        """Return the command that runs the scenario again."""
        changes = "".join(f" --set {name}={value}" for name, value in self.settings.items())
        return f"python -m perdure.testing.simulate --seeds 1 --from {self.report.seed} --tail 0{options}{changes}"


def changed(mix: Mix, settings: Settings) -> Mix:
    """Return a mix with some parameters changed: `runs=1..2`, `crowded=0`, `live_runs_max=1000`, `weights=work,nap` for
    the kinds of tasks, `calm=slow,busy` for faults of the network that do not happen. Raises InvalidArguments."""
    values: dict[str, Any] = {}
    for name, text in settings.items():
        try:
            values |= _value(mix, name, text)
        except ValueError:
            raise InvalidArguments(f"{name}={text} is not a setting: for example runs=1..2, calm=slow,busy") from None
    return replace(mix, **values)


def _value(mix: Mix, name: str, text: str) -> dict[str, Any]:
    if name == "calm":
        return {"weather": _calmer(mix.weather, text.split(","))}
    if name not in {field.name for field in fields(mix)}:
        raise ValueError(name)
    if name == "weights":
        return {name: {kind: mix.weights.get(kind, 1) for kind in text.split(",")}}
    if name == "live_runs_max":
        return {name: tuple(map(int, text.split(",")))}
    if ".." in text:
        low, high = map(int, text.split(".."))
        return {name: (low, high)}
    return {name: float(text)}


def _calmer(weather: Callable[[Random], Weather], calm: list[str]) -> Callable[[Random], Weather]:
    if unknown := set(calm) - set(_CALM):
        raise ValueError(unknown)
    return lambda lot: replace(weather(lot), **dict.fromkeys(calm, 0.0))


def shrink(report: Report, mix: Mix, *, bugs: Iterable[Bug] = ()) -> Shrunk:
    """Return a smaller scenario with the same problem as this report. It may be the scenario itself."""
    found = Shrunk(report=report, settings={}, simulations=0)
    wanted = _kind(report.problem)
    bugs = tuple(bugs)
    has_changed = True
    while has_changed and found.simulations < _SIMULATIONS_MAX:
        has_changed = False
        for settings in _smaller(mix, found.settings):
            candidate = changed(mix, settings)
            first = found.report.seed
            for seed in (first, *range(first + 1, first + _SEEDS_PER_CHANGE)):
                found.simulations += 1
                again = simulate(seed, bugs=bugs, mix=candidate)
                if _kind(again.problem) == wanted:
                    found.report, found.settings, has_changed = again, settings, True
                    break
            if has_changed or found.simulations >= _SIMULATIONS_MAX:
                break
    return found


def _kind(problem: str) -> str:
    """Return the beginning of a problem, without ids and numbers. Reports of one kind show the same problem."""
    first = problem.splitlines()[0] if problem else ""
    return re.sub(r"'[^']*'|[0-9]+", "…", first)[:60]


def _smaller(mix: Mix, settings: dict[str, str]) -> Iterator[dict[str, str]]:
    """Return the next changes to try, the largest first."""
    now = changed(mix, settings)
    for name in _RANGES:
        low, high = getattr(now, name)
        least = _SMALLEST.get(name, 0)
        if high > least:
            yield {**settings, name: f"{least}..{least}"}
            middle = (least + high) // 2
            if middle < high and (low, high) != (middle, middle):
                yield {**settings, name: f"{middle}..{middle}"}
    calm = [one for one in settings.get("calm", "").split(",") if one]
    if not calm:
        yield {**settings, "calm": ",".join(_CALM)}
    for fault in _CALM:
        if fault not in calm:
            yield {**settings, "calm": ",".join([*calm, fault])}
    if len(now.weights) > 1:
        for kind in now.weights:
            yield {**settings, "weights": ",".join(one for one in now.weights if one != kind)}
    if now.continued:
        yield {**settings, "continued": "0"}
    if len(now.live_runs_max) > 1:
        yield {**settings, "live_runs_max": "1000"}
