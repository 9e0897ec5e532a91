"""What a rule comes to, and the changes that all rules share: a status moved, a note made, each with its audit row."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec import Struct
from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.errors import RunNotFound, RunOwnedElsewhere
from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.effects import Deliver, Effect
from perdure.kernel.mailboxes import EMPTY, Mailbox
from perdure.kernel.records import (
    Audit,
    DeadLetter,
    Entry,
    Event,
    Failure,
    Outcome,
    PublishedValue,
    Run,
    StreamItem,
    Wait,
)
from perdure.kernel.status import FINISHED, Status, check_transition
from perdure.kernel.stock import Stock, Task

Stored = tuple[tuple[Wait, ...], tuple[Event, ...]]


class DecisionInput(Struct, frozen=True, gc=False):
    """What a rule may have to know beside the run: its mailbox, whether this engine has its workflow, and, where the
    run is
    to be ended from outside, its unfinished children that are not detached. `stored` are its waits and events as they
    are stored, if there may be more of them than the mailbox knows; `task` is the one that is to be answered.
    `is_ready` says whether a run of an operation that waits may go on with what it is told, `is_undone` that what it
    does is to be undone."""

    mailbox: Mailbox = EMPTY
    has_code: bool = True
    children: tuple[str, ...] = ()
    stored: Stored | None = None
    task: Task | None = None
    is_ready: bool = True
    is_undone: bool = False


NO_INPUT = DecisionInput()


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """What an op comes to. `run` is the run's new state (None: unchanged); `row` says that its row must be written,
    `guard` that it must not have changed; `awake` is the state to write instead if what it waits for is there.

    `mailbox` is the run's new mailbox (None: unchanged). `follow_ups` are ops that follow from this one, in the same
    commit;
    `letters` are ops that the commit leaves as mail.
    """

    run: Run | None = None
    row: bool = False
    guard: bool = False
    awake: Run | None = None
    mailbox: Mailbox | None = None
    input: str | None = None
    outcome: Outcome | None = None
    entries: tuple[Entry, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_dropped: tuple[str, ...] = ()
    waits_cleared: bool = False
    events: tuple[Event, ...] = ()
    events_given: tuple[Event, ...] = ()
    events_read: tuple[str, ...] = ()
    dead: tuple[DeadLetter, ...] = ()
    consumed: tuple[str, ...] = ()
    published: tuple[PublishedValue, ...] = ()
    stream_items: tuple[StreamItem, ...] = ()
    stock: Stock | None = None
    cooperation: Cooperation | None = None
    archive_from: int | None = None
    continued: bool = False  # its history is cleared, and what was sent to it is kept
    audit: tuple[Audit, ...] = ()
    effects: tuple[Effect, ...] = ()
    follow_ups: tuple[ops.Op, ...] = ()
    letters: tuple[ops.Op, ...] = ()
    spread: str | None = None
    letter: str | None = None  # a dead letter that is one no more
    proof: bool = False  # a commit is wanted, whatever is in it
    reply: Any = None


NOTHING = Decision(reply=False)


def move(
    run: Run, became: Status, op: ops.Op, cause: str, details: str = "", **changes: Any
) -> tuple[Run, tuple[Audit, ...]]:
    """One status change: checked, versioned, audited."""
    check_transition(run.id, run.status, became)
    if became is Status.RUNNING and run.started_at is None:
        changes["started_at"] = op.at
    elif became in FINISHED:
        changes |= {"completed_at": op.at, "owner": None, "hold": None}
    moved = replace(run, status=became, version=run.version + 1, revision=run.revision + 1, updated_at=op.at, **changes)
    return moved, (audit(moved, run.status, became, op, cause, details),)


def note(
    run: Run, op: ops.Op, became: str, cause: str, details: str = "", bump: bool = False, **changes: Any
) -> tuple[Run, tuple[Audit, ...]]:
    """A change that is audited but is not one of status: a hold, tags, the deadline."""
    noted = replace(run, version=run.version + bump, revision=run.revision + 1, updated_at=op.at, **changes)
    return noted, (audit(noted, run.status, became, op, cause, details),)


def audit(run: Run, was: str | None, became: str, op: ops.Op, cause: str, details: str = "") -> Audit:
    return Audit(
        run_id=run.id,
        seq=run.revision,
        version=run.version,
        was=was,
        became=became,
        cause=cause,
        actor=op.actor,
        details=details,
        at=op.at,
    )


def mine_or_free(run: Run | None, op: ops.Op, me: str) -> Run:
    """The run, if this engine may decide about it: its own, or one that nobody owns."""
    if run is None:
        raise RunNotFound(op.run_id)
    if run.owner is not None and run.owner != me:
        raise RunOwnedElsewhere(
            f"run {run.id!r} is owned by engine {run.owner!r}, which is alive; send this request to that engine",
            run_id=run.id,
            owner=run.owner,
        )
    return run


def cancellation(reason: str) -> str:
    """The failure that a cancelled run is left with."""
    return to_json(Failure(type="perdure.errors:RunCancelled", message=reason or "cancelled")).decode()


def deliveries(run_id: str, given: Iterable[Event]) -> tuple[Deliver, ...]:
    return tuple(Deliver(run_id, event.position or "", event.option, event) for event in given)
