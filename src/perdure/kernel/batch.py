"""What one commit writes. Run and wait rows stand in their final state; journal and audit rows are appended."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.cooperation import Cooperation
from perdure.kernel.records import Audit, DeadLetter, Entry, Event, Mail, Outcome, PublishedValue, Run, StreamItem, Wait
from perdure.kernel.stock import Stock


class RunWrite(Struct, kw_only=True):
    """A run's row in its final state.

    `expected_version` None inserts; otherwise the row must still have the expected owner, version and claim.
    `outcome` None leaves output and failure as they are. `awake` is the row to write instead, if something that this
    run is about to wait for turns out to be there (None: it is not about to wait); `dozing` is the number of the audit
    row that then falls away. `born` is the last of the batch's numbers that was given before a new run. `is_brief` is
    what `is_brief_change` says, of all changes from the row that is there to this one, and to `awake`.
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
    """Whether nothing differs but status, numbers, owner, claim and times: as for most changes, which a store may then
    write with less."""
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
    continued, journal, waits (cleared, dropped, put), events, audit, mail, what was published, streams, stock,
    cooperation.

    What is staged at a position goes with the waits that are dropped there; all that is staged for a run goes with the
    waits that are cleared, and when it continued.

    Waits on events and new events have numbers from 1 on, in the order of their ops; the store adds its own count.
    `at` is the time of the batch, for what expires.
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
    pending_max: dict[str, int] = field(default_factory=dict)  # new broadcast -> how many of its name may wait
    spread: list[str] = field(default_factory=list)  # retained events that are on their way
    keys: dict[str, str] = field(default_factory=dict)  # key -> id of the event sent with it
    dead: list[DeadLetter] = field(default_factory=list)  # events that their readers could not take
    letters_gone: list[str] = field(default_factory=list)  # dead letters
    consumed: list[str] = field(default_factory=list)  # runs whose failure was handed over
    published: dict[tuple[str, str], PublishedValue] = field(default_factory=dict)  # run id, key -> the newest
    stream_items: list[StreamItem] = field(default_factory=list)
    stock: Stock | None = None  # artifacts and tasks
    cooperation: Cooperation | None = None  # messages and what happens to them
    audit: list[Audit] = field(default_factory=list)
    mail: list[Mail] = field(default_factory=list)
    mail_done: dict[int, str] = field(default_factory=dict)  # id -> the answer, for the slot if it has one


class Won(Struct, frozen=True, kw_only=True):
    """Found in the transaction: this position of a run was won, by an event or by the end of the run `target`."""

    run_id: str
    position: str
    option: int
    event: Event | None = None
    target: str | None = None


class Committed(Struct, kw_only=True):
    """What a commit found out. `sent` says for each broadcast who got it, if anybody (None: it is queued); `awake` are
    runs that did not fall asleep; `spreading` are events that have not reached all who wait for them.

    `taken` are the runs that the batch took for its engine, as they are now: others may have given them something since
    they were read. `told` are winners that another living engine owns: it has mail.

    `landed`: the batch had been committed before, so nothing of this is known.
    """

    landed: bool = False
    won: list[Won] = field(default_factory=list)
    sent: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)  # event id -> how many are pending
    awake: set[str] = field(default_factory=set)
    spreading: list[str] = field(default_factory=list)
    taken: list[tuple[str, tuple[Wait, ...], tuple[Event, ...]]] = field(default_factory=list)
    told: set[str] = field(default_factory=set)


def taken_in(batch: Batch) -> list[str]:
    """Runs that this engine claims in this batch, and that are not new: also those that it gives up before, in it."""
    return [
        run_id
        for run_id, write in batch.runs.items()
        if write.run.owner == batch.engine_id
        and write.run.claim != write.expected_claim
        and write.expected_version is not None
    ]


def winners_elsewhere(batch: Batch, committed: Committed) -> list[str]:
    """Winners that may have an owner who does not know yet."""
    return sorted({won.run_id for won in committed.won} - batch.runs.keys()) if committed.won else []


def awakened(batch: Batch, awake: set[str]) -> tuple[dict[str, RunWrite], list[Audit]]:
    """The batch's rows of runs and its audit, where these runs do not fall asleep. The batch itself may be sent again,
    and is left as it is."""
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
    """Runs of the batch that were decided on an older state, though owner, version and claim are still the same: a
    hold or a tag was audited since. `revisions` are those that are stored: how many audit rows each run has."""
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
