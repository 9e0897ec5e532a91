"""Rows that differ from what Perdure wrote: which column is wrong, and which values of the row can still be shown."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import FieldInfo, fields, replace

from perdure.errors import RowDamaged
from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.artifacts import Artifact
from perdure.kernel.cooperation import HandlerRow, MessageEventRow, MessageRow, OperationRow, ReturnValueRow
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.failures import Failure
from perdure.kernel.invariants import TIME_MAX, TIME_MIN
from perdure.kernel.records import Record
from perdure.kernel.rows import Engine, Entry, Mail, PublishedValue, Staged, StreamItem, Wait
from perdure.kernel.runs import Audit, Damage, Run
from perdure.kernel.status import Status
from perdure.kernel.tasks import Task
from perdure.ports import LoadedRun

log = logging.getLogger("perdure")

T = TypeVar("T", bound=msgspec.Struct)

_TABLES: Final[dict[type[msgspec.Struct], str]] = {
    Artifact: "artifacts",
    Audit: "audit",
    DeadLetter: "dead_letters",
    Engine: "engines",
    Entry: "journal",
    Event: "events",
    HandlerRow: "handlers",
    Mail: "mail",
    MessageEventRow: "message_event",
    MessageRow: "messages",
    OperationRow: "runs",
    PublishedValue: "published",
    Record: "records",
    ReturnValueRow: "return_value",
    Run: "runs",
    Staged: "staged",
    StoredSession: "perdure_sessions",
    StoredToken: "perdure_tokens",
    StreamItem: "stream_items",
    Task: "tasks",
    Wait: "waits",
}
_COLUMNS: Final = {("waits", "where"): "filter", ("runs", "handler"): "workflow"}
_LAST: Final = (
    2**62
)  # the place in lists of a run whose creation time is not a number; SQLite sorts it after all numbers


# Times that are only shown to people. The coordinator also uses the times of runs and waits.
_TIMES: Final[dict[type[msgspec.Struct], tuple[str, ...]]] = {
    Artifact: ("staged_at", "published_at"),
    Audit: ("at",),
    DeadLetter: ("ended_at", "at"),
    Engine: ("started_at",),
    Event: ("at",),
    HandlerRow: ("registered_at", "retired_at", "seen_at"),
    PublishedValue: ("at",),
    Record: ("at",),
    StoredSession: ("until", "at"),
    StoredToken: ("at", "used_at"),
    StreamItem: ("at",),
    Task: ("lease_until", "beat_at", "due_at", "created_at", "closed_at"),
}
# Columns that contain one of a few words. A run that waits for an unknown kind of thing would wait forever.
_WORDS: Final[dict[type[msgspec.Struct], dict[str, frozenset[str]]]] = {
    Wait: {
        "kind": frozenset({"timer", "retry", "beat", "event", "run"}),
        "mode": frozenset({"", "after_wait", "after_create", "all"}),
    },
    MessageEventRow: {
        "type": frozenset(
            {
                "EMITTED", "SEEN", "SUSPENDED", "COMMITTED", "ROLLING_BACK", "ROLLBACK_EMITTED", "ROLLED_BACK",
                "ROLLBACK_FAILED", "CANCELLATION_REQUESTED",
            }
        )
    },
}  # fmt: skip
_NOTED_MAX: Final = 1_000
_noted: set[tuple[str, ...]] = set()


class Undecodable(msgspec.Struct, frozen=True):
    """The stored value of a column that should contain JSON or a flag, but contains something else."""

    stored: object


def decoded(decode: Callable[[Any], Any], text: object) -> Any:
    """Decode the JSON of a column. Returns Undecodable if the text is not JSON."""
    try:
        return decode(text)
    except (msgspec.DecodeError, TypeError, UnicodeDecodeError):
        return Undecodable(text)


def flag(value: object) -> Any:
    """Read a number in a column as true or false, as SQL does."""
    return bool(value) if isinstance(value, int) else Undecodable(value)


def record_of(kind: type[T], values: Mapping[str, object], row: Sequence[Any]) -> T:
    """Convert a row to a record. Raises RowDamaged."""
    record, damage = salvaged(kind, values, row)
    if damage is not None:
        raise damage
    return record


def salvaged(
    kind: type[T], values: Mapping[str, object], row: Sequence[Any], table: str = ""
) -> tuple[T, RowDamaged | None]:
    """Convert a row to a record. A harmless value replaces each wrong value. Also return the damage."""
    try:
        record = msgspec.convert(values, kind)
    except msgspec.ValidationError:
        return _salvaged(kind, values, row[0], table)
    for name, words in _WORDS.get(kind, {}).items():
        if values.get(name, "") not in words:
            expected = f"expected one of {', '.join(sorted(filter(None, words)))}"
            return record, RowDamaged.at(_TABLES[kind], row[0], name, values[name], expected)
    for name in _TIMES.get(kind, ()):
        at = values.get(name)
        if isinstance(at, int) and not TIME_MIN <= at <= TIME_MAX:
            return record, RowDamaged.at(_TABLES[kind], row[0], name, at, "expected a time")
    return record, None


def shown(kind: type[T], values: Mapping[str, object], row: Sequence[Any]) -> T:
    """Convert a row to a record, for a list that cannot show damage. Damage is logged."""
    record, damage = salvaged(kind, values, row)
    if damage is not None:
        _note(damage)
    return record


def _note(damage: RowDamaged) -> None:
    """Log a damage once per process, because a damaged row may be read ten times a second."""
    if len(_noted) < _NOTED_MAX and damage.args not in _noted:
        _noted.add(damage.args)
        log.error("%s", damage)


def sound(read: Callable[[Any], T], rows: Iterable[Any]) -> list[T]:
    """Return the records of the rows that can be read. The other rows are logged."""
    found: list[T] = []
    for row in rows:
        try:
            found.append(read(row))
        except RowDamaged as damage:
            _note(damage)
    return found


class Readings(Generic[T]):
    """Rows of runs as records. It has the readable rows, and the damage of all other rows."""

    def __init__(self, read: Callable[[Any], T]) -> None:
        self._read = read
        self._found: dict[str, list[T]] = {}
        self._damage: dict[str, RowDamaged] = {}

    def add(self, run_id: str, row: Any) -> None:
        try:
            self._found.setdefault(run_id, []).append(self._read(row))
        except RowDamaged as damage:
            self._damage.setdefault(run_id, damage)

    def of(self, run_id: str) -> tuple[T, ...]:
        return tuple(self._found.get(run_id, ()))

    def damage_to(self, run_id: str) -> RowDamaged | None:
        return self._damage.get(run_id)


def loaded(run: Run, waits: Readings[Wait], events: Readings[Event], *, forsaken: bool) -> LoadedRun:
    """Return a run with its readable waits and events."""
    damage = waits.damage_to(run.id) or events.damage_to(run.id)
    return LoadedRun(
        run=run,
        waits=waits.of(run.id),
        events=events.of(run.id),
        forsaken=forsaken,
        damage=None if damage is None else Damage(kind="blocked", reason=str(damage)),
    )


def shown_run(values: Mapping[str, object], row: Sequence[Any]) -> Run:
    """Convert a row to a run. If the row is damaged, the run has a hold that reports the damage."""
    run, damage = salvaged(Run, values, row)
    return run if damage is None else replace(run, hold=Damage(kind="blocked", reason=str(damage)))


def shown_entry(values: Mapping[str, object], row: Sequence[Any], table: str) -> Entry:
    """Convert a row of the journal, or of the journal's archive, for display. If the row is damaged, the entry has a
    failure that reports the damage.
    """
    entry, damage = salvaged(Entry, values, row, table)
    return entry if damage is None else damaged_entry(entry, damage)


def damaged_entry(entry: Entry, damage: RowDamaged) -> Entry:
    failure = Failure(type="perdure.errors:RowDamaged", message=str(damage))
    return replace(entry, value=None, failure=msgspec.json.encode(failure).decode())


def shown_task(values: Mapping[str, object], row: Sequence[Any]) -> Task:
    """Convert a row to a task. If the row is damaged, the task is neither open nor answered."""
    task, damage = salvaged(Task, values, row)
    return task if damage is None else replace(task, status="damaged", error=str(damage))


def shown_artifact(values: Mapping[str, object], row: Sequence[Any]) -> Artifact:
    artifact, damage = salvaged(Artifact, values, row)
    return artifact if damage is None else replace(artifact, state="damaged", type=str(damage))


def shown_letter(values: Mapping[str, object], row: Sequence[Any]) -> DeadLetter:
    letter, damage = salvaged(DeadLetter, values, row)
    return letter if damage is None else replace(letter, status=f"damaged: {damage}")


def shown_audit(values: Mapping[str, object], row: Sequence[Any]) -> Audit:
    audit, damage = salvaged(Audit, values, row)
    return audit if damage is None else replace(audit, details=str(damage))


def _salvaged(kind: type[T], values: Mapping[str, object], key: object, table: str = "") -> tuple[T, RowDamaged]:
    table = table or _TABLES[kind]
    kept = dict(values)
    damage: RowDamaged | None = None
    for field in fields(kind):
        if field.name not in values:
            continue
        value = values[field.name]
        try:
            msgspec.convert(value, field.type)
        except msgspec.ValidationError as error:
            stored = value.stored if isinstance(value, Undecodable) else value
            column = _COLUMNS.get((table, field.name), field.name)
            damage = damage or RowDamaged.at(table, key, column, stored, _expected(value, error))
            kept[field.name] = _LAST if field.name == "created_at" else _stand_in(field, stored)
    if damage is None:
        raise AssertionError(f"row {key!r} of {table} cannot be converted to a record, but each of its values can")
    return msgspec.convert(kept, kind), damage


def _expected(value: object, error: msgspec.ValidationError) -> str:
    return "expected JSON" if isinstance(value, Undecodable) else str(error).replace("`", "")


def _stand_in(field: FieldInfo, stored: object) -> Any:
    if field.type is str:  # Show as much of the value as possible.
        return stored.decode("utf-8", "backslashreplace") if isinstance(stored, bytes) else str(stored)
    if field.default is not msgspec.NODEFAULT:
        return field.default
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    for kind, plain in ((int, 0), (bool, False), (Status, Status.SUSPENDED)):
        if field.type is kind:
            return plain
    try:
        return msgspec.convert(None, field.type)
    except msgspec.ValidationError:
        return msgspec.convert([], field.type)
