"""Runs for display: one run, a page of runs with its cursor, a tree of runs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import Struct

from perdure.errors import Misuse
from perdure.kernel.cooperation import read_version
from perdure.kernel.failures import Failure
from perdure.kernel.invariants import damage_to_run
from perdure.kernel.runs import Hold, Run
from perdure.ports import Codec, StoredRun
from perdure.values.checks import checked_text
from perdure.views.values import optional_time, shown_time, shown_value, stored_failure

_CURSOR_TIME: Final = re.compile(r"-?[0-9]{1,18}|[1-8][0-9]{18}", re.ASCII)  # a number of 64 bits


class RunView(Struct, frozen=True, kw_only=True):
    """A run in its stored state. Input and output are plain JSON values. In lists they are None.

    For a run of an operation, `topic` is the topic of its message. It is "" if the run was stored by a version of
    Perdure without topics. `workflow_version` is set once code with a version has begun the run. `stranded` says why no
    engine can continue the run. It is set if no live engine has the run's code. It is None for all other runs.
    """

    id: str
    workflow: str
    workflow_version: str
    model: str
    status: str
    version: int
    attempt: int
    owner: str | None
    parent_id: str | None
    tags: Mapping[str, str]
    hold: Hold | None
    deadline: datetime | None
    recoveries: int
    created_at: datetime
    started_at: datetime | None
    updated_at: datetime
    completed_at: datetime | None
    input: Any = None
    output: Any = None
    failure: Failure | None = None
    stranded: str | None = None
    topic: str | None = None


class Page(Struct, frozen=True, kw_only=True):
    """A page of runs, newest first. Pass `cursor` to get the next page. On the last page it is None."""

    runs: list[RunView]
    cursor: str | None


class RunTree(Struct, frozen=True, kw_only=True):
    """A run and its children, oldest first.

    At the root of a hierarchy of operations, there may be a message from outside instead of a run. In this case `model`
    says so.
    """

    run: RunView
    children: list[RunTree]

    def text(self) -> str:
        """Return the tree as text, with a line for each run."""
        lines: list[str] = []
        waiting: list[tuple[RunTree, str, str]] = [(self, "", "")]
        while waiting:
            tree, first, rest = waiting.pop()
            run = tree.run
            hold = f", {run.hold.kind}: {run.hold.reason}" if run.hold is not None else ""
            lines.append(f"{first}{run.workflow} ({run.model}) {run.status}{hold}  {run.id}")
            below = [(child, f"{rest}├─ ", f"{rest}│  ") for child in tree.children[:-1]]
            below += [(child, f"{rest}└─ ", f"{rest}   ") for child in tree.children[-1:]]
            waiting += reversed(below)
        return "\n".join(lines)

    def mermaid(self) -> str:
        """Return the tree as a Mermaid flowchart."""
        lines = ["flowchart TD"]
        count = 0
        waiting: list[tuple[RunTree, str] | str] = [
            (self, "")
        ]  # each tree with its parent, or the line of an edge; an edge comes after its child
        while waiting:
            one = waiting.pop()
            if isinstance(one, str):
                lines.append(one)
                continue
            tree, parent = one
            name, count = f"n{count}", count + 1
            label = f"{tree.run.workflow}<br/>{tree.run.status}".replace('"', "#quot;")
            lines.append(f'    {name}["{label}"]')
            if parent:
                waiting.append(f"    {parent} --> {name}")
            waiting += reversed([(child, name) for child in tree.children])
        return "\n".join(lines)


def run_view(run: Run, stored: StoredRun | None = None, codec: Codec | None = None) -> RunView:
    """Return the view of a run. If `stored` and `codec` are given, the view includes the payloads."""
    payloads: dict[str, Any] = {}
    if stored is not None and codec is not None:
        payloads = {
            "input": shown_value(stored.input, codec, f"runs.input of run {run.id!r}"),
            "output": shown_value(stored.outcome.output, codec, f"runs.output of run {run.id!r}"),
            "failure": stored_failure(stored.outcome.failure, codec, f"runs.failure of run {run.id!r}"),
        }
    topic, version = read_version(run.workflow_version) if run.model == "operation" else (None, run.workflow_version)
    return RunView(
        id=run.id,
        workflow=run.workflow,
        workflow_version=version,
        topic=topic,
        model=run.model,
        status=run.status,
        version=run.version,
        attempt=run.attempt,
        owner=run.owner,
        parent_id=run.parent_id,
        tags=run.tags,
        hold=run.hold or damage_to_run(run),
        deadline=optional_time(run.deadline),
        recoveries=run.recoveries,
        created_at=shown_time(run.created_at),
        started_at=optional_time(run.started_at),
        updated_at=shown_time(run.updated_at),
        completed_at=optional_time(run.completed_at),
        **payloads,
    )


def to_cursor(run: Run) -> str:
    """Return the cursor for the page that begins after this run."""
    return f"{run.created_at}:{run.id}"


def from_cursor(cursor: str) -> tuple[int, str]:
    """Return the time and the id in a cursor. Raises Misuse."""
    at, _, run_id = (checked_text(cursor, "cursor", 1_000) if cursor else "").partition(":")
    if not run_id or not _CURSOR_TIME.fullmatch(at):
        raise Misuse(f"{cursor!r} is not a cursor: pass the one that the previous page gave")
    return int(at), run_id


__all__ = ["Page", "RunTree", "RunView", "from_cursor", "run_view", "to_cursor"]
