"""The writes of one commit. Rows of runs and waits have their final state. Journal and audit rows are new rows."""

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

    If `expected_version` is None, the row is inserted. Otherwise the stored row must still have the expected owner,
    version and claim. If `outcome` is None, the output and the failure stay unchanged.

    `awake` is for a run that is about to wait. If the transaction finds something that the run would wait for, this row
    is written instead. `awake` is None if the run is not about to wait. `dozing` is the number of the audit row that is
    left out if `awake` is written.

    For a new run, `born` is the last number that the batch had given to a wait or an event before the run was created.
    `is_brief` says whether the changes from the stored row to this row, and to `awake`, are brief (`is_brief_change`).
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
    """Return whether only the status, numbers, the owner, the claim and times differ. This is so for most changes. A
    store can write a brief change with a shorter statement.
    """
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
    """One transaction of one engine. The store applies the parts in this order: the fence and the batch number, runs,
    archive, continued, journal, waits (cleared, dropped, put), events, audit, mail, published values, streams,
    artifacts, tasks, cooperation, shared.

    When the waits at a position are dropped, the staged result at this position is removed. When a run's waits are
    cleared, or when the run continues, all its staged results are removed.

    Waits for events and new events are numbered from 1 on, in the order of their ops. The store adds its own count to
    these numbers. `at` is the time of the batch. It decides which events have expired.
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
    # new broadcast -> how many events of its name may be queued
    pending_max: dict[str, int] = field(default_factory=dict)
    spread: list[str] = field(default_factory=list)  # retained events that have not reached all waiting runs yet
    keys: dict[str, str] = field(default_factory=dict)  # key -> id of the event sent with it
    dead: list[DeadLetter] = field(default_factory=list)  # events that a run could not read
    dead_letters_gone: list[str] = field(default_factory=list)  # ids of dead letters to remove
    consumed: list[str] = field(default_factory=list)  # runs whose failure was handed to a waiting run
    published: dict[tuple[str, str], PublishedValue] = field(default_factory=dict)  # run id, key -> the newest value
    stream_items: list[StreamItem] = field(default_factory=list)
    artifacts: ArtifactWrites | None = None
    tasks: TaskWrites | None = None
    shared: SharedWrites | None = None  # rows that belong to no run
    cooperation: Cooperation | None = None  # messages and their message events
    audit: list[Audit] = field(default_factory=list)
    mail: list[Mail] = field(default_factory=list)
    mail_done: dict[int, str] = field(default_factory=dict)  # mail id -> the reply for the mail's slot


class Won(Struct, frozen=True, kw_only=True):
    """A winner that the transaction found: an event, or the end of the run `target`, has won this position of a run."""

    run_id: str
    position: str
    option: int
    event: Event | None = None
    target: str | None = None


class Committed(Struct, kw_only=True):
    """The results of a commit that only the transaction can know. `sent` has the runs that got each broadcast. If it is
    empty for a broadcast, the broadcast is queued. `awake` are the runs that were not suspended after all. `spreading`
    are events that have not reached all waiting runs yet.

    `taken` are the runs that the batch has claimed for its engine, in their state after the commit. After the
    coordinator read these runs, other transactions may have matched events to them. `notified` are winners that another
    living engine owns. The commit has left mail for that engine.

    `landed` says that the batch was already committed before. In that case all other fields are empty, because this
    transaction did nothing.
    """

    landed: bool = False
    won: list[Won] = field(default_factory=list)
    sent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # event id -> how many events are pending
    awake: set[str] = field(default_factory=set)
    spreading: list[str] = field(default_factory=list)
    taken: list[tuple[str, tuple[Wait, ...], tuple[Event, ...]]] = field(default_factory=list)
    notified: set[str] = field(default_factory=set)


def without_reads(batch: Batch) -> list[str]:
    """Return the runs whose reads of retained events the store may forget. These are all runs whose waits the batch
    clears, except failed runs. A failed run may be retried. It must not read a retained event twice. For a failed run,
    the store forgets a read when it removes the event.
    """
    failed = {run_id for run_id, write in batch.runs.items() if write.run.status is Status.FAILED}
    return [run_id for run_id in batch.waits_cleared if run_id not in failed]


def taken_in(batch: Batch) -> list[str]:
    """Return the existing runs that this engine claims in this batch, including runs that it releases in the same
    batch.
    """
    return [
        run_id
        for run_id, write in batch.runs.items()
        if write.run.owner == batch.engine_id
        and write.run.claim != write.expected_claim
        and write.expected_version is not None
    ]


def winners_elsewhere(batch: Batch, committed: Committed) -> list[str]:
    """Return the runs that have won a wait in this transaction and are not part of the batch. Their owners may not know
    that yet.
    """
    return sorted({won.run_id for won in committed.won} - batch.runs.keys()) if committed.won else []


def awakened(batch: Batch, awake: set[str]) -> tuple[dict[str, RunWrite], list[Audit]]:
    """Return the batch's run rows and audit rows for the case that these runs do not suspend. The batch itself stays
    unchanged, because the coordinator may resend it.
    """
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
    rows for each run.
    """
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
