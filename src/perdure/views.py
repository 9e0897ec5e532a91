"""Reads shaped for people: runs with their payloads decoded, pages of runs, histories, reports."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.errors import Misuse, RowDamaged
from perdure.kernel.cooperation import VERSION_SEPARATOR, MessageEventRow, read_version
from perdure.kernel.invariants import TIME_MAX, TIME_MIN, damage_to_run
from perdure.kernel.records import Audit, DeadLetter, Engine, Entry, Event, Failure, Hold, Run, StreamItem
from perdure.models.cooperation.failures import Failure as Cause
from perdure.models.functions.artifacts import STAGED
from perdure.ports import Codec, PlainCodec, StoredRun
from perdure.values.checks import checked_text
from perdure.values.times import to_datetime

_CURSOR_TIME: Final = re.compile(r"-?[0-9]{1,18}|[1-8][0-9]{18}", re.ASCII)  # what fits 64 bits


class RunView(Struct, frozen=True, kw_only=True):
    """A run as it is stored. Input, output and values are plain JSON values; listings leave payloads out (None).

    `topic` is that of the message that a run of an operation handles; "" if an earlier version stored the run. The
    `workflow_version` of such a run is there once code with a version has begun it.
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
    topic: str | None = None


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
        """The tree as a Mermaid flowchart."""
        lines = ["flowchart TD"]
        count = 0
        waiting: list[tuple[RunTree, str] | str] = [(self, "")]  # and edges, each to be drawn once its child is
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
    """A process's instance of Perdure, and the code that it has: names and versions of workflows, names and topics of
    operations. `versions` has the name, the topic and the version of operations that have one."""

    id: str
    host: str
    pid: int
    workflows: list[tuple[str, str]]
    started_at: datetime
    versions: list[tuple[str, str, str]] = []


class Page(Struct, frozen=True, kw_only=True):
    """Some runs, newest first; `cursor` gets the next page, None: there is none."""

    runs: list[RunView]
    cursor: str | None


def run_view(run: Run, stored: StoredRun | None = None, codec: Codec | None = None) -> RunView:
    payloads: dict[str, Any] = {}
    if stored is not None and codec is not None:
        payloads = {
            "input": shown_value(stored.input, codec, f"runs.input of run {run.id!r}"),
            "output": shown_value(stored.outcome.output, codec, f"runs.output of run {run.id!r}"),
            "failure": _failure(stored.outcome.failure, f"runs.failure of run {run.id!r}"),
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
        deadline=_when(run.deadline),
        recoveries=run.recoveries,
        created_at=shown_time(run.created_at),
        started_at=_when(run.started_at),
        updated_at=shown_time(run.updated_at),
        completed_at=_when(run.completed_at),
        **payloads,
    )


def engine_view(engine: Engine) -> EngineView:
    return EngineView(
        id=engine.id,
        host=engine.host,
        pid=engine.pid,
        workflows=[*dict.fromkeys((name, read_version(version)[0]) for name, version in engine.workflows)],
        versions=[(name, *read_version(version)) for name, version in engine.workflows if VERSION_SEPARATOR in version],
        started_at=shown_time(engine.started_at),
    )


def message_event_view(row: MessageEventRow, codec: Codec) -> EntryView:
    """An event of an operation's run."""
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
    told = msgspec.json.decode(text, type=Cause)
    return Failure(type=told.type, message=told.message)


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


def entry_view(entry: Entry, codec: Codec, attempt: int | None = None, *, is_graph: bool = False) -> EntryView:
    # Timers' values are the engine's own and never went through the codec.
    table = "journal" if attempt is None else "journal_archive"
    row = f"entry {entry.seq} of run {entry.run_id!r}"
    plain = shown_value(entry.value, PlainCodec() if entry.kind == "timer" else codec, f"{table}.value of {row}")
    if is_graph and entry.kind == "step" and isinstance(plain, dict) and STAGED in plain:
        plain = plain["value"]  # What the step has returned.
    failure = _failure(entry.failure, f"{table}.failure of {row}")
    for column, at in (("started_at", entry.started_at), ("at", entry.at)):
        if not TIME_MIN <= at <= TIME_MAX:
            failure = _damaged(f"{table}.{column} of {row} holds {at}, which is no time")
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


