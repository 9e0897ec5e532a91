"""Finally functions of steps: each is called exactly once for an execution of its step.

It is called after the step and its children have succeeded, as a step of its own (next_steps.py); inside the step if
that fails for good (`called` in executor.py); or in the rollback of the step (rollback.py), if it has not run yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from perdure.models.cooperation.progress import Instance


def has_run(instances: Sequence[Instance], place: int) -> bool:
    """Return whether the step's finally ran after this instance of the step."""
    later = next((one for one in islice(instances, place + 1, None) if one.call is None), None)
    return later is not None and later.index == instances[place].index + 1
