"""Records as rows and rows as records. What comes out of the file is checked: InvariantViolated if it is no record."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeVar

import msgspec
from msgspec.structs import astuple

from perdure.errors import InvariantViolated
from perdure.kernel.batch import RunWrite
from perdure.kernel.records import (
    Audit,
    DeadLetter,
    Engine,
    Entry,
    Event,
    Hold,
    Mail,
    Outcome,
    PublishedValue,
    Run,
    Staged,
    StreamItem,
    Wait,
)
from perdure.ports import StoredRun

INLINE_MAX_BYTES: Final = 8 * 1024
_SURELY_INLINE_CHARS: Final = INLINE_MAX_BYTES // 4  # A character takes four bytes at most.

SPILLED_INPUT: Final = 1
SPILLED_OUTPUT: Final = 2
SPILLED_FAILURE: Final = 4
_ENTRY_VALUE: Final = 1
_ENTRY_FAILURE: Final = 2

Row = tuple[Any, ...]
Payloads = list[tuple[str, str, str]]  # run id, slot, data

_RUN_FIELDS: Final = Run.__struct_fields__
_TAGS_AT: Final = _RUN_FIELDS.index("tags")
_HOLD_AT: Final = _RUN_FIELDS.index("hold")
_decode_tags: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_where: Final = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode
_decode_hold: Final = msgspec.json.Decoder(Hold).decode
_decode_names: Final = msgspec.json.Decoder(list[tuple[str, str]]).decode

T = TypeVar("T", bound=msgspec.Struct)


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def is_large(text: str | None) -> bool:
    """Whether a payload goes to a table of its own."""
    if text is None or len(text) <= _SURELY_INLINE_CHARS:
        return False
    return len(text) > INLINE_MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > INLINE_MAX_BYTES


# ---------------------------------------------------------------------------------------------------------------------
# Into the file


def inserted_run(write: RunWrite, payloads: Payloads, numbered: int) -> Row:
    """The row of a new run in a batch with so many numbers; large payloads are appended to `payloads`."""
    run = write.run
    spilled, text = _spill_input(write, payloads)
    outcome_spilled, output, failure = _spill_outcome(run.id, write.outcome, payloads)
    fixed = (run.id, run.workflow, run.model, run.parent_id, run.bond, run.created_at)
    return (*fixed, *_changing(run), spilled | outcome_spilled, text, output, failure, numbered - write.born)


def beginning_run(write: RunWrite, numbered: int) -> Row | None:
    """The same, briefly, of a run that begins at once; None if there is more to say about it."""
    run, text = write.run, write.input
    if (
        text is None
        or len(text) > _SURELY_INLINE_CHARS
        or write.outcome is not None
        or run.owner is None
        or run.started_at is None
        or run.completed_at is not None
        or run.hold is not None
        or run.deadline is not None
        or run.attempt != 1
        or run.recoveries
        or run.undo
    ):
        return None
    return (
        run.id,
        run.workflow,
        run.model,
        0 if run.parent_id is None else run.parent_id,
        run.bond,
        run.created_at,
        run.workflow_version,
        run.status._value_,
        run.version,
        run.revision,
        run.owner,
        run.claim,
        json_text(run.tags) if run.tags else "{}",
        run.origin,
        run.started_at,
        run.updated_at,
        text,
        numbered - write.born,
    )


def updated_run(write: RunWrite) -> Row:
    return (write.run.id, write.expected_owner, write.expected_version, write.expected_claim, *_changing(write.run))


def briefly_updated_run(write: RunWrite) -> Row:
    run = write.run
    return (
        run.id,
        write.expected_owner,
        write.expected_version,
        write.expected_claim,
        run.status._value_,
        run.version,
        run.revision,
        run.owner,
        run.claim,
        run.updated_at,
        run.completed_at,
    )


def succeeding_run(write: RunWrite) -> Row | None:
    """The same of a run that ends with an output; None if there is more to say about it."""
    run, outcome = write.run, write.outcome
    if (
        outcome is None
        or outcome.failure is not None
        or outcome.output is None
        or len(outcome.output) > _SURELY_INLINE_CHARS
        or write.expected_owner is None
        or run.owner is not None
        or run.completed_at != run.updated_at
    ):
        return None
    return (
        run.id,
        write.expected_owner,
        write.expected_version,
        write.expected_claim,
        run.status._value_,
        run.version,
        run.revision,
        run.claim,
        run.updated_at,
        outcome.output,
    )


def outcome_row(write: RunWrite, payloads: Payloads) -> Row:
    """What is added to the row of a run whose outcome is written too."""
    return _spill_outcome(write.run.id, write.outcome, payloads)


def replaced_input(write: RunWrite, payloads: Payloads) -> Row:
    return (*_spill_input(write, payloads), write.run.workflow, write.run.id)


def _changing(run: Run) -> Row:
    """The columns that an update writes; a run's workflow, model, parent and time of creation never change."""
    hold = run.hold
    return (
        run.workflow_version,
        run.status._value_,
        run.version,
        run.revision,
        run.owner,
        run.claim,
        json_text(run.tags) if run.tags else "{}",
        hold.kind if hold else None,
        hold.fingerprint if hold else None,
        json_text(hold) if hold else None,
        run.deadline,
        run.attempt,
        run.recoveries,
        run.undo,
        run.origin,
        run.started_at,
        run.updated_at,
        run.completed_at,
    )


