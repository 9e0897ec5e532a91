"""Reads shaped for people: runs with their payloads decoded, pages of runs, histories, reports."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import Misuse
from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Failure, Hold, Run, StreamItem
from perdure.models.cooperation.failures import Failure as Cause
from perdure.models.functions.context import to_datetime
from perdure.ports import Codec, StoredRun


class RunView(Struct, frozen=True, kw_only=True):
    """A run as it is stored. Input, output and values are plain JSON values; listings leave payloads out (None).

    `stranded` says why nobody can go on with it, where that is so: no living engine has its code.
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


class EntryView(Struct, frozen=True, kw_only=True):
    """One thing a run did."""

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
    """What a run did and how its status changed; `archived` has what retries set aside."""

    journal: list[EntryView]
    audit: list[AuditView]
    archived: list[EntryView]


class RunTree(Struct, frozen=True, kw_only=True):
    """A run and its children, oldest first. The root of a hierarchy of operations may be a message (its model says so):
    one that was emitted from outside."""

    run: RunView
    children: list[RunTree]

    def text(self) -> str:
        """The tree for people: a line for each run."""
        return "\n".join(self._lines("", ""))

    def _lines(self, first: str, rest: str) -> Iterator[str]:
        run = self.run
        hold = f", {run.hold.kind}: {run.hold.reason}" if run.hold is not None else ""
        yield f"{first}{run.workflow} ({run.model}) {run.status}{hold}  {run.id}"
        for number, child in enumerate(self.children, start=1):
            is_last = number == len(self.children)
            yield from child._lines(f"{rest}{'└─ ' if is_last else '├─ '}", f"{rest}{'   ' if is_last else '│  '}")

    def mermaid(self) -> str:
        """The tree as a Mermaid flowchart."""
        lines = ["flowchart TD"]
        self._draw(lines, {})
        return "\n".join(lines)

    def _draw(self, lines: list[str], names: dict[str, str]) -> str:
        name = names[self.run.id] = f"n{len(names)}"
        label = f"{self.run.workflow}<br/>{self.run.status}".replace('"', "#quot;")
        lines.append(f'    {name}["{label}"]')
        for child in self.children:
            lines.append(f"    {name} --> {child._draw(lines, names)}")
        return name


class HierarchyEventView(Struct, frozen=True, kw_only=True):
    """Something that happened to a message of a hierarchy of operations, in the run (or root) that `scope` names."""

    scope: str
    seq: int
    topic: str
    message_id: str
    kind: str
    name: str
    failure: Failure | None
    at: datetime


class HierarchyView(Struct, frozen=True, kw_only=True):
    """A hierarchy of operations: its runs, and what happened, in the order of time."""

    tree: RunTree
    events: list[HierarchyEventView]


class EngineView(Struct, frozen=True, kw_only=True):
    """A process's instance of Perdure, and the code that it has: names and versions of workflows."""

    id: str
    host: str
    pid: int
    workflows: list[tuple[str, str]]
    started_at: datetime


class Page(Struct, frozen=True, kw_only=True):
    """Some runs, newest first; `cursor` gets the next page, None: there is none."""

    runs: list[RunView]
    cursor: str | None


def run_view(run: Run, stored: StoredRun | None = None, codec: Codec | None = None) -> RunView:
    payloads: dict[str, Any] = {}
    if stored is not None and codec is not None:
        payloads = {
            "input": plain_value(stored.input, codec),
            "output": plain_value(stored.outcome.output, codec),
            "failure": _failure(stored.outcome.failure),
        }
    return RunView(
        id=run.id,
        workflow=run.workflow,
        workflow_version=run.workflow_version,
        model=run.model,
        status=run.status,
        version=run.version,
        attempt=run.attempt,
        owner=run.owner,
        parent_id=run.parent_id,
        tags=run.tags,
        hold=run.hold,
        deadline=_when(run.deadline),
        recoveries=run.recoveries,
        created_at=to_datetime(run.created_at),
        started_at=_when(run.started_at),
        updated_at=to_datetime(run.updated_at),
        completed_at=_when(run.completed_at),
        **payloads,
    )


def engine_view(engine: Engine) -> EngineView:
    return EngineView(
        id=engine.id,
        host=engine.host,
        pid=engine.pid,
        workflows=engine.workflows,
        started_at=to_datetime(engine.started_at),
    )


