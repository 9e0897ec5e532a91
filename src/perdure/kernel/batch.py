"""The writes of one commit. Rows of runs and waits have their final state; journal and audit rows are appended."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.artifacts import ArtifactWrites
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.rows import Entry, Mail, PublishedValue, StreamItem, Wait
from perdure.kernel.runless_rows import SharedWrites
from perdure.kernel.runs import Audit, Outcome, Run
from perdure.kernel.status import Status
from perdure.kernel.tasks import TaskWrites


class RunWrite(Struct, kw_only=True):
    """A run's row in its final state.

    `expected_version` None inserts the row; otherwise the row must still have the expected owner, version and claim.
    `outcome` None leaves output and failure unchanged.

    `awake` is the row to write instead if the transaction finds something that this run is about to wait for. It is
    None if the run is not about to wait. `dozing` is the number of the audit row that is left out in that case.

    For a new run, `born` is the last number that the batch had given to a wait or an event when the run was created.
    `is_brief` says whether all changes from the stored row to this one, and to `awake`, are brief (`is_brief_change`).
    """

    run: Run
    expected_version: int | None
    expected_owner: str | None = None
    expected_claim: int = 0
    input: str | None = None
    outcome: Outcome | None = None
    awake: Run | None = None
    dozing: int = 0
    born: int = 0
    is_brief: bool = False


def is_brief_change(before: Run, after: Run) -> bool:
    """Return whether only status, numbers, owner, claim and times differ. This holds for most changes. A store can
    write a brief change with a shorter statement."""
    return (
        before.tags is after.tags
        and before.hold is after.hold
        and before.started_at == after.started_at
        and before.recoveries == after.recoveries
        and before.tried == after.tried
        and before.attempt == after.attempt
        and before.undo == after.undo
        and before.deadline == after.deadline
        and before.workflow_version == after.workflow_version
        and before.origin == after.origin
    )


class Batch(Struct, kw_only=True):
    """One transaction of one engine. Its store applies, in this order: the fence and the batch number, runs, archive,
    continued, journal, waits (cleared, dropped, put), events, audit, mail, published values, streams, artifacts,
    tasks, cooperation, shared.

    A staged result is removed with the waits that are dropped at its position. All staged results of a run are removed
    when its waits are cleared, and when it continues.

    Waits on events and new events have numbers from 1 on, in the order of their ops; the store adds its own count.
    `at` is the time of the batch: it decides which events have expired.
    """

    engine_id: str
    epoch: int
    number: int
    at: int = 0
    runs: dict[str, RunWrite] = field(default_factory=dict)
    guards: dict[str, tuple[str | None, int, int]] = field(default_factory=dict)  # run id -> owner, version, claim
    archive: list[tuple[str, int, int]] = field(default_factory=list)  # run id, from entry, attempt
    continued: list[str] = field(default_factory=list)  # runs that continue without their history
    journal: list[Entry] = field(default_factory=list)
    waits_cleared: list[str] = field(default_factory=list)
    waits_dropped: list[tuple[str, str]] = field(default_factory=list)  # run id, position
    waits: dict[tuple[str, str, int], Wait] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    events_given: list[tuple[str, str, str, int]] = field(default_factory=list)  # run id, event id, position, option
    events_read: list[tuple[str, str]] = field(default_factory=list)  # run id, event id
    numbered: int = 0
    pending_max: dict[str, int] = field(default_factory=dict)  # new broadcast -> how many of its name may be queued
    spread: list[str] = field(default_factory=list)  # retained events that have not reached all waiting runs yet
    keys: dict[str, str] = field(default_factory=dict)  # key -> id of the event sent with it
    dead: list[DeadLetter] = field(default_factory=list)  # events that their readers could not read
    dead_letters_gone: list[str] = field(default_factory=list)  # ids of dead letters to remove
    consumed: list[str] = field(default_factory=list)  # runs whose failure was handed to a waiting run
    published: dict[tuple[str, str], PublishedValue] = field(default_factory=dict)  # run id, key -> the newest
    stream_items: list[StreamItem] = field(default_factory=list)
    artifacts: ArtifactWrites | None = None
    tasks: TaskWrites | None = None
    shared: SharedWrites | None = None  # rows that belong to no run
    cooperation: Cooperation | None = None  # messages and their message events
    audit: list[Audit] = field(default_factory=list)
    mail: list[Mail] = field(default_factory=list)
    mail_done: dict[int, str] = field(default_factory=dict)  # mail id -> the answer, which goes to the mail's slot


class Won(Struct, frozen=True, kw_only=True):
    """Found in the transaction: an event, or the end of the run `target`, has won this position of a run."""

    run_id: str
    position: str
    option: int
    event: Event | None = None
    target: str | None = None


class Committed(Struct, kw_only=True):
    """The results that only the transaction can know. `sent` has the runs that got each broadcast (empty: the broadcast
    is queued). `awake` are runs that were not suspended after all. `spreading` are events that have not reached all
    waiting runs yet.

    `taken` are the runs that the batch claimed for its engine, as they are after the commit. Other transactions may
    have matched events to them after the coordinator read them. `notified` are winners that another living engine owns:
    the commit left mail for that engine.

    `landed` says that the batch had been committed before. Then all other fields are empty, since this transaction did
    nothing.
    """

    landed: bool = False
    won: list[Won] = field(default_factory=list)
    sent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # event id -> how many are pending
    awake: set[str] = field(default_factory=set)
    spreading: list[str] = field(default_factory=list)
    taken: list[tuple[str, tuple[Wait, ...], tuple[Event, ...]]] = field(default_factory=list)
    notified: set[str] = field(default_factory=set)


def without_reads(batch: Batch) -> list[str]:
    """Return the runs for which the store may forget which retained events they have read: all runs whose waits the
    batch clears, except failed runs. A failed run may be retried, and must not read a retained event twice. For such a
    run, the store forgets the reading when it removes the event."""
    failed = {run_id for run_id, write in batch.runs.items() if write.run.status is Status.FAILED}
    return [run_id for run_id in batch.waits_cleared if run_id not in failed]


def taken_in(batch: Batch) -> list[str]:
    """Return the runs that this engine claims in this batch and that are not new, including those that it also releases
    in this batch."""
    return [
        run_id
        for run_id, write in batch.runs.items()
        if write.run.owner == batch.engine_id
        and write.run.claim != write.expected_claim
        and write.expected_version is not None
    ]


def winners_elsewhere(batch: Batch, committed: Committed) -> list[str]:
    """Return the runs that have won something here and are not part of the batch. Their owners may not know it yet."""
    return sorted({won.run_id for won in committed.won} - batch.runs.keys()) if committed.won else []


def awakened(batch: Batch, awake: set[str]) -> tuple[dict[str, RunWrite], list[Audit]]:
    """Return the batch's run rows and audit rows for the case that these runs are not suspended. The batch itself is
    unchanged, since the coordinator may resend it."""
    if not awake:
        return batch.runs, batch.audit
    runs = dict(batch.runs)
    fallen: set[tuple[str, int]] = set()
    for run_id in awake:
        write = runs[run_id]
        if write.awake is not None:
            runs[run_id] = replace(write, run=write.awake)
            fallen.add((run_id, write.dozing))
    return runs, [row for row in batch.audit if (row.run_id, row.seq) not in fallen]


def outdated(batch: Batch, revisions: Mapping[str, int]) -> set[str]:
    """Return the runs of the batch that were decided on an outdated state, although their owner, version and claim are
    unchanged. This happens if another commit has changed a hold or a tag. `revisions` has the stored number of audit
    rows of each run."""
    first: dict[str, int] = {}
    for row in batch.audit:
        first.setdefault(row.run_id, row.seq)
    return {
        run_id
        for run_id, write in batch.runs.items()
        if write.expected_version is not None
        and run_id not in batch.continued
        and run_id in first
        and revisions.get(run_id, 0) >= first[run_id]
    }
