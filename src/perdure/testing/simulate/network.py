"""The network between an engine and a simulated database. Every call is delayed, and some calls fail at random."""

from __future__ import annotations

import asyncio
from random import Random
from typing import Literal

from msgspec import Struct

from perdure.errors import StoreBusy

__all__ = ["Network", "Weather"]

Fate = Literal["", "busy", "unknown", "unknown_lost", "unknown_late"]


class Weather(Struct, frozen=True, kw_only=True):
    """The probability of each fault, for each call. `slow` is the probability of a delay of up to `slow_s`."""

    slow: float = 0.0
    slow_s: float = 0.0
    busy: float = 0.0
    unknown: float = 0.0
    answers_lost: float = 0.0  # the probability that the answer to a write is lost; for writes other than commits
    hints_lost: float = 0.0
    latency_s: float = 0.002


FINE = Weather()


class Network:
    """Decides at random what happens to calls. Without a random generator, calls take no time, but other tasks can
    run.
    """

    def __init__(self, lot: Random | None = None, weather: Weather = FINE) -> None:
        self.weather = weather
        self._lot = lot

    async def pass_by(self) -> None:
        """Delay a call in one direction."""
        await asyncio.sleep(self.delay_s())

    def delay_s(self) -> float:
        lot, weather = self._lot, self.weather
        if lot is None:
            return 0
        is_slow = weather.slow and lot.random() < weather.slow
        return lot.random() * (weather.slow_s if is_slow else weather.latency_s)

    async def arrive(self) -> None:
        """Deliver a call to the database. Raises StoreBusy."""
        await self.pass_by()
        if self._lot is not None and self.weather.busy and self._lot.random() < self.weather.busy:
            raise StoreBusy("the call did not get through, as drawn by lot")

    def fate(self) -> Fate:
        """Decide at random what happens to a commit. It may be refused before it begins, or its outcome may stay
        unknown. A commit with an unknown outcome has succeeded, has failed, or succeeds later.
        """
        lot, weather = self._lot, self.weather
        if lot is None:
            return ""
        drawn = lot.random()
        if drawn < weather.busy:
            return "busy"
        if drawn < weather.busy + weather.unknown:
            return lot.choice(("unknown", "unknown_lost", "unknown_late"))
        return ""

    def loses_answer(self) -> bool:
        return self._lot is not None and self._lot.random() < self.weather.answers_lost

    def loses_hint(self) -> bool:
        return self._lot is not None and self._lot.random() < self.weather.hints_lost
