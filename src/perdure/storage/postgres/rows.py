"""Conversion of records to rows, and of rows to records. Rows that are read are checked: see perdure.storage.damage."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from perdure.kernel.batch import RunWrite
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.rows import Engine, Entry, Mail, PublishedValue, Staged, StreamItem, Wait
from perdure.kernel.runs import Audit, Hold, Outcome, Run
from perdure.ports import StoredRun
from perdure.storage.damage import (
    decoded,
    record_of,
    shown,
    shown_audit,
    shown_entry,
    shown_letter,
    shown_run,
)

Row = tuple[Any, ...]

_RUN_FIELDS: Final = Run.__struct_fields__
_TAGS_AT: Final = _RUN_FIELDS.index("tags")
_HOLD_AT: Final = _RUN_FIELDS.index("hold")
_decode_tags: Final = msgspec.json.Decoder(dict[str, str]).decode
_decode_where: Final = msgspec.json.Decoder(tuple[tuple[str, str], ...]).decode
_decode_hold: Final = msgspec.json.Decoder(Hold).decode
_decode_names: Final = msgspec.json.Decoder(list[tuple[str, str]]).decode


def json_text(value: object) -> str:
    return msgspec.json.encode(value).decode()


# ---------------------------------------------------------------------------------------------------------------------
# Into the tables; each row has the order of a composite type in migrations


def new_run(write: RunWrite, base: int | None) -> Row:
    """Return the row of a new run.

    `base` is added to the batch's numbers. It is None if the batch has no numbers.
    """
    run = write.run
    outcome = write.outcome or Outcome()
    fixed = (run.id, run.workflow, run.model, run.parent_id, run.bond, run.created_at)
    born = None if base is None else base + write.born
    return (*fixed, *_changing(run), write.input, outcome.output, outcome.failure, born)


def changed_run(write: RunWrite) -> Row:
    outcome = write.outcome
    payloads = (False, None, None) if outcome is None else (True, outcome.output, outcome.failure)
    beginning = (False, None, None) if write.input is None else (True, write.run.workflow, write.input)
    expected = (write.expected_owner, write.expected_version, write.expected_claim)
    return (write.run.id, *expected, *_changing(write.run), *payloads, *beginning)


def _changing(run: Run) -> Row:
    """Return the columns that an update writes. A run's model, parent and creation time never change."""
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


def wait_rows(waits: Iterable[Wait]) -> list[Row]:
    rows: list[Row] = []
    for wait in waits:
        run_id, position, option, kind, name, where, *rest = astuple(wait)
        chosen = (shape_of(where), json_text(where)) if where else ("", "")
        rows.append((run_id, position, option, kind, name, *chosen, *rest))
    return rows


def shape_of(where: tuple[tuple[str, str], ...]) -> str:
    return json_text([name for name, _ in where]) if where else ""


def event_rows(events: Iterable[Event]) -> list[Row]:
    return [
        (
            event.number,
            event.id,
            event.run_id,
            event.position,
            event.option,
            event.shared,
            event.consumed,
            event.name,
            event.expires_at,
            event.fallback,
            event.key,
            event.actor,
            event.at,
            None,
            json_text(event.fields) if event.fields else "{}",
            event.value,
        )
        for event in events
    ]


def letter_row(letter: DeadLetter) -> Row:
    return (
        letter.id,
        letter.name,
        json_text(letter.fields),
        letter.run_id,
        letter.status,
        letter.ended_at,
        letter.consumed,
        letter.at,
        letter.value,
    )


def published_row(value: PublishedValue) -> Row:
    return (value.run_id, value.key, value.at, *(value.mark or (0, 0)), value.value)


def stream_item_rows(items: Iterable[StreamItem]) -> list[Row]:
    """Return the rows of stream items. If a mark occurs twice in a batch, only the first item is stored."""
    said: set[tuple[str, tuple[int, int]]] = set()
    rows: list[Row] = []
    for item in items:
        if item.mark is not None:
            if (item.run_id, item.mark) in said:
                continue
            said.add((item.run_id, item.mark))
        mark = item.mark or (None, None)
        rows.append((item.run_id, item.stream, item.at, item.position, item.attempt, *mark, item.value))
    return rows


