"""Holds for runs whose rows are damaged. Each damaged run is held separately. All other runs go on."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from perdure.coordinator.damage import damage_to
from perdure.kernel.runs import Hold
from perdure.kernel.status import FINISHED
from perdure.ports import LoadedRun, Store

log = logging.getLogger("perdure")


async def set_aside(store: Store, engine_id: str, at: int, found: Iterable[LoadedRun]) -> list[LoadedRun]:
    """Hold those runs that are damaged, and return the sound runs. Raises StoreError.

    If a crash comes before the hold is stored, the run stays as it was. Then the next engine that reads the run holds
    it.
    """
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
