"""Encodes the machine's rows for the store, and decodes them. The codec encodes the values of users."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec

from perdure.kernel.cooperation import MessageEventRow, MessageRow, OperationRow, ReturnValueRow, ScopeRows
from perdure.kernel.failures import Failure as StoredFailure
from perdure.kernel.lineages import read_lineage, read_origin
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.status import Status
from perdure.models.common.stored_failures import read_failure, write_failure
from perdure.models.cooperation.context import EMPTY, Context, token_names
from perdure.models.cooperation.failures import Failure, as_stored, placed, source_of, trace
from perdure.models.cooperation.message_events import (
    PER_MESSAGE,
    PER_RUN,
    SLEEP_TOPIC,
    EventType,
    Message,
    MessageEvent,
)
from perdure.models.cooperation.moves import NewRun
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.stored_hierarchy import Hierarchy
from perdure.ports import Codec

_decode_failure: Final = msgspec.json.Decoder(Failure).decode
_NEXT_STEP: Final = "perdure.next_step"  # in the context of a row: the name of the step that comes next
_decode_context: Final = msgspec.json.Decoder(dict[str, Any]).decode
# the number of failures in the text of one run; every run of a hierarchy has a text of its own
_SHOWN_WITH_RUN_MAX: Final = 8
_ENDS: Final = (EventType.ROLLED_BACK, EventType.ROLLBACK_FAILED)


class RowCodec:
    """Writes and reads rows."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._empty = codec.encode("{}")

    def message(self, message: Message, at: int) -> MessageRow:
        # The time of a sleep is not secret. The query for runs that can go on reads it, so it is not encoded.
        payload = message.payload if message.topic == SLEEP_TOPIC else self._codec.encode(message.payload)
        return MessageRow(id=message.id, topic=message.topic, payload=payload, created_at=at)

    def event(self, row: MessageEvent, id: str = "") -> MessageEventRow:
        """Return an event in the form in which it is stored, with the given id or with its own id."""
        lineage = row.cooperation_lineage
        return MessageEventRow(
            scope=lineage[-1],
            seq=row.seq,
            id=id or row.id,
            message_id=row.message_id,
            type=row.type._value_,
            key=key_of(row),
            coroutine_name=row.coroutine_name,
            coroutine_identifier=row.coroutine_identifier,
            step=row.step,
            cooperation_lineage="/".join(lineage),
            created_at=row.created_at,
            exception=None if row.exception is None else self.failure(row.exception, f"{lineage[-1]}/{row.seq}"),
            context=None if row.context is None else self._context(row.context, row.next_name),
            next_step=row.next_step,
            child_failure_handler_iteration=row.child_failure_handler_iteration,
        )

    def _context(self, context: Context, next_name: str) -> str:
        if next_name:
            return self._codec.encode(msgspec.json.encode({**context.values, _NEXT_STEP: next_name}).decode())
        return self._codec.encode(msgspec.json.encode(context.values).decode()) if context.values else self._empty

    def failure(self, failure: Failure, place: str = "") -> str:
        """Return a failure in the form in which the row at `place` stores it. If another row has the failure, this is a
        reference.
        """
        return self._codec.encode(msgspec.json.encode(as_stored(failure, place)).decode())

    def outcome_failure(self, failure: Failure) -> str:
        """Return the failure in the form in which runs of all models store their outcome."""
        stored = StoredFailure(type=failure.type, message=failure.message, stack=trace(failure, _SHOWN_WITH_RUN_MAX))
        return write_failure(stored, self._codec)

    def value(self, value: ReturnValue) -> ReturnValueRow:
        encoded = self._codec.encode(value.value)
        return ReturnValueRow(scope=value.lineage[-1], variable=value.variable, handler=value.handler, value=encoded)

    def read_message(self, row: MessageRow) -> Message:
        payload = row.payload if row.topic == SLEEP_TOPIC else self._codec.decode(row.payload)
        return Message(id=row.id, topic=row.topic, payload=payload, created_at=row.created_at)

    def read_event(self, row: MessageEventRow) -> MessageEvent:
        context, next_name = (None, "") if row.context is None else self._read_context(row.context)
        return MessageEvent(
            id=row.id,
            seq=row.seq,
            message_id=row.message_id,
            type=EventType(row.type),
            coroutine_name=row.coroutine_name,
            coroutine_identifier=row.coroutine_identifier,
            step=row.step,
            cooperation_lineage=read_lineage(row.cooperation_lineage),
            created_at=row.created_at,
            exception=None if row.exception is None else self.read_failure(row.exception, row.scope, row.seq),
            context=context,
            next_step=row.next_step,
            next_name=next_name,
            child_failure_handler_iteration=row.child_failure_handler_iteration,
        )

    def _read_context(self, text: str) -> tuple[Context, str]:
        values = _decode_context(self._codec.decode(text))
        next_name = values.pop(_NEXT_STEP, "")
        return Context(values) if values else EMPTY, next_name

    def read_failure(self, text: str, scope: str, seq: int) -> Failure:
        """Return a failure with its place. The place is this row, unless this row has only a reference."""
        return placed(_decode_failure(self._codec.decode(text)), scope, seq)

    def read_value(self, row: ReturnValueRow, run: NewRun) -> ReturnValue:
        value = self._codec.decode(row.value)
        return ReturnValue(lineage=run.lineage, handler=row.handler, variable=row.variable, value=value)

    def read_output(self, text: str, run: NewRun) -> ReturnValue:
        """Return the result of a call, as a value under the name of the workflow."""
        value = self._codec.decode(text)
        return ReturnValue(lineage=run.lineage, handler=run.handler, variable=run.handler, value=value)

    def read(self, rows: ScopeRows) -> StoredScopes:
        return at_once(self.read_in_pieces(rows))

    def read_in_pieces(self, rows: ScopeRows) -> Pieces[StoredScopes]:
        """Do what `read` does, in pieces. A run has several rows for each of its many children."""
        found = StoredScopes()
        for start, runs in parts(rows.runs):
            if start:
                yield
            for run in runs:
                found.runs[run.id] = new_run_of(run)
                found.statuses[run.id] = run.status
        for start, messages in parts(rows.messages):
            if start:
                yield
            found.messages += [self.read_message(row) for row in messages]
        for start, events in parts(rows.events):
            if start:
                yield
            found.events += [self.read_event(row) for row in events]
        for start, values in parts(rows.values):
            if start:
                yield
            found.values += [self.read_value(row, found.runs[row.scope]) for row in values if row.scope in found.runs]
        for start, calls in parts([row for row in rows.runs if row.is_call]):
            if start:
                yield
            for call in calls:
                self._read_call(found, call)
        return found

    def _read_call(self, found: StoredScopes, row: OperationRow) -> None:
        """Add rows that express the status of a called function or graph, because a call has no rows of its own."""
        run = found.runs[row.id]
        found.events += rows_of_call(row, run, self._codec)
        if row.status == Status.SUCCEEDED and row.output is not None:
            found.values.append(self.read_output(row.output, run))


