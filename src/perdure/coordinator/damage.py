"""Runs whose rows are damaged: they are held, one by one, and everybody else goes on."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from perdure.errors import RowDamaged
from perdure.kernel.invariants import damage_to_run, damage_to_wait
from perdure.kernel.ops import Expire, Op, Resume, Take, Wake
from perdure.kernel.records import Damage, Hold
from perdure.kernel.status import FINISHED
from perdure.ports import LoadedRun, Store

log = logging.getLogger("perdure")

_GOING_ON: Final = (Expire, Resume, Take, Wake)  # What needs all that the run waits for.


def damage_to(loaded: LoadedRun) -> Damage | None:
    """What is wrong with the stored rows of a run, of those that deciding about it needs."""
    damage = damage_to_run(loaded.run) or loaded.damage
    if damage is None:
        return next((found for wait in loaded.waits if (found := damage_to_wait(wait)) is not None), None)
    return damage


async def set_aside(store: Store, engine_id: str, at: int, found: Iterable[LoadedRun]) -> list[LoadedRun]:
    """Hold those of these runs that are damaged, in the store; the others. Raises StoreError.

    A crash before the hold is stored leaves the run as it was: whoever reads it next holds it."""
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


def check_sound(loaded: LoadedRun, op: Op) -> None:
    """Raise RowDamaged if nothing can be decided about a run, or not what this op asks for."""
    damage = damage_to_run(loaded.run)
    if damage is None and isinstance(op, _GOING_ON):
        damage = damage_to(loaded)
    if damage is not None:
        raise RowDamaged(damage.reason, run_id=loaded.run.id)