def message_event_view(row: MessageEventRow, codec: Codec) -> EntryView:
    """An event of an operation's run."""
    failure: Failure | None = None
    if row.exception is not None:
        told = msgspec.json.decode(codec.decode(row.exception), type=Cause)
        failure = Failure(type=told.type, message=told.message)
    return EntryView(
        seq=row.seq,
        position=row.step or "",
        kind=row.type.lower(),
        name=row.step or row.coroutine_name or "",
        value=None,
        failure=failure,
        attempts=1,
        started_at=to_datetime(row.created_at),
        at=to_datetime(row.created_at),
    )


def hierarchy_event_view(row: MessageEventRow, topic: str, codec: Codec) -> HierarchyEventView:
    entry = message_event_view(row, codec)
    return HierarchyEventView(
        scope=row.scope,
        seq=row.seq,
        topic=topic,
        message_id=row.message_id,
        kind=entry.kind,
        name=entry.name,
        failure=entry.failure,
        at=entry.at,
    )


def entry_view(entry: Entry, codec: Codec, attempt: int | None = None) -> EntryView:
    # Timers' values are the engine's own and never went through the codec.
    plain = msgspec.json.decode(entry.value or "null") if entry.kind == "timer" else plain_value(entry.value, codec)
    return EntryView(
        seq=entry.seq,
        position=entry.position,
        kind=entry.kind,
        name=entry.name,
        value=plain,
        failure=_failure(entry.failure),
        attempts=entry.attempts,
        started_at=to_datetime(entry.started_at),
        at=to_datetime(entry.at),
        archived_attempt=attempt,
    )


def audit_view(audit: Audit) -> AuditView:
    return AuditView(
        seq=audit.seq,
        version=audit.version,
        was=audit.was,
        became=audit.became,
        cause=audit.cause,
        actor=audit.actor,
        details=audit.details,
        at=to_datetime(audit.at),
    )


class EventView(Struct, frozen=True, kw_only=True):
    """An event that waits to be read. `to` is the run that it was sent or given to (None: anybody)."""

    id: str
    number: int
    name: str
    value: Any
    to: str | None
    consume_on_read: bool
    sent_at: datetime
    expires_at: datetime


class DeadLetterView(Struct, frozen=True, kw_only=True):
    """An event whose run ended before it was read."""

    id: str
    name: str
    value: Any
    to: str
    target_status: str
    target_ended_at: datetime
    sent_at: datetime


def event_view(event: Event, codec: Codec) -> EventView:
    return EventView(
        id=event.id,
        number=event.number,
        name=event.name,
        value=plain_value(event.value, codec),
        to=event.run_id,
        consume_on_read=event.consumed,
        sent_at=to_datetime(event.at),
        expires_at=to_datetime(event.expires_at),
    )


def dead_letter_view(letter: DeadLetter, codec: Codec) -> DeadLetterView:
    return DeadLetterView(
        id=letter.id,
        name=letter.name,
        value=plain_value(letter.value, codec),
        to=letter.run_id,
        target_status=letter.status,
        target_ended_at=to_datetime(letter.ended_at),
        sent_at=to_datetime(letter.at),
    )


class StreamItemView(Struct, frozen=True, kw_only=True):
    """An item of a run's stream. `offset` is its place in it, from 1 on. `position` and `attempt` are those of the step
    that wrote it, None for workflow code."""

    offset: int
    value: Any
    at: datetime
    position: str | None
    attempt: int | None


def stream_item_view(item: StreamItem, codec: Codec) -> StreamItemView:
    return StreamItemView(
        offset=item.offset,
        value=plain_value(item.value, codec),
        at=to_datetime(item.at),
        position=item.position,
        attempt=item.attempt,
    )


def to_cursor(run: Run) -> str:
    return f"{run.created_at}:{run.id}"


def from_cursor(cursor: str) -> tuple[int, str]:
    at, _, run_id = cursor.partition(":")
    if not run_id or not at.isascii() or not at.isdigit() or len(at) > 18:
        raise Misuse(f"{cursor!r} is not a cursor: use the one that the page before gave")
    return int(at), run_id


def plain_value(text: str | None, codec: Codec) -> Any:
    """A stored payload as plain JSON values."""
    return None if text is None else msgspec.json.decode(codec.decode(text))


def _failure(text: str | None) -> Failure | None:
    return None if text is None else msgspec.json.decode(text, type=Failure)


def _when(at: int | None) -> datetime | None:
    return None if at is None else to_datetime(at)