class StoredScopes:
    """Rows that were read, in the form that the machine uses."""

    def __init__(self) -> None:
        self.runs: dict[str, NewRun] = {}
        self.statuses: dict[str, str] = {}
        self.messages: list[Message] = []
        self.events: list[MessageEvent] = []
        self.values: list[ReturnValue] = []

    @property
    def tokens(self) -> set[str]:
        """The names of the cancellation tokens that messages were emitted with."""
        return {
            name
            for event in self.events
            if event.type is EventType.EMITTED and event.context is not None and event.context.values
            for name in token_names(event.context)
        }

    def add(self, events: Iterable[MessageEvent]) -> None:
        """Add rows of other lineages."""
        self.events += events

    def hierarchy(self) -> Hierarchy:
        return at_once(self.hierarchy_in_pieces())

    def hierarchy_in_pieces(self) -> Pieces[Hierarchy]:
        return (yield from Hierarchy.in_pieces(self.messages, self.events, self.runs.values(), self.values))


def new_run_of(row: OperationRow) -> NewRun:
    message_id, lineage = read_origin(row.origin)
    return NewRun(lineage=lineage, handler=row.handler, message_id=message_id, is_call=row.is_call)


def rows_of_call(row: OperationRow, run: NewRun, codec: Codec) -> list[MessageEvent]:
    """Return the rows that an operation would have if it had the status of a call. A call that has failed or was
    cancelled has already run its compensations.
    """
    failure = None if row.failure is None else _failure_of_call(row.failure, run, codec)
    types = [EventType.SEEN]
    match row.status:
        case Status.SUCCEEDED:
            types.append(EventType.COMMITTED)
        case Status.CANCELLING | Status.ROLLING_BACK:
            types.append(EventType.ROLLING_BACK)
        case Status.FAILED | Status.CANCELLED | Status.ROLLED_BACK:
            types += [EventType.ROLLING_BACK, EventType.ROLLED_BACK]
        case Status.ROLLBACK_FAILED:
            types += [EventType.ROLLING_BACK, EventType.ROLLBACK_FAILED]
        case _:
            pass
    return [
        MessageEvent(
            id=f"{run.id}/{seq}",
            seq=seq,
            message_id=run.message_id,
            type=type,
            coroutine_name=run.handler,
            coroutine_identifier=run.id,
            cooperation_lineage=run.lineage,
            exception=failure if type in (EventType.ROLLING_BACK, EventType.ROLLBACK_FAILED) else None,
        )
        for seq, type in enumerate(types, 1)
    ]


def _failure_of_call(text: str, run: NewRun, codec: Codec) -> Failure:
    stored = read_failure(text, codec)
    return Failure(type=stored.type, message=stored.message, source=source_of(run.handler, run.id))


def key_of(row: MessageEvent) -> str | None:
    """Return the key that no two rows of a message share. Return None if the row needs no such key."""
    kind = row.type
    if kind in PER_MESSAGE:
        return PER_MESSAGE[kind]
    if kind in PER_RUN:
        return f"{'ENDED' if kind in _ENDS else PER_RUN[kind]}/{row.coroutine_name or ''}"
    if kind is EventType.CANCELLATION_REQUESTED:
        return f"{kind}/{row.cooperation_lineage[-1]}"
    return None
