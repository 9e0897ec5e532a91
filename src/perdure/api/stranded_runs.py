"""Stranded runs: no live engine can continue them, because no live engine has their code."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Final

from msgspec.structs import replace

from perdure.kernel.cooperation import read_version, stored_version
from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED, Status
from perdure.ports import RunFilter
from perdure.registry import named
from perdure.session import Session
from perdure.views import RunView, run_view

log = logging.getLogger("perdure")

_PAGE: Final = 200
_AT_WORK: Final = (Status.RUNNING, Status.SUSPENDED, Status.ROLLING_BACK)


async def with_stranded(session: Session, views: list[RunView]) -> list[RunView]:
    """Return the views, with `stranded` set for each run that no live engine has and no live engine can take."""
    if all(view.status in FINISHED for view in views):
        return views
    living = await session.caller_store.engines(living=True)
    code = {pair for engine in living for pair in engine.workflows}
    owners = {engine.id for engine in living}
    names = {name for name, _ in code}
    handlers = {(name, read_version(version)[0]) for name, version in code}

    def is_stranded(view: RunView) -> bool:
        if view.owner in owners or view.status in FINISHED:
            return False
        if view.topic == "":  # the row was stored by an earlier version of Perdure
            return view.workflow not in names
        if view.topic is None:
            return (view.workflow, view.workflow_version) not in code
        if view.status == Status.CREATED:  # Every version of the handler may begin the run.
            return (view.workflow, view.topic) not in handlers
        return (view.workflow, stored_version(view.topic, view.workflow_version)) not in code

    def lacks(view: RunView) -> str:
        which = named(view.workflow, view.workflow_version, view.topic)
        if not view.topic or (view.workflow, view.topic) not in handlers:
            return which
        found = [read_version(version) for name, version in sorted(code) if name == view.workflow]
        has = ", ".join(repr(version) for topic, version in found if topic == view.topic)
        which = which if view.workflow_version else f"{which} without a version"
        return f"{which}, by which it was begun; there are versions: {has}"

    return [replace(view, stranded=f"no engine has {lacks(view)}") if is_stranded(view) else view for view in views]


async def why_stranded(session: Session, run: Run) -> str | None:
    """Return why no engine can continue a run, or None if an engine can.

    Returns None also for an operation's run that has not begun, because its handler may be a person.
    """
    if run.model == "operation" and run.status is Status.CREATED:
        return None
    return (await with_stranded(session, [run_view(run)]))[0].stranded


async def warn_of_missing_code(session: Session) -> None:
    """Log which runs of this engine's handlers no engine can continue, and why. Such a run was begun by another version
    of the handler. Only the newest runs of each handler are checked.
    """
    for name in sorted({name for _, name in session.workflows.operations}):
        runs = await session.caller_store.list(RunFilter(workflow=name, statuses=_AT_WORK, limit=_PAGE))
        views = await with_stranded(session, [run_view(run) for run in runs if run.model == "operation"])
        stranded = Counter(view.stranded for view in views if view.stranded is not None)
        for reason, count in sorted(stranded.items()):
            log.warning("%d or more runs of operation %r do not go on: %s", count, name, reason)


__all__ = ["warn_of_missing_code", "why_stranded", "with_stranded"]
