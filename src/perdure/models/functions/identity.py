"""Whether two starts with one id are the same: the same workflow with the same arguments."""

from __future__ import annotations

import hashlib

import msgspec

from perdure.errors import RunExists
from perdure.kernel.records import Run


def identity(workflow: str, input: str) -> str:
    """What a start asks for, in short. `input` is JSON; the order of its keys does not matter."""
    canonical = msgspec.json.encode(msgspec.json.decode(input), order="sorted")
    return f"{workflow} {hashlib.sha256(canonical).hexdigest()[:32]}"


def check_same(run: Run, stored: str, workflow: str, input: str) -> None:
    """An id was used before: fine, if it was for the same thing. Raises RunExists.

    `stored` is the run's input now; one that continued as something else remembers what it was started as.
    """
    if (run.origin or identity(run.workflow, stored)) != identity(workflow, input):
        raise RunExists(
            f"the id {run.id!r} belongs to a run of {run.workflow!r} with the arguments {stored[:200]}; "
            f"this start asks for {workflow!r} with {input[:200]}. Use another id",
            run_id=run.id,
        )
