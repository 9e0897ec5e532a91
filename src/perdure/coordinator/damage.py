"""Damaged rows of runs, and the ops that cannot be decided because of them."""

from __future__ import annotations

from typing import Final

from perdure.errors import RowDamaged
from perdure.kernel.invariants import damage_to_run, damage_to_wait
from perdure.kernel.ops import Expire, Op, Resume, Take, Wake
from perdure.kernel.runs import Damage
from perdure.ports import LoadedRun

_GOING_ON: Final = (Expire, Resume, Take, Wake)  # ops that need all waits of the run


def damage_to(loaded: LoadedRun) -> Damage | None:
    """Return the damage of a run, of its waits or of its events. Return None if all rows are sound."""
    damage = damage_to_run(loaded.run) or loaded.damage
    if damage is None:
        return next((found for wait in loaded.waits if (found := damage_to_wait(wait)) is not None), None)
    return damage


def check_sound(loaded: LoadedRun, op: Op) -> None:
    """Raise RowDamaged if this op cannot be decided, because rows of the run are damaged."""
    damage = damage_to_run(loaded.run)
    if damage is None and isinstance(op, _GOING_ON):
        damage = damage_to(loaded)
    if damage is not None:
        raise RowDamaged(damage.reason, run_id=loaded.run.id)
