"""The finally functions of steps. Each is called exactly once for an execution of its step.

There are three cases. If the step and its children have succeeded, the function is called like a step of its own
(next_steps.py). If the step fails for good, the function is called inside the step (`called` in executor.py). If the
step is rolled back before the function was called, the rollback calls it (rollback.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from perdure.models.cooperation.progress import Instance


def has_run(instances: Sequence[Instance], place: int) -> bool:
    """Return whether the step's finally function ran after this execution of the step."""
    later = next((one for one in islice(instances, place + 1, None) if one.call is None), None)
    return later is not None and later.index == instances[place].index + 1
