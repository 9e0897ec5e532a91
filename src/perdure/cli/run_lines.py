"""Runs as text: a line of a list, the fields of one run, and the waits of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from perdure.cli.formats import ago, brief, moment, span, to_json

if TYPE_CHECKING:
    from perdure.api.waits import WaitView
    from perdure.engine import AnyClient
    from perdure.views import RunView

COLUMNS = ("id", "workflow", "status", "created", "took", "remarks")


async def existing(client: AnyClient, id: str) -> RunView:
    """Return the run with this id. Raises RunNotFound."""
    from perdure.errors import RunNotFound

    found = await client.runs.get(id)
    if found is None:
        raise RunNotFound(id)
    return found


async def waits_of(client: AnyClient, run: RunView) -> list[WaitView]:
    """Return what a run waits for. A wait for code is left out, because the run's view already says that the run is
    stranded.
    """
    waits = await client.handle(run.id).waits() if run.completed_at is None else []
    return [wait for wait in waits if wait.kind != "code"]


def row(run: RunView, *, relative: bool) -> tuple[Any, ...]:
    """Return a run as a row of COLUMNS. With `relative`, the time is shown as how long ago it was."""
    took = "" if run.completed_at is None else span(run.completed_at - run.created_at)
    created = ago(run.created_at) if relative else run.created_at
    name = f"{run.workflow} {run.workflow_version}".rstrip()
    return (run.id, name, run.status, created, took, remarks(run))


def remarks(run: RunView) -> str:
    """Return why a run is held or stranded. If it was retried, also return the number of its attempt."""
    found: list[str] = []
    if run.hold is not None:
        found.append(f"{run.hold.kind}: {run.hold.reason}")
    if run.stranded is not None:
        found.append(run.stranded)
    if run.attempt > 1:
        found.append(f"attempt {run.attempt}")
    return brief("; ".join(found), 100)


def fields(run: RunView) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a run, each with a name for people."""
    yield "id", run.id
    yield "workflow", f"{run.workflow} {run.workflow_version}".rstrip()
    yield "model", run.model
    yield "topic", run.topic or None
    yield "status", run.status
    if run.hold is not None:
        yield "held", f"{run.hold.kind}: {run.hold.reason}"
    yield "stranded", run.stranded
    yield "parent", run.parent_id
    yield "owner", run.owner
    yield "tags", dict(run.tags)
    yield "attempt", run.attempt if run.attempt > 1 else None
    yield "created", run.created_at
    yield "deadline", run.deadline
    yield "ended", run.completed_at
    yield "input", to_json(run.input)
    if run.status == "succeeded":
        yield "output", to_json(run.output)
    if run.failure is not None:
        yield "failure", f"{run.failure.type.partition(':')[2]}: {run.failure.text}"


def wait_text(wait: WaitView) -> str:
    """Return what a run waits for, in words."""
    due = f" due {moment(wait.due_at)} ({ago(wait.due_at)})" if wait.due_at is not None else ""
    match wait.kind:
        case "event":
            where = f" where {to_json(wait.where)}" if wait.where else ""
            return f"event {wait.name}{where}"
        case "run":
            return f"the end of run {wait.target}"
        case "retry":
            return f"attempt {wait.attempts + 1} of step {wait.name}{due}"
        case "standstill":
            return wait.name
        case "beat":
            return f"step {wait.name}, which runs"
        case _:
            return f"{wait.kind}{due}"


__all__ = ["COLUMNS", "existing", "fields", "remarks", "row", "wait_text", "waits_of"]
