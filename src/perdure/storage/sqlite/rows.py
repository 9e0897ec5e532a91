"""Conversion of records to rows, and of rows to records. Rows that are read are checked: see perdure.storage.damage."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec.structs import astuple, replace

from perdure.errors import RowDamaged
from perdure.kernel.batch import RunWrite
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.rows import Engine, Entry, Mail, PublishedValue, Staged, StreamItem, Wait
from perdure.kernel.runs import Audit, Damage, Hold, Outcome, Run
from perdure.ports import StoredRun
from perdure.storage.damage import (
    damaged_entry,
    decoded,
    flag,
    record_of,
    shown,
    shown_audit,
    shown_entry,
    shown_letter,
    shown_run,
)

INLINE_MAX_BYTES: Final = 8 * 1024
_SURELY_INLINE_CHARS: Final = INLINE_MAX_BYTES // 4  # a character takes at most four bytes

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


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


def is_large(text: str | None) -> bool:
    """Return whether a payload is stored in a table of its own."""
    if text is None or len(text) <= _SURELY_INLINE_CHARS:
        return False
    return len(text) > INLINE_MAX_BYTES or len(text.encode("utf-8", "surrogatepass")) > INLINE_MAX_BYTES


# ---------------------------------------------------------------------------------------------------------------------
# Into the file


def inserted_run(write: RunWrite, payloads: Payloads, numbered: int) -> Row:
    """Return the row of a new run. `numbered` is how many numbers its batch has. Large payloads are appended to
    `payloads`.
    """
    run = write.run
    spilled, text = _spill_input(write, payloads)
    outcome_spilled, output, failure = _spill_outcome(run.id, write.outcome, payloads)
    fixed = (run.id, run.workflow, run.model, run.parent_id, run.bond, run.created_at)
    return (*fixed, *_changing(run), spilled | outcome_spilled, text, output, failure, numbered - write.born)


def beginning_run(write: RunWrite, numbered: int) -> Row | None:
    """Return the short row of a run that begins at once. Return None if other columns need values too."""
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
        or run.tried
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
    """Return the short row of a run that ends with an output. Return None if other columns need values too."""
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
    """Return the columns that are added to a run's row if its outcome is written too."""
    return _spill_outcome(write.run.id, write.outcome, payloads)


def replaced_input(write: RunWrite, payloads: Payloads) -> Row:
    return (*_spill_input(write, payloads), write.run.workflow, write.run.id)


def _changing(run: Run) -> Row:
    """Return the columns that an update writes. A run's workflow, model, parent and creation time never change."""
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
        hold.fingerprint if hold else run.tried or None,
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
    """Return the short rows of steps that succeeded in their first attempt, and the rows of all other entries."""
    steps: list[Row] = []
    others: list[Row] = []
    for entry in entries:
        value = entry.value
        if value is None or len(value) > _SURELY_INLINE_CHARS or entry.attempts != 1 or entry.kind != "step":
            others.append(_entry_row(entry, payloads))
        else:
            row = (entry.run_id, entry.seq, entry.position, entry.name, value, entry.started_at, entry.at, entry.digest)
            steps.append(row)
    return steps, others


def _entry_row(entry: Entry, payloads: Payloads) -> Row:
    text = entry.failure if entry.value is None else entry.value
    if text is None or not is_large(text):
        return (*astuple(entry), 0)
    payloads.append((entry.run_id, f"entry:{entry.seq}", text))
    spilled = _ENTRY_FAILURE if entry.value is None else _ENTRY_VALUE
    return (*astuple(replace(entry, value=None, failure=None)), spilled)


