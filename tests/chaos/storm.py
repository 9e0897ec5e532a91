"""A chaos run: a fleet under load, faults drawn by lot, and a report of what was wrong afterwards."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from functools import partial
from pathlib import Path

from tests.chaos import record
from tests.chaos.checks import Report, checked
from tests.chaos.faults import Faults
from tests.chaos.fleet import Fleet

ALL = 10**9


async def storm(kind: str, folder: Path, seed: int, *, minutes: float, at_once: int = 24) -> Report:
    """Faults for so many minutes."""
    chance = random.Random(seed)
    async with Fleet(kind, folder, at_once=at_once) as fleet:
        faults = Faults(fleet, chance)
        fleet.allow(ALL)
        end_at, told_at = time.monotonic() + minutes * 60, time.monotonic()
        while time.monotonic() < end_at:
            await asyncio.sleep(chance.uniform(0.2, 3.0))
            await faults.one()
            for process in (*fleet.engines, *fleet.callers):
                process.check()
            if time.monotonic() - told_at > 60:
                told_at = time.monotonic()
                tell(f"{sum(faults.counts.values())} faults, {record.count_begun(fleet.log)} bodies have begun")
        await faults.end()
        numbers = await fleet.highest()
        await fleet.finish(numbers)
        return await checked(fleet, numbers, faults.counts, seed)


async def squall(kind: str, folder: Path, seed: int, *, numbers: int) -> Report:
    """Each fault once, in the midst of its part of so many requests: takes as long as the machine needs for these."""
    chance = random.Random(seed)
    async with Fleet(kind, folder, at_once=4) as fleet:
        faults = Faults(fleet, chance)
        makers = faults.makers
        for part, make in enumerate(makers, start=1):
            begun = record.count_begun(fleet.log)
            fleet.allow(numbers * part // len(makers))
            await fleet.until(partial(_have_begun, fleet, begun + 1), "steps are to begin")
            await make()
        await faults.end()
        await fleet.finish(numbers)
        return await checked(fleet, numbers, faults.counts, seed)


def _have_begun(fleet: Fleet, count: int) -> bool:
    return record.count_begun(fleet.log) >= count


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()
