"""The waits of runs, and timers that have fired."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.api.deadlocks import described, standstill
from perdure.api.stranded_runs import with_stranded
from perdure.errors import RunNotFound
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.timers import Fired
from perdure.session import Session
from perdure.values.checks import checked_text, checked_texts
from perdure.views import run_view, shown_time


class WaitView(Struct, frozen=True, kw_only=True):
    """A wait of a run.

    Its `kind` says what the run waits for. It may wait for a time (`timer`), the next attempt of a step (`retry`), a
    running step that has sent a heartbeat (`beat`), an `event`, the end of a `run`, or an engine that has its `code`.
    If there are several waits at one position, the run goes on when the first of them is over. For the kind `code`, the
    `name` says which code no live engine has.

    The kind `standstill` says that this run and other runs wait for each other, so none of them ever ends. For this
    kind, the `name` says which runs they are.
    """

    position: str
    kind: str
    name: str
    where: Mapping[str, Any]
    target: str | None
    due_at: datetime | None
    attempts: int
    since: datetime | None


class TimerView(Struct, frozen=True, kw_only=True):
    """A timer that has fired: the time when it was due, and the time when its run continued."""

    run_id: str
    name: str
    due_at: datetime
    fired_at: datetime


async def waits_of(session: Session, run_id: str) -> list[WaitView]:
    """Return what a run waits for. The list is empty while its code or a step runs. Raises RunNotFound."""
    session.check_open()
    found = (await session.caller_store.journals([checked_text(run_id, "a run's id")])).get(run_id)
    if found is None:
        raise RunNotFound(run_id)
    code: list[WaitView] = []
    run = (await session.caller_store.load([run_id]))[run_id].run
    if run.status not in (Status.CREATED, *FINISHED):
        (view,) = await with_stranded(session, [run_view(run)])
        code = [_note("code", stranded) for stranded in (view.stranded,) if stranded is not None]
    if any(wait.kind == "run" for wait in found.waits) and (cycle := await standstill(session.caller_store, run_id)):
        code.append(_note("standstill", described(cycle)))
    return code + [
        WaitView(
            position=wait.position,
            kind=wait.kind,
            name=wait.name,
            where={name: msgspec.json.decode(value) for name, value in wait.where},
            target=wait.target,
            due_at=shown_time(wait.due_at) if wait.due_at else None,
            attempts=wait.attempts,
            since=shown_time(wait.since) if wait.since else None,
        )
        for wait in found.waits
    ]


def _note(kind: str, name: str) -> WaitView:
    return WaitView(position="", kind=kind, name=name, where={}, target=None, due_at=None, attempts=0, since=None)


async def timers_of(session: Session, run_ids: Sequence[str]) -> list[TimerView]:
    """Return the timers of these runs that have fired, in no particular order."""
    session.check_open()
    wanted = checked_texts(run_ids, "ids")
    found = await session.caller_store.journals(wanted) if wanted else {}
    return [
        TimerView(run_id=run_id, name=entry.name, due_at=shown_time(fired.due), fired_at=shown_time(fired.fired))
        for run_id, journal in found.items()
        for entry in journal.entries
        if entry.kind == "timer" and entry.value is not None
        for fired in [msgspec.json.decode(entry.value, type=Fired)]
    ]


__all__ = ["TimerView", "WaitView", "timers_of", "waits_of"]