def audit_rows(rows: Iterable[Audit]) -> list[Row]:
    return [
        # Plain texts are used, because sqlite3 is slow with members of an enumeration and with null.
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
    """Return the rows of waits. `base` is added to each number that is not 0."""
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
    """Convert a row to a run. If the row is damaged, the run has a hold that reports the damage."""
    values = dict(zip(_RUN_FIELDS, row, strict=False))
    values["tags"] = decoded(_decode_tags, row[_TAGS_AT])
    values["hold"] = None if row[_HOLD_AT] is None else decoded(_decode_hold, row[_HOLD_AT])
    values["consumed"] = flag(values["consumed"])
    return shown_run(values, row)


def stored_run_of(row: Row) -> StoredRun:
    run = run_of(row)
    text, output, failure, spilled = row[len(_RUN_FIELDS) :]
    damage: RowDamaged | None = None
    if type(spilled) is not int:
        damage = RowDamaged.at("runs", run.id, "spilled", spilled, "expected a number")
    elif text is None:
        damage = RowDamaged.at("payloads", run.id, "data", None, "the input of the run is gone")
    elif (spilled & SPILLED_OUTPUT and output is None) or (spilled & SPILLED_FAILURE and failure is None):
        damage = RowDamaged.at("payloads", run.id, "data", None, "the outcome of the run is gone")
    for column, value in (("input", text), ("output", output), ("failure", failure)):
        if value is not None and not isinstance(value, str):
            damage = damage or RowDamaged.at("runs", run.id, column, value, "expected a text")
    if damage is not None:
        return StoredRun(
            run=replace(run, hold=Damage(kind="blocked", reason=str(damage))), input="null", outcome=Outcome()
        )
    return StoredRun(run=run, input=text or "", outcome=Outcome(output=output, failure=failure))


def entry_of(row: Row) -> Entry:
    """Convert a row to an entry with which a run resumes. Raises RowDamaged."""
    values = dict(zip(Entry.__struct_fields__, row[:-1], strict=True))
    entry = record_of(Entry, values, row)
    if (damage := _payload_damage(entry, row[-1], "journal")) is not None:
        raise damage
    return entry


def shown_entry_of(row: Row, table: str = "journal") -> Entry:
    """Convert a row to an entry, for display. If the row is damaged, the entry has a failure that reports the
    damage.
    """
    entry = shown_entry(dict(zip(Entry.__struct_fields__, row[:-1], strict=True)), row, table)
    damage = _payload_damage(entry, row[-1], table)
    return entry if damage is None else damaged_entry(entry, damage)


def _payload_damage(entry: Entry, spilled: object, table: str) -> RowDamaged | None:
    if type(spilled) is not int:
        return RowDamaged.at(table, f"{entry.run_id} {entry.seq}", "spilled", spilled, "expected a number")
    if spilled and entry.value is None and entry.failure is None:
        key = f"{entry.run_id} entry:{entry.seq}"
        return RowDamaged.at("payloads", key, "data", None, "the payload of the entry is gone")
    return None


def archived_of(row: Row) -> tuple[int, Entry]:
    """Convert a row to an entry that a retry has archived, for display. Also return the number of its attempt."""
    entry = shown_entry_of(row[1:], "journal_archive")
    if type(row[0]) is int:
        return row[0], entry
    damage = RowDamaged.at("journal_archive", f"{entry.run_id} {entry.seq}", "attempt", row[0], "expected a number")
    return 0, damaged_entry(entry, damage)


def wait_of(row: Row) -> Wait:
    """Convert a row to a wait. Raises RowDamaged."""
    values = dict(zip(Wait.__struct_fields__, row, strict=True))
    values["where"] = decoded(_decode_where, values["where"]) if values["where"] else ()
    return record_of(Wait, values, row)


def staged_of(row: Row) -> Staged:
    """Convert a row to a staged result. Raises RowDamaged."""
    return record_of(Staged, dict(zip(Staged.__struct_fields__, row, strict=True)), row)


def event_of(row: Row) -> Event:
    """Convert a row to an event with which a run resumes. Raises RowDamaged."""
    return record_of(Event, _event_values(row), row)


def shown_event_of(row: Row) -> Event:
    """Convert a row to an event, for display."""
    return shown(Event, _event_values(row), row)


def _event_values(row: Row) -> dict[str, Any]:
    return _with_fields(dict(zip(Event.__struct_fields__, row, strict=True)))


def letter_of(row: Row) -> DeadLetter:
    """Convert a row to a dead letter. If the row is damaged, its status reports the damage."""
    return shown_letter(_with_fields(dict(zip(DeadLetter.__struct_fields__, row, strict=True))), row)


def _with_fields(values: dict[str, Any]) -> dict[str, Any]:
    values["fields"] = decoded(_decode_tags, values["fields"]) if values["fields"] != "{}" else {}
    for name in ("shared", "consumed"):
        if name in values:
            values[name] = flag(values[name])
    return values


def audit_of(row: Row) -> Audit:
    return shown_audit(dict(zip(Audit.__struct_fields__, row, strict=True)), row)


def published_of(row: Row) -> PublishedValue:
    """Convert a row to a published value. Raises RowDamaged."""
    return record_of(PublishedValue, dict(zip(PublishedValue.__struct_fields__, row, strict=False)), row)


def stream_item_of(row: Row) -> StreamItem:
    """Convert a row to a stream item. Raises RowDamaged."""
    return record_of(StreamItem, dict(zip(StreamItem.__struct_fields__, row, strict=False)), row)


def mail_of(row: Row) -> Mail:
    return shown(Mail, dict(zip(Mail.__struct_fields__, row, strict=True)), row)


def engine_of(row: Row) -> Engine:
    values = dict(zip(Engine.__struct_fields__, row, strict=True))
    values["alive"] = flag(values["alive"])
    values["workflows"] = decoded(_decode_names, values["workflows"])
    return shown(Engine, values, row)
