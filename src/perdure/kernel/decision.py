"""The decision that a rule returns, and the changes that rules share: a new status or a note, each with an audit
row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from msgspec import Struct
from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.errors import ConcurrentModification, RunNotFound, RunOwnedElsewhere
from perdure.kernel import ops
from perdure.kernel.access import StoredToken
from perdure.kernel.artifacts import ArtifactWrites
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.effects import Deliver, Effect
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.failures import Failure
from perdure.kernel.operation_notices import NOT_NOTIFIED, Readiness
from perdure.kernel.records import Record
from perdure.kernel.rows import Entry, PublishedValue, StreamItem, Wait
from perdure.kernel.runless_rows import SharedWrites
from perdure.kernel.runs import Audit, Outcome, Run
from perdure.kernel.status import FINISHED, Status, check_transition
from perdure.kernel.tasks import Task, TaskWrites
from perdure.kernel.wait_matches import EMPTY, Mailbox

Stored = tuple[tuple[Wait, ...], tuple[Event, ...]]


class DecisionInput(Struct, frozen=True, gc=False):
    """The inputs of a rule, in addition to the run and the op. `mailbox` is the run's mailbox. `has_code` says whether
    this engine has the run's workflow. `children` is set if the run is to be ended from outside. It has the run's
    unfinished children that are not detached.

    `stored` has the stored waits and events of the run. It is set if the mailbox may lack some of them. `task` is the
    task to be answered or released. `readiness` has the counts of the notices to an operation's run, and the children
    that the run waits for. `record` and `token` are the newest versions of the record or the token to which an op adds
    a version. `handlers` are the handlers (topic, name) that are not retired. `concerned` are the runs that get the
    notices of an op.
    """

    mailbox: Mailbox = EMPTY
    has_code: bool = True
    children: tuple[str, ...] = ()
    stored: Stored | None = None
    task: Task | None = None
    readiness: Readiness = NOT_NOTIFIED
    record: Record | None = None
    token: StoredToken | None = None
    handlers: Collection[tuple[str, str]] = ()
    concerned: tuple[Run, ...] = ()


NO_INPUT = DecisionInput()


class Decision(Struct, frozen=True, kw_only=True, gc=False):
    """A rule's decision about an op. `run` is the run's new state, or None if it is unchanged. `row` says that the
    run's row must be written. `guard` says that the stored row must not have changed. `unchanged` are other runs whose
    stored rows must not have changed. `awake` is written instead if the transaction finds something that the run would
    wait for.

    `mailbox` and `readiness` are the run's new mailbox and readiness, or None if they are unchanged. The engine keeps
    `readiness` if it owns the run. `follow_ups` are ops that are decided after this op, in the same commit. `mail` are
    ops that the commit leaves as mail.
    """

    run: Run | None = None
    row: bool = False
    guard: bool = False
    unchanged: tuple[Run, ...] = ()
    awake: Run | None = None
    mailbox: Mailbox | None = None
    readiness: Readiness | None = None
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
    artifacts: ArtifactWrites | None = None
    tasks: TaskWrites | None = None
    shared: SharedWrites | None = None
    cooperation: Cooperation | None = None
    archive_from: int | None = None
    continued: bool = False  # the run's history is cleared; events that were sent to it are kept
    audit: tuple[Audit, ...] = ()
    effects: tuple[Effect, ...] = ()
    follow_ups: tuple[ops.Op, ...] = ()
    mail: tuple[ops.Op, ...] = ()
    spread: str | None = None
    dead_letter: str | None = None  # the id of a dead letter to remove
    is_forced: bool = False  # whether the batch is committed even if it is empty
    reply: Any = None


NOTHING = Decision(reply=False)


def move(
    run: Run, became: Status, op: ops.Op, cause: str, details: str = "", **changes: Any
) -> tuple[Run, tuple[Audit, ...]]:
    """Return the run with another status, and an audit row. Raises InvalidTransition."""
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
    """Return the run with a changed hold, changed tags or a changed deadline, and an audit row. The status stays the
    same.
    """
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
    """Return the run, if this engine or no engine owns it. Raises RunNotFound or RunOwnedElsewhere."""
    if run is None:
        raise RunNotFound(op.run_id)
    if run.owner is not None and run.owner != me:
        raise RunOwnedElsewhere(
            f"run {run.id!r} is owned by engine {run.owner!r}, which is alive; send this request to that engine",
            run_id=run.id,
            owner=run.owner,
        )
    return run


def check_version(run: Run, expected: int | None) -> None:
    """Raise ConcurrentModification unless the run is at the version that the caller expects. None accepts any
    version.
    """
    if expected is not None and run.version != expected:
        raise ConcurrentModification(
            f"run {run.id!r} is at version {run.version}, not {expected}: somebody changed it; read it again and retry",
            run_id=run.id,
            expected_version=expected,
            version=run.version,
        )


def cancellation(reason: str) -> str:
    """Return the failure of a cancelled run, as JSON."""
    return to_json(Failure(type="perdure.errors:RunCancelled", message=reason or "cancelled")).decode()


def deliveries(run_id: str, given: Iterable[Event]) -> tuple[Deliver, ...]:
    return tuple(Deliver(run_id, event.position or "", event.option, event) for event in given)