def _spill_input(write: RunWrite, payloads: Payloads) -> tuple[int, str | None]:
    if write.input is not None and is_large(write.input):
        payloads.append((write.run.id, "input", write.input))
        return SPILLED_INPUT, None
    return 0, write.input


def _spill_outcome(run_id: str, outcome: Outcome | None, payloads: Payloads) -> tuple[int, str | None, str | None]:
    if outcome is None:
        return 0, None, None
    spilled, output, failure = 0, outcome.output, outcome.failure
    if output is not None and is_large(output):
        payloads.append((run_id, "output", output))
        spilled, output = SPILLED_OUTPUT, None
    if failure is not None and is_large(failure):
        payloads.append((run_id, "failure", failure))
        spilled, failure = spilled | SPILLED_FAILURE, None
    return spilled, output, failure


def entry_rows(entries: Iterable[Entry], payloads: Payloads) -> tuple[list[Row], list[Row]]:
    """The rows of steps that were done at the first attempt, briefly, and those of all other entries."""
    steps: list[Row] = []
    others: list[Row] = []
    for entry in entries:
        value = entry.value
        if value is None or len(value) > _SURELY_INLINE_CHARS or entry.attempts != 1 or entry.kind != "step":
            others.append(_entry_row(entry, payloads))
        else:
            steps.append((entry.run_id, entry.seq, entry.position, entry.name, value, entry.started_at, entry.at))
    return steps, others


def _entry_row(entry: Entry, payloads: Payloads) -> Row:
    text = entry.failure if entry.value is None else entry.value
    if text is None or not is_large(text):
        return (*astuple(entry), 0)
    payloads.append((entry.run_id, f"entry:{entry.seq}", text))
    spilled = _ENTRY_FAILURE if entry.value is None else _ENTRY_VALUE
    return (*astuple(msgspec.structs.replace(entry, value=None, failure=None)), spilled)


def audit_rows(rows: Iterable[Audit]) -> list[Row]:
    return [
        # Plain texts: sqlite3 takes its time with members of an enumeration, as with null.
        (
            row.run_id,
            row.seq,
            row.version,
            0 if row.was is None else str(row.was),
            str(row.became),
            row.cause,
            row.actor,
            row.details,
            row.at,
        )
        for row in rows
    ]


def wait_rows(waits: Iterable[Wait], base: int = 0) -> list[Row]:
    """Rows of waits. Those that have a number get it from `base` on."""
    return [
        (
            wait.run_id,
            wait.position,
            wait.option,
            wait.kind,
            wait.name,
            shape_of(wait.where),
            json_text(wait.where) if wait.where else "",
            wait.mode,
            0 if wait.target is None else wait.target,
            base + wait.number if wait.number else 0,
            "" if wait.due_at is None else wait.due_at,
            wait.attempts,
            0 if wait.failure is None else wait.failure,
            wait.since,
            0 if wait.details is None else wait.details,
        )
        for wait in waits
    ]


def shape_of(where: tuple[tuple[str, str], ...]) -> str:
    return json_text([name for name, _ in where]) if where else ""


def event_rows(events: Iterable[Event], base: int = 0) -> list[Row]:
    return [
        (
            base + event.number,
            event.id,
            0 if event.run_id is None else event.run_id,
            0 if event.position is None else event.position,
            event.option,
            int(event.shared),
            int(event.consumed),
            event.name,
            event.expires_at,
            event.fallback,
            0 if event.key is None else event.key,
            event.actor,
            event.at,
            json_text(event.fields) if event.fields else "{}",
            event.value,
        )
        for event in events
    ]


