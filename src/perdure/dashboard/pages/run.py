"""The page of a run. It shows the run's status and the reason for it, its failure, its history, its published values,
and the changes that can be made.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Struct

from perdure.dashboard.page import Action, Form, Page, Shown, Visit
from perdure.dashboard.pages import handlers
from perdure.dashboard.renderer import url
from perdure.dashboard.timeline import timeline
from perdure.dashboard.words import reasons
from perdure.errors import Misuse, RunFinished, RunNotFound
from perdure.kernel.failures import Failure
from perdure.kernel.status import FINISHED, Status
from perdure.views import EntryView, History, RunTree, RunView, StreamItemView

_JOURNAL_MAX: Final = 200
_TREE_MAX: Final = 500
_ABOVE_MAX: Final = 50
_ITEMS_MAX: Final = 100
_ZOOMS: Final = (1, 2, 4, 8, 16)


class StreamShown(Struct, frozen=True):
    """The last items of a stream."""

    name: str
    count: int
    items: list[StreamItemView]


class Fault(Struct, frozen=True, kw_only=True):
    """The failure that ended a run, with the entry that caused it and the causes of the failure."""

    failure: Failure
    entry: EntryView | None
    kind: str
    stack: str
    causes: list[Failure]


async def show(visit: Visit) -> Shown:
    run_id = visit.part("run_id")
    client = visit.client
    run = await client.runs.get(run_id)
    tree, ancestors = await _tree(visit, run_id, run)
    if run is None:
        happened = (await client.handle(run_id).hierarchy(runs_max=_TREE_MAX)).events if tree is not None else []
        return {**_emission(tree), "drawn": None, "ancestors": [], "happened": happened[-_JOURNAL_MAX:]}
    history = await client.handle(run_id).history()
    waits = await client.handle(run_id).waits() if run.status not in FINISHED else []
    waits = [wait for wait in waits if wait.kind != "code"]  # The page already says that the run is stranded.
    handling = handlers.wanted(run, history.journal)
    zoom = visit.asked("zoom")
    factor = int(zoom) if zoom.isascii() and zoom.isdigit() and int(zoom) in _ZOOMS else 1
    return {
        "title": f"{run.workflow} {run.id}",
        "run": run,
        "is_emission": False,
        "happened": [],
        "has_ended": run.status in FINISHED,
        "reasons": reasons(run, waits, datetime.now(UTC)),
        "fault": _fault(run, history),
        "tasks": await client.tasks.list(run=run_id, status="open", limit=20),
        "timeline": timeline(history.journal, waits, factor),
        "zoom": factor,
        "zooms": _ZOOMS,
        "journal": history.journal if visit.asked("journal") == "all" else history.journal[-_JOURNAL_MAX:],
        "journal_count": len(history.journal),
        "audit": history.audit,
        "archived": history.archived[-_JOURNAL_MAX:],
        "tree": tree,
        "ancestors": ancestors,
        "drawn": await visit.graphs.drawn(client, run),
        "published": await client.handle(run_id).published(),
        "streams": await _streams(visit, run_id),
        "artifacts": await client.artifacts.list(run=run_id, staged=True, limit=100),
        "can": _can(run),
        "handling": handling,
        "asked": await client.topics.message(run_id) if handling is not None else None,
        "given": visit.given,
    }


def _emission(tree: RunTree | None) -> Shown:
    """Return the page of a message that was emitted from outside. The message has an id, and a tree of runs below it.
    It is not a run itself.
    """
    assert tree is not None
    return {"title": f"{tree.run.workflow} {tree.run.id}", "run": tree.run, "is_emission": True, "tree": tree}


def _can(run: RunView) -> dict[str, bool]:
    """Return which changes are possible for the run now."""
    is_active = run.status not in FINISHED
    is_operation = run.model == "operation"
    return {
        "cancel": is_active and run.status not in (Status.ROLLING_BACK, Status.CANCELLING),
        "retry": run.status == Status.FAILED,
        "pause": is_active and run.hold is None and not is_operation,
        "resume": run.hold is not None,
        "undo": is_operation and run.status == Status.SUCCEEDED,
    }


def _fault(run: RunView, history: History) -> Fault | None:
    if run.failure is None:
        return None
    entry = next((one for one in history.journal if one.seq == run.failure.entry), None)
    if entry is None and run.model == "operation":
        entry = next((one for one in history.journal if one.failure is not None), None)
    causes: list[Failure] = []
    cause = run.failure.cause
    while cause is not None and len(causes) < 10:
        causes.append(cause)
        cause = cause.cause
    kind = "" if entry is None else "step" if run.model == "operation" else entry.kind
    # The stack of the run's failure shows the workflow code. The failure of the step has its own stack. It is shown
    # too, unless the run's stack already contains it.
    stack = entry.failure.stack if entry is not None and entry.failure is not None else ""
    is_same = stack in run.failure.stack
    return Fault(failure=run.failure, entry=entry, kind=kind, stack="" if is_same else stack, causes=causes)


async def _tree(visit: Visit, run_id: str, run: RunView | None) -> tuple[RunTree | None, list[RunView]]:
    """Return the whole tree that a run belongs to, and the ancestors of the run. If the tree is too large, return only
    the part below the run.
    """
    above: list[RunView] = []
    top, parent = run_id, run.parent_id if run is not None else None
    while parent is not None and len(above) < _ABOVE_MAX:
        found = await visit.client.runs.get(parent)
        top = parent
        if found is None:
            break
        above.append(found)
        parent = found.parent_id
    for root in dict.fromkeys((top, run_id)):
        try:
            return await visit.client.handle(root).tree(runs_max=_TREE_MAX), above[::-1]
        except RunNotFound:
            if root == run_id:
                raise
        except Misuse:  # The tree is too large.
            continue
    return None, above[::-1]


async def _streams(visit: Visit, run_id: str) -> list[StreamShown]:
    shown: list[StreamShown] = []
    for name, count in (await visit.client.handle(run_id).streams()).items():
        last = visit.client.handle(run_id).stream(name, after=max(0, count - _ITEMS_MAX), follow=False)
        items = [item async for item in last]
        shown.append(StreamShown(name, count, items[-_ITEMS_MAX:]))
    return shown


# ---------------------------------------------------------------------------------------------------------------------
# Changes. Each change is made only at the version of the run that the page has shown.


async def cancel(visit: Visit, form: Form) -> str:
    run_id = visit.part("run_id")
    reason = form.text("reason")
    if await visit.client.runs.get(run_id) is None:  # a root emission
        done = await visit.client.handle(run_id).cancel(reason=reason, actor=visit.caller.name)
    else:
        version = form.number("version")
        done = await visit.client.handle(run_id).cancel(
            expected_version=version, reason=reason, actor=visit.caller.name
        )
    if not done:
        raise RunFinished(f"run {run_id!r} has ended: there is nothing to cancel", run_id=run_id, status="ended")
    return url("runs", run_id, said="cancelled")


async def retry(visit: Visit, form: Form) -> str:
    run_id = visit.part("run_id")
    await visit.client.handle(run_id).retry(expected_version=form.number("version"), actor=visit.caller.name)
    return url("runs", run_id, said="retried")


async def pause(visit: Visit, form: Form) -> str:
    run_id = visit.part("run_id")
    what: dict[str, Any] = {"expected_version": form.number("version"), "actor": visit.caller.name}
    await visit.client.handle(run_id).pause(reason=form.text("reason"), **what)
    return url("runs", run_id, said="paused")


async def resume(visit: Visit, form: Form) -> str:
    run_id = visit.part("run_id")
    await visit.client.handle(run_id).resume(expected_version=form.number("version"), actor=visit.caller.name)
    return url("runs", run_id, said="resumed")


async def undo(visit: Visit, form: Form) -> str:
    run_id = visit.part("run_id")
    if not await visit.client.handle(run_id).roll_back(reason=form.text("reason"), actor=visit.caller.name):
        raise Misuse(f"{run_id!r} cannot be undone now: a run above or below it has not ended, or it was undone before")
    return url("runs", run_id, said="rolled_back")


page = Page(
    name="run",
    path="/runs/{run_id:str}",
    menu="runs",
    show=show,
    actions=[
        Action("/runs/{run_id:str}/cancel", cancel),
        Action("/runs/{run_id:str}/retry", retry),
        Action("/runs/{run_id:str}/pause", pause),
        Action("/runs/{run_id:str}/resume", resume),
        Action("/runs/{run_id:str}/undo", undo),
        *handlers.actions,
    ],
)
