"""The journal and the audit trail of a run, and the runs below it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from functools import partial
from typing import Final

from msgspec.structs import replace

from perdure.api.within import checked_within
from perdure.errors import Misuse, RunNotFound
from perdure.kernel.rows import DEFINITION
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.ports import RunFilter, Within
from perdure.session import Session
from perdure.values.checks import checked_number, checked_text
from perdure.views import (
    AuditView,
    HierarchyView,
    History,
    RunTree,
    RunView,
    audit_view,
    entry_view,
    hierarchy_event_view,
    message_event_view,
    run_view,
    shown_time,
)

_PAGE: Final = 200
RUNS_MAX: Final = 10_000


async def history_of(session: Session, run_id: str) -> History:
    """Return a run's journal, its audit trail, and the entries that retries set aside. Raises RunNotFound."""
    session.check_open()
    _, entries = await session.caller_store.journal(checked_text(run_id, "a run's id"))
    is_graph = any(entry.kind == DEFINITION for entry in entries)
    shown = partial(entry_view, codec=session.codec, is_graph=is_graph)
    journal = [shown(entry) for entry in entries if entry.kind != DEFINITION]
    if not journal:
        rows = (await session.caller_store.scopes([run_id])).events
        journal = [message_event_view(row, session.codec) for row in rows if row.scope == run_id]
    return History(
        journal=journal,
        audit=[audit_view(audit) for audit in await session.caller_store.audit(run_id)],
        archived=[shown(entry, attempt=attempt) for attempt, entry in await session.caller_store.archived(run_id)],
    )


async def audit_of(session: Session, run_id: str) -> list[AuditView]:
    """Return every change of a run's status, hold, tags or deadline, oldest first. Raises RunNotFound."""
    session.check_open()
    found = await session.caller_store.audit(checked_text(run_id, "a run's id"))
    if not found:
        raise RunNotFound(run_id)
    return [audit_view(one) for one in found]


async def hierarchy_of(session: Session, id: str, runs_max: int) -> HierarchyView:
    """Return a hierarchy, by the id of its root. With the id of a run, return the part of the hierarchy below that run.

    Raises the same errors as `tree_of`.
    """
    tree = await tree_of(session, id, runs_max)
    found = await session.caller_store.hierarchy(id)
    topics = {message.id: message.topic for message in found.messages}
    rows = sorted(found.events, key=lambda row: (row.created_at, row.scope, row.seq))
    return HierarchyView(
        tree=tree,
        events=[hierarchy_event_view(row, topics.get(row.message_id, ""), session.codec) for row in rows],
    )


async def tree_of(session: Session, id: str, runs_max: int, within: Within | None = None) -> RunTree:
    """Return a run or a root emission with all runs below it, oldest first, without payloads.

    Raises RunNotFound, and Misuse if there are more than `runs_max` runs.
    """
    session.check_open()
    checked_within(within)
    checked_number(runs_max, "runs_max")
    loaded = (await session.caller_store.load([checked_text(id, "a run's id")])).get(id)
    view = run_view(loaded.run) if loaded is not None else await _emission(session, id)
    root = RunTree(run=view, children=[])
    level, count = [root], 1
    while level:
        below: list[RunTree] = []
        for parent in level:
            async for run in _children(session, parent.run.id, within):
                count += 1
                if count > runs_max:
                    raise Misuse(
                        f"run {id!r} has more than {runs_max} runs below it; ask for a smaller part of the tree"
                    )
                child = RunTree(run=run_view(run), children=[])
                parent.children.append(child)
                below.append(child)
            parent.children.reverse()
        level = below
    return root


async def _emission(session: Session, id: str) -> RunView:
    """Return a root emission in the form of a run. Raises RunNotFound."""
    found = await session.caller_store.hierarchy(id)
    emitted = next((row for row in found.events if row.scope == id and row.key == "EMITTED"), None)
    if emitted is None:
        raise RunNotFound(id)
    message = next(message for message in found.messages if message.id == emitted.message_id)
    statuses = {run.status for run in found.runs if run.parent_id == id}
    for status in ("running", Status.ROLLBACK_FAILED, Status.ROLLED_BACK):
        if status in statuses or (status == "running" and statuses - FINISHED):
            break
    else:
        status = Status.SUCCEEDED
    at = shown_time(emitted.created_at)
    return RunView(
        id=id,
        workflow=message.topic,
        workflow_version="",
        model="message",
        status=status,
        version=1,
        attempt=1,
        owner=None,
        parent_id=None,
        tags={},
        hold=None,
        deadline=None,
        recoveries=0,
        created_at=at,
        started_at=at,
        updated_at=at,
        completed_at=None,
    )


async def _children(session: Session, run_id: str, within: Within | None) -> AsyncIterator[Run]:
    """Return the children of a run, newest first."""
    parts = [RunFilter(parent_id=run_id, limit=_PAGE)]
    if within is not None:
        parts = [replace(parts[0], workflow=workflow) for workflow in within.workflows] + [
            replace(parts[0], tags={key: value}) for key, value in within.tags
        ]
    after: tuple[int, str] | None = None
    while True:
        found: dict[str, Run] = {}
        for part in parts:
            found |= {run.id: run for run in await session.caller_store.list(replace(part, after=after))}
        page = sorted(found.values(), key=lambda run: (run.created_at, run.id), reverse=True)[:_PAGE]
        if not page:
            return
        for run in page:
            yield run
        after = (page[-1].created_at, page[-1].id)


__all__ = ["RUNS_MAX", "audit_of", "hierarchy_of", "history_of", "tree_of"]
