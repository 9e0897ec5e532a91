"""Messages and their events, in the form that the machine uses. kernel/cooperation.py has the form in which they are
stored.

The table `message_event` is the journal of operations' runs. A lineage has one writer, which numbers the rows 1, 2, 3,
… The numbers give the order of the rows. The times of rows are only for display. A cancellation has the number 0. Any
process may write it, and a lineage has at most one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import InvariantViolated
from perdure.kernel.lineages import Lineage
from perdure.models.cooperation.context import Context
from perdure.models.cooperation.failures import DISMISSED, Failure

SLEEP_TOPIC = "perdure.sleep"  # has no handlers; its message is the time until which the emitter waits

CALL_TOPIC = "perdure.call"  # has no handlers; its message says which function or graph was called


class EventType(StrEnum):
    EMITTED = "EMITTED"
    SEEN = "SEEN"
    SUSPENDED = "SUSPENDED"
    COMMITTED = "COMMITTED"
    ROLLING_BACK = "ROLLING_BACK"
    ROLLBACK_EMITTED = "ROLLBACK_EMITTED"
    ROLLED_BACK = "ROLLED_BACK"
    ROLLBACK_FAILED = "ROLLBACK_FAILED"
    CANCELLATION_REQUESTED = "CANCELLATION_REQUESTED"


class State(StrEnum):
    """The state of a run, as its rows show it."""

    CREATED = "created"  # it has no row yet; only the EMITTED row of its message exists
    DISMISSED = "dismissed"  # its emitter went on without it before an engine had taken it
    ACTIVE = "active"
    COMMITTED = "committed"
    ROLLING_BACK = "rolling_back"
    ROLLED_BACK = "rolled_back"
    ROLLBACK_FAILED = "rollback_failed"


ENDED = frozenset({State.DISMISSED, State.COMMITTED, State.ROLLED_BACK, State.ROLLBACK_FAILED})


class Message(Struct, frozen=True, kw_only=True, gc=False):
    """A signal on a topic."""

    id: str
    topic: str
    payload: str  # JSON
    created_at: int = 0


class MessageEvent(Struct, frozen=True, kw_only=True, gc=False):
    """One event of a message, or of the operation's run that handles the message.

    The machine leaves `id` empty; the code that writes the row sets it. `coroutine_name` is the name of the operation,
    and `coroutine_identifier` is its run. Both are None for actions from outside.
    """

    id: str = ""
    seq: int  # the number of the row in its lineage
    message_id: str
    type: EventType
    coroutine_name: str | None = None
    coroutine_identifier: str | None = None
    step: str | None = None
    cooperation_lineage: Lineage
    created_at: int = 0
    exception: Failure | None = None
    context: Context | None = None
    next_step: int | None = None  # where the run goes on, as an index in the plan of the code that wrote the row
    next_name: str = ""  # the name of the step at that index; earlier versions of Perdure did not store it
    child_failure_handler_iteration: int | None = None


# ---------------------------------------------------------------------------------------------------------------------
# Rows


def in_order(events: Iterable[MessageEvent]) -> list[MessageEvent]:
    """Return rows of one lineage in the order in which they were written."""
    return sorted(events, key=lambda event: event.seq)


def stamped(rows: Sequence[MessageEvent], ids: Iterable[str], at: int) -> list[MessageEvent]:
    """Return rows with ids and with the time at which they are written."""
    return [replace(row, id=id, created_at=at) for row, id in zip(rows, ids, strict=False)]


def is_dismissal(row: MessageEvent) -> bool:
    """Return whether the row says that a run must not begin although it was not cancelled."""
    return (
        row.type is EventType.CANCELLATION_REQUESTED and row.exception is not None and row.exception.type == DISMISSED
    )


def state_of(own: Iterable[MessageEvent]) -> State:
    """Return the state of a run, from the rows of its lineage."""
    rows = list(own)
    types = {row.type for row in rows}
    if EventType.ROLLBACK_FAILED in types:
        return State.ROLLBACK_FAILED
    if EventType.ROLLED_BACK in types:
        return State.ROLLED_BACK
    if EventType.ROLLING_BACK in types:
        return State.ROLLING_BACK
    if EventType.COMMITTED in types:
        return State.COMMITTED
    if EventType.SEEN in types:
        return State.ACTIVE
    return State.DISMISSED if any(map(is_dismissal, rows)) else State.CREATED


def failure_in(own: Iterable[MessageEvent]) -> Failure | None:
    """Return the reason why a run's rollback failed. If it did not fail, return the reason why the run rolled back.
    Return None if the run did not roll back.
    """
    found: Failure | None = None
    for row in in_order(own):
        if row.type is EventType.ROLLBACK_FAILED:
            return row.exception
        if row.type is EventType.ROLLING_BACK:
            found = row.exception
    return found


PER_MESSAGE = {EventType.EMITTED: "EMITTED", EventType.ROLLBACK_EMITTED: "ROLLBACK_EMITTED"}
PER_RUN = {
    EventType.SEEN: "SEEN",
    EventType.ROLLING_BACK: "ROLLING_BACK",
    EventType.COMMITTED: "COMMITTED",
    EventType.ROLLED_BACK: "ROLLED_BACK or ROLLBACK_FAILED",
    EventType.ROLLBACK_FAILED: "ROLLED_BACK or ROLLBACK_FAILED",
}


def unique_key(row: MessageEvent) -> tuple[str, ...] | None:
    """Return the key that no two rows may share. Return None for a row that needs no unique key."""
    if row.type in PER_MESSAGE:
        return (PER_MESSAGE[row.type], row.message_id)
    if row.type in PER_RUN:
        return (PER_RUN[row.type], row.message_id, row.coroutine_name or "")
    if row.type is EventType.CANCELLATION_REQUESTED:
        return (row.type, *row.cooperation_lineage)
    return None


def check_rows(events: Iterable[MessageEvent]) -> None:
    """Raise InvariantViolated if two rows have the same number in a lineage, or the same unique key."""
    places: set[tuple[Lineage, int]] = set()
    keys: set[tuple[str, ...]] = set()
    for row in events:
        if not row.cooperation_lineage or (row.seq < 1) != (row.type is EventType.CANCELLATION_REQUESTED):
            raise InvariantViolated(f"a message event has no lineage or no number: {row}")
        place = (row.cooperation_lineage, row.seq)
        if place in places:
            raise InvariantViolated(f"two message events are number {row.seq} of lineage {row.cooperation_lineage}")
        places.add(place)
        key = unique_key(row)
        if key is not None and key in keys:
            raise InvariantViolated(f"there is a second {key[0]} row: {row}")
        if key is not None:
            keys.add(key)


def next_seq(own: Iterable[MessageEvent]) -> int:
    return max((row.seq for row in own), default=0) + 1
