"""Handlers that are people or other systems: complete, fail and roll back their runs.

These are actions on a run's page. The page shows the message that the run handles.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

from perdure.dashboard.forms import json_of
from perdure.dashboard.page import Action, Form, Visit, Wrong
from perdure.dashboard.renderer import url
from perdure.errors import InvalidArguments, UnstorableValue
from perdure.kernel.status import Status
from perdure.views import EntryView, RunView

_DONE_OUTSIDE: Final = ["seen", "committed"]  # the whole journal of a run that somebody outside has completed


def wanted(run: RunView, journal: Sequence[EntryView]) -> Literal["do", "undo"] | None:
    """Return what a person or another system must do for a run: do its work, or undo its work. Return None if there is
    nothing to do.
    """
    if run.model != "operation" or run.stranded is None:
        return None
    if run.status == Status.CREATED:
        return "do"
    is_theirs = [entry.kind for entry in journal] == _DONE_OUTSIDE
    return "undo" if run.status == Status.ROLLING_BACK and is_theirs else None


async def complete(visit: Visit, form: Form) -> str:
    """Complete the run. A second request fails, because the run has already ended."""
    run_id = visit.part("run_id")
    values = json_of(form.text("values"), "The result")
    if values is not None and not isinstance(values, dict):
        raise Wrong("The result must be an object with values by name, or empty.")
    try:
        await visit.client.topics.complete(run_id, values, actor=visit.caller.name)
    except (InvalidArguments, UnstorableValue) as error:
        raise Wrong(str(error)) from error
    return url("runs", run_id, said="completed")


async def fail(visit: Visit, form: Form) -> str:
    """Fail the run."""
    run_id = visit.part("run_id")
    reason = form.text("reason").strip()
    if not reason:
        raise Wrong("Enter a reason: the emitter of the message gets it.")
    await visit.client.topics.fail(run_id, reason, actor=visit.caller.name)
    return url("runs", run_id, said="refused")


async def undone(visit: Visit, form: Form) -> str:
    """Complete the rollback of the run."""
    del form
    run_id = visit.part("run_id")
    await visit.client.topics.complete_rollback(run_id, actor=visit.caller.name)
    return url("runs", run_id, said="undone")


actions = [
    Action("/runs/{run_id:str}/complete", complete),
    Action("/runs/{run_id:str}/fail", fail),
    Action("/runs/{run_id:str}/undone", undone),
]