def audit_view(audit: Audit) -> AuditView:
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
    """An event whose run ended before it was read; or, with a `reason`, one that did not fit the class by which its run
    waited for it. Then `target_status` is "misfit", and `target_ended_at` when that was found."""

    id: str
    name: str
    value: Any
    to: str
    target_status: str
    target_ended_at: datetime
    sent_at: datetime
    reason: str = ""


def event_view(event: Event, codec: Codec) -> EventView:
    return EventView(
        id=event.id,
        number=event.number,
        name=event.name,
        value=shown_value(event.value, codec, f"events.value of event {event.id!r}"),
        to=event.run_id,
        consume_on_read=event.consumed,
        sent_at=shown_time(event.at),
        expires_at=shown_time(event.expires_at),
    )


def dead_letter_view(letter: DeadLetter, codec: Codec) -> DeadLetterView:
    return DeadLetterView(
        id=letter.id,
        name=letter.name,
        value=shown_value(letter.value, codec, f"dead_letters.value of row {letter.id!r}"),
        to=letter.run_id,
        target_status="misfit" if letter.reason else letter.status,
        reason=letter.reason,
        target_ended_at=shown_time(letter.ended_at),
        sent_at=shown_time(letter.at),
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
        value=plain_value(item.value, codec, f"stream_items.value of item {item.offset} of run {item.run_id!r}"),
        at=shown_time(item.at),
        position=item.position,
        attempt=item.attempt,
    )


def to_cursor(run: Run) -> str:
    return f"{run.created_at}:{run.id}"


def from_cursor(cursor: str) -> tuple[int, str]:
    at, _, run_id = (checked_text(cursor, "cursor", 1_000) if cursor else "").partition(":")
    if not run_id or not _CURSOR_TIME.fullmatch(at):
        raise Misuse(f"{cursor!r} is not a cursor: use the one that the page before gave")
    return int(at), run_id


class Unreadable(Struct, frozen=True):
    """What views have in the place of a stored value that is no JSON, or that the codec cannot decode."""

    damaged: str


def plain_value(text: str | None, codec: Codec, place: str) -> Any:
    """A stored payload as plain JSON values. `place` says where it stands. Raises RowDamaged."""
    if isinstance(found := shown_value(text, codec, place), Unreadable):
        raise RowDamaged(found.damaged)
    return found


def shown_value(text: str | None, codec: Codec, place: str) -> Any:
    """The same for lists and pages: Unreadable if it cannot be read."""
    try:
        return None if text is None else msgspec.json.decode(codec.decode(text))
    except Exception as error:  # noqa: BLE001 - a codec is the user's, and raises what it likes
        return Unreadable(unreadable(place, text, error))


def unreadable(place: str, text: str | None, error: Exception) -> str:
    return (
        f"the store is damaged: {place} cannot be read ({error}): {text!r:.80}; correct the row, or restore it from a"
        " backup"
    )


def _failure(text: str | None, place: str) -> Failure | None:
    return shown_failure(lambda: None if text is None else msgspec.json.decode(text, type=Failure), place)


def shown_failure(read: Callable[[], Failure | None], place: str) -> Failure | None:
    """A stored failure, or one that says that it cannot be read."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - as above
        return _damaged(f"{place} cannot be read ({error})")


def _damaged(what: str) -> Failure:
    return Failure(type="perdure.errors:RowDamaged", message=f"the store is damaged: {what}")


def shown_time(at: int) -> datetime:
    """A stored time; the first or the last there is if it is none of those that there are."""
    return to_datetime(min(max(at, TIME_MIN), TIME_MAX))


def _when(at: int | None) -> datetime | None:
    return None if at is None else shown_time(at)
