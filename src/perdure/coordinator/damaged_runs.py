"""Holding runs whose rows are damaged, one by one. All other runs go on."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from perdure.coordinator.damage import damage_to
from perdure.kernel.runs import Hold
from perdure.kernel.status import FINISHED
from perdure.ports import LoadedRun, Store

log = logging.getLogger("perdure")


async def set_aside(store: Store, engine_id: str, at: int, found: Iterable[LoadedRun]) -> list[LoadedRun]:
    """Hold the damaged runs among these in the store, and return the sound runs. Raises StoreError.

    A crash before the hold is stored leaves the run as it was: the next engine that reads it holds it."""
    well: list[LoadedRun] = []
    for one in found:
        damage = damage_to(one)
        if damage is None:
            well.append(one)
        elif one.run.status not in FINISHED:
            hold = Hold(kind=damage.kind, reason=damage.reason, at=at)
            if await store.set_aside(one.run.id, hold, engine_id=engine_id, at=at):
                log.error(
                    "run %s is held: %s. Then resume it: perdure runs resume %s", one.run.id, damage.reason, one.run.id
                )
    return well


__all__ = ["set_aside"]