# ---------------------------------------------------------------------------------------------------------------------
# Out of the tables


def run_of(row: Sequence[Any]) -> Run:
    """Convert a row to a run. If the row is damaged, the run has a hold that reports the damage."""
    values = dict(zip(_RUN_FIELDS, row, strict=False))
    values["tags"] = decoded(_decode_tags, row[_TAGS_AT])
    values["hold"] = None if row[_HOLD_AT] is None else decoded(_decode_hold, row[_HOLD_AT])
    return shown_run(values, row)


def stored_run_of(row: Sequence[Any]) -> StoredRun:
    text, output, failure = row[len(_RUN_FIELDS) :]
    return StoredRun(run=run_of(row), input=text, outcome=Outcome(output=output, failure=failure))


def entry_of(row: Sequence[Any]) -> Entry:
    """Convert a row to an entry with which a run resumes. Raises RowDamaged."""
    return record_of(Entry, dict(zip(Entry.__struct_fields__, row, strict=True)), row)


def shown_entry_of(row: Sequence[Any], table: str = "journal") -> Entry:
    """Convert a row to an entry, for display. If the row is damaged, the entry has a failure that reports the
    damage.
    """
    return shown_entry(dict(zip(Entry.__struct_fields__, row, strict=True)), row, table)


def wait_of(row: Sequence[Any]) -> Wait:
    """Convert a row to a wait. Raises RowDamaged."""
    values = dict(zip(Wait.__struct_fields__, row, strict=True))
    values["where"] = decoded(_decode_where, values["where"]) if values["where"] else ()
    return record_of(Wait, values, row)


def staged_of(row: Sequence[Any]) -> Staged:
    """Convert a row to a staged result. Raises RowDamaged."""
    return record_of(Staged, dict(zip(Staged.__struct_fields__, row, strict=True)), row)


def event_of(row: Sequence[Any]) -> Event:
    """Convert a row to an event with which a run resumes. Raises RowDamaged."""
    return record_of(Event, _event_values(row), row)


def shown_event_of(row: Sequence[Any]) -> Event:
    """Convert a row to an event, for display."""
    return shown(Event, _event_values(row), row)


def _event_values(row: Sequence[Any]) -> dict[str, Any]:
    return _with_fields(dict(zip(Event.__struct_fields__, row, strict=False)))


def letter_of(row: Sequence[Any]) -> DeadLetter:
    """Convert a row to a dead letter. If the row is damaged, its status reports the damage."""
    return shown_letter(_with_fields(dict(zip(DeadLetter.__struct_fields__, row, strict=True))), row)


def _with_fields(values: dict[str, Any]) -> dict[str, Any]:
    values["fields"] = decoded(_decode_tags, values["fields"]) if values["fields"] != "{}" else {}
    return values


def audit_of(row: Sequence[Any]) -> Audit:
    return shown_audit(dict(zip(Audit.__struct_fields__, row, strict=True)), row)


def published_of(row: Sequence[Any]) -> PublishedValue:
    """Convert a row to a published value. Raises RowDamaged."""
    return record_of(PublishedValue, dict(zip(PublishedValue.__struct_fields__, row, strict=False)), row)


def stream_item_of(row: Sequence[Any]) -> StreamItem:
    """Convert a row to a stream item. Raises RowDamaged."""
    return record_of(StreamItem, dict(zip(StreamItem.__struct_fields__, row, strict=False)), row)


def mail_of(row: Sequence[Any]) -> Mail:
    return shown(Mail, dict(zip(Mail.__struct_fields__, row, strict=True)), row)


def mail_row(mail: Mail) -> Row:
    return (mail.run_id, mail.sender, mail.slot or None, mail.op, mail.at)


def engine_of(row: Sequence[Any]) -> Engine:
    values = dict(zip(Engine.__struct_fields__, row, strict=True))
    values["workflows"] = decoded(_decode_names, values["workflows"])
    return shown(Engine, values, row)


def pair_of(row: Sequence[Any]) -> tuple[str, str]:
    key, value = row
    return key, value
