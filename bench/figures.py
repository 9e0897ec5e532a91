"""What a measurement gives, and the arithmetic on it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Figures = dict[str, float]  # name with its unit -> value


def percentile(values: Iterable[float], percent: float) -> float:
    """The smallest value that at least `percent` of all values do not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def medians(rounds: Sequence[Figures]) -> Figures:
    """Each figure's median over the rounds."""
    return {name: median(figures[name] for figures in rounds) for name in rounds[0]}


def paired(rounds: Sequence[Figures], floors: Sequence[Figures], name: str) -> float:
    """The median of the ratios to the floor, each pair measured one right after the other: noise hits both alike."""
    return median(ours[name] / floor[name] for ours, floor in zip(rounds, floors, strict=True))


def median(values: Iterable[float]) -> float:
    import statistics  # Which takes a while, and those whose launch is measured need none of it.

    return statistics.median(values)