# ---------------------------------------------------------------------------------------------------------------------
# Out of the file


def run_of(row: Row) -> Run:
    values = dict(zip(_RUN_FIELDS, row, strict=False))
    try:
        values["tags"] = _decode_tags(row[_TAGS_AT])
        values["hold"] = None if row[_HOLD_AT] is None else _decode_hold(row[_HOLD_AT])
        values["consumed"] = bool(values["consumed"])
    except (msgspec.DecodeError, TypeError) as error:
        raise _not_a_record(Run, row, error) from error
    return record_of(Run, values, row)


def stored_run_of(row: Row) -> StoredRun:
    run = run_of(row)
    text, output, failure, spilled = row[len(_RUN_FIELDS) :]
    is_lost = (spilled & SPILLED_OUTPUT and output is None) or (spilled & SPILLED_FAILURE and failure is None)
    if text is None or is_lost:
        raise InvariantViolated(f"a payload of run {run.id!r} is gone from the table payloads", run_id=run.id)
    return StoredRun(run=run, input=text, outcome=Outcome(output=output, failure=failure))


def entry_of(row: Row) -> Entry:
    *fields, spilled = row
    entry = record_of(Entry, dict(zip(Entry.__struct_fields__, fields, strict=True)), row)
    if spilled and entry.value is None and entry.failure is None:
        raise InvariantViolated(
            f"the payload of entry {entry.seq} of run {entry.run_id!r} is gone from the table payloads",
            run_id=entry.run_id,
            seq=entry.seq,
        )
    return entry


def wait_of(row: Row) -> Wait:
    values = dict(zip(Wait.__struct_fields__, row, strict=True))
    try:
        values["where"] = _decode_where(values["where"]) if values["where"] else ()
    except (msgspec.DecodeError, TypeError) as error:
        raise _not_a_record(Wait, row, error) from error
    return record_of(Wait, values, row)


def staged_of(row: Row) -> Staged:
    return record_of(Staged, dict(zip(Staged.__struct_fields__, row, strict=True)), row)


def event_of(row: Row) -> Event:
    values = dict(zip(Event.__struct_fields__, row, strict=True))
    return _with_fields(Event, values, row)


def letter_of(row: Row) -> DeadLetter:
    values = dict(zip(DeadLetter.__struct_fields__, row, strict=True))
    return _with_fields(DeadLetter, values, row)


def _with_fields(kind: type[T], values: dict[str, Any], row: Row) -> T:
    try:
        values["fields"] = _decode_tags(values["fields"]) if values["fields"] != "{}" else {}
    except (msgspec.DecodeError, TypeError) as error:
        raise _not_a_record(kind, row, error) from error
    for flag in ("shared", "consumed"):
        if flag in values:
            values[flag] = bool(values[flag])
    return record_of(kind, values, row)


def audit_of(row: Row) -> Audit:
    return record_of(Audit, dict(zip(Audit.__struct_fields__, row, strict=True)), row)


def published_of(row: Row) -> PublishedValue:
    return record_of(PublishedValue, dict(zip(PublishedValue.__struct_fields__, row, strict=False)), row)


def stream_item_of(row: Row) -> StreamItem:
    return record_of(StreamItem, dict(zip(StreamItem.__struct_fields__, row, strict=False)), row)


def mail_of(row: Row) -> Mail:
    return record_of(Mail, dict(zip(Mail.__struct_fields__, row, strict=True)), row)


def engine_of(row: Row) -> Engine:
    values = dict(zip(Engine.__struct_fields__, row, strict=True))
    values["alive"] = bool(values["alive"])
    try:
        values["workflows"] = _decode_names(values["workflows"])
    except (msgspec.DecodeError, TypeError) as error:
        raise _not_a_record(Engine, row, error) from error
    return record_of(Engine, values, row)


def record_of(kind: type[T], values: Mapping[str, object], row: Row) -> T:
    """A row as the record that it must be. Raises InvariantViolated."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise _not_a_record(kind, row, error) from error


def _not_a_record(kind: type[msgspec.Struct], row: Row, error: Exception) -> InvariantViolated:
    return InvariantViolated(f"the store holds no valid {kind.__name__.lower()} at {row[0]!r}: {error}", key=row[0])
