"""The history of a run: the entries of its journal, and the changes of its status, hold, tags and deadline."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.failures import Failure
from perdure.kernel.invariants import TIME_MAX, TIME_MIN
from perdure.kernel.rows import Entry
from perdure.kernel.runs import Audit
from perdure.models.cooperation.failures import Failure as Cause
from perdure.models.functions.artifacts import STAGED
from perdure.ports import Codec, PlainCodec
from perdure.views.values import damaged_failure, shown_failure, shown_time, shown_value, stored_failure


class EntryView(Struct, frozen=True, kw_only=True):
    """An entry of a run's journal. If a retry has set the entry aside, `archived_attempt` is the attempt that the entry
    belonged to.
    """

    seq: int
    position: str
    kind: str
    name: str
    value: Any
    failure: Failure | None
    attempts: int
    started_at: datetime
    at: datetime
    archived_attempt: int | None = None


class AuditView(Struct, frozen=True, kw_only=True):
    """One change of a run's status, hold, tags or deadline. `seq` numbers a run's changes, from 1 on."""

    seq: int
    version: int
    was: str | None
    became: str
    cause: str
    actor: str
    details: str
    at: datetime


class History(Struct, frozen=True, kw_only=True):
    """The journal and the audit trail of a run. `archived` has the entries that retries set aside."""

    journal: list[EntryView]
    audit: list[AuditView]
    archived: list[EntryView]


def entry_view(entry: Entry, codec: Codec, attempt: int | None = None, *, is_graph: bool = False) -> EntryView:
    """Return an entry of a journal.

    If a retry archived the entry, `attempt` is the attempt of the run to which the entry belonged.
    """
    # The engine writes the values of timers without the codec.
    table = "journal" if attempt is None else "journal_archive"
    row = f"entry {entry.seq} of run {entry.run_id!r}"
    plain = shown_value(entry.value, PlainCodec() if entry.kind == "timer" else codec, f"{table}.value of {row}")
    if is_graph and entry.kind == "step" and isinstance(plain, dict) and STAGED in plain:
        plain = plain["value"]  # This is the value that the step returned, without its staged artifacts.
    failure = stored_failure(entry.failure, codec, f"{table}.failure of {row}")
    for column, at in (("started_at", entry.started_at), ("at", entry.at)):
        if not TIME_MIN <= at <= TIME_MAX:
            failure = damaged_failure(f"{table}.{column} of {row} holds {at}, which is not a time")
    return EntryView(
        seq=entry.seq,
        position=entry.position,
        kind=entry.kind,
        name=entry.name,
        value=plain,
        failure=failure,
        attempts=entry.attempts,
        started_at=shown_time(entry.started_at),
        at=shown_time(entry.at),
        archived_attempt=attempt,
    )


def message_event_view(row: MessageEventRow, codec: Codec) -> EntryView:
    """Return an event of an operation's run, in the form of a journal entry."""
    failure: Failure | None = None
    if row.exception is not None:
        failure = shown_failure(
            lambda: _cause(codec.decode(row.exception or "")),
            f"message_event.exception of row {row.scope!r}, {row.seq}",
        )
    return EntryView(
        seq=row.seq,
        position=row.step or "",
        kind=row.type.lower(),
        name=row.step or row.coroutine_name or "",
        value=None,
        failure=failure,
        attempts=1,
        started_at=shown_time(row.created_at),
        at=shown_time(row.created_at),
    )


def _cause(text: str) -> Failure:
    cause = msgspec.json.decode(text, type=Cause)
    return Failure(type=cause.type, message=cause.message)


def audit_view(audit: Audit) -> AuditView:
    """Return a row of a run's audit trail."""
    return AuditView(
        seq=audit.seq,
        version=audit.version,
        was=audit.was,
        became=audit.became,
        cause=audit.cause,
        actor=audit.actor,
        details=audit.details,
        at=shown_time(audit.at),
    )


__all__ = ["AuditView", "EntryView", "History", "audit_view", "entry_view", "message_event_view"]
