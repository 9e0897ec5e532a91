"""Ops: requested state changes, as data. Each op brings its time and its ids. The rules are in decide.py."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType, field

from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.artifacts import ArtifactWrites, Chunk
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.events import DeadLetter, Event
from perdure.kernel.records import Record
from perdure.kernel.rows import Entry, PublishedValue, StreamItem, Wait
from perdure.kernel.runs import Hold, Outcome
from perdure.kernel.status import Status
from perdure.kernel.tasks import Task


class Op(Struct, frozen=True, kw_only=True, tag=True, gc=False):
    """A request to change one run. `actor` is who asked, for the audit trail."""

    run_id: str
    at: int
    actor: str = "engine"

    @property
    def payload_bytes(self) -> int:
        """How much this op adds to a batch beyond its rows' fixed parts."""
        return 0


class Start(Op, frozen=True, kw_only=True, gc=False):
    """Create a run. With `admit`, this engine starts it at once; otherwise the run is `created` until an engine claims
    it.

    `fresh` says that the id was just made, so the store is not asked whether it is in use. The coordinator sets
    `admitted_at`, the time at which the workflow's own time begins: the op may have waited in the inbox since `at`.
    """

    workflow: str
    workflow_version: str = ""
    model: str = "function"  # "": not known
    input: str
    tags: Mapping[str, str] = field(default_factory=dict)
    deadline: int | None = None
    parent_id: str | None = None
    bond: str = ""
    origin: str = ""  # for an operation's run: its message and its lineage
    fresh: bool = False
    admit: bool = True
    admitted_at: int | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.input)


class End(Struct, frozen=True, kw_only=True, gc=False):
    """How a run's code ended: `succeeded` with an output or `failed` with a failure.

    If the run has never waited for something durable (`has_waited` is False), it has no waits to clear. If it has
    staged no artifacts (`has_staged` is False), it has no artifacts to publish.
    """

    status: Status
    outcome: Outcome
    has_waited: bool = True
    has_staged: bool = True


class Continuation(Struct, frozen=True, kw_only=True, gc=False):
    """The call that a run continues as: the same run, with another input and perhaps another workflow, and no history.
    `origin` names the call that the run was started as (see continuation_counts.py)."""

    workflow: str
    workflow_version: str
    input: str
    origin: str


class Advance(Op, frozen=True, kw_only=True, gc=False):
    """Store the progress of a live run: its new entries, its opened and closed waits, and perhaps its end. The op is
    dropped if the run's claim is no longer `claim`.

    - `idle`: nothing of the run is executing now. The run has only durable waits
    - `events_read`: the ids of events that the run was handed; `rejected` are the events that it could not read
    - `read_ahead`: the ids of events that the run has read without waiting, since they had been sent to it before
    - `consumed`: the runs whose failures were handed to this run
    - `starts`: the run's new children; `cancels` are the children that it no longer waits for
    - `undo`: how many compensations the run has registered
    - `published` and `stream_items`: the values that the run's code has published, and the items that it has appended
      to streams
    - `artifacts` and `tasks`: the artifacts that the run stages, and the tasks that it opens
    """

    claim: int
    cause: str
    entries: tuple[Entry, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_dropped: tuple[str, ...] = ()
    events_read: tuple[str, ...] = ()
    read_ahead: tuple[str, ...] = ()
    rejected: tuple[DeadLetter, ...] = ()
    consumed: tuple[str, ...] = ()
    starts: tuple[Start, ...] = ()
    cancels: tuple[str, ...] = ()
    undo: int = 0
    plain: bool = False  # the op has entries and nothing else
    published: tuple[PublishedValue, ...] = ()
    stream_items: tuple[StreamItem, ...] = ()
    artifacts: ArtifactWrites | None = None
    tasks: tuple[Task, ...] = ()
    idle: bool = False
    end: End | None = None
    continuation: Continuation | None = None

    @property
    def payload_bytes(self) -> int:
        size = 0
        for entry in self.entries:
            size += len(entry.value or entry.failure or "")
        if self.plain:
            return size
        for wait in self.waits:
            size += len(wait.details or "") + len(wait.failure or "")
        if self.end is not None:
            size += len(self.end.outcome.output or self.end.outcome.failure or "")
        for start in self.starts:
            size += len(start.input)
        for value in self.published:
            size += len(value.value)
        for item in self.stream_items:
            size += len(item.value)
        if self.artifacts is not None:
            size += self.artifacts.payload_bytes
        for task in self.tasks:
            size += len(task.payload) + len(task.schema)
        return size if self.continuation is None else size + len(self.continuation.input)


class Append(Op, frozen=True, kw_only=True, gc=False):
    """Append items to the streams of a run, from a running step. The op is dropped if the run's claim is no longer
    `claim`."""

    claim: int
    stream_items: tuple[StreamItem, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(len(item.value) for item in self.stream_items)


class Deposit(Op, frozen=True, kw_only=True, gc=False):
    """Store parts of an artifact from a running step, or remove the parts of the artifacts in `gone`. The op is dropped
    if the run's claim is no longer `claim`."""

    claim: int
    chunks: tuple[Chunk, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


class Answer(Op, frozen=True, kw_only=True, gc=False):
    """Answer a task of the run, with an event that only the task's wait accepts. If `worker` is set, this worker must
    have the task."""

    task_id: str
    event: Event
    worker: str | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.event.value)


class Send(Op, frozen=True, kw_only=True, gc=False):
    """Send an event: to the run `run_id`, or, if that is empty, to the runs that wait for the event's name.

    With `strict`, the event is never queued: the op is refused instead. At most `pending_max` events of one name are in
    one queue. The coordinator sets `known` to the id of the event that was sent with the same key before.
    `dead_letter`, stored as `letter`, is the dead letter that this event replays.
    """

    event: Event
    strict: bool = False
    pending_max: int = 10_000
    known: str = ""
    dead_letter: str = field(default="", name="letter")

    @property
    def payload_bytes(self) -> int:
        return len(self.event.value)


class Spread(Op, frozen=True, kw_only=True, gc=False):
    """Give a retained event to more of the runs that wait for it. It concerns no single run."""

    event_id: str


class Forget(Op, frozen=True, kw_only=True, gc=False):
    """Remove a dead letter. It concerns no run."""

    dead_letter: str = field(name="letter")  # stored as `letter`


class PutRecord(Op, frozen=True, kw_only=True, gc=False):
    """Add a version of a record, unless its newest version has the same content. It concerns no run."""

    record: Record

    @property
    def payload_bytes(self) -> int:
        return len(self.record.body)


class PutToken(Op, frozen=True, kw_only=True, gc=False):
    """Add a version of a token, if it is the next version. It concerns no run."""

    token: StoredToken


class PutSession(Op, frozen=True, kw_only=True, gc=False):
    """Add a session, unless there is one with its id. It concerns no run."""

    session: StoredSession


class EndSession(Op, frozen=True, kw_only=True, gc=False):
    """Remove a session. It concerns no run."""

    id: str


class RegisterHandlers(Op, frozen=True, kw_only=True, gc=False):
    """Expect these operations (topic, name) to handle messages from now on. It concerns no run."""

    handlers: tuple[tuple[str, str], ...]


class RetireHandlers(Op, frozen=True, kw_only=True, gc=False):
    """Take handlers (topic, name) out of the registry. It concerns no run."""

    handlers: tuple[tuple[str, str], ...]


class ReleaseTask(Op, frozen=True, kw_only=True, gc=False):
    """Give back a task that a worker has: the task is open at once. With an `error`, the worker failed. It concerns no
    run: the run that waits for the task goes on waiting."""

    task_id: str
    worker: str
    error: str | None = None


class Due(Op, frozen=True, kw_only=True, gc=False):
    """Let a due timer win the wait that it is an option of, unless another option has won already."""

    claim: int
    position: str
    option: int


class Wake(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a waiting run that no engine owns, if this engine has its workflow. For a run that this engine owns,
    read the events and ends that other transactions have matched to it from the store.

    `then` is the run's next advance, if its code has run already. The advance has the claim that the run gets with this
    op. It is decided together with the wake-up, and committed with it or not at all."""

    then: Advance | None = None

    @property
    def payload_bytes(self) -> int:
        return 0 if self.then is None else self.then.payload_bytes


class CheckFence(Op, frozen=True, kw_only=True, gc=False):
    """Commit even if there is nothing to write, to find out whether this engine may still write. If `error` is set, the
    reply is an EngineBug with this text."""

    error: str = ""


class Take(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a run that this engine has just claimed. `orphaned` says that its last owner died while it owned the
    run.

    The run is held as poison if it was orphaned more than `recoveries_max` times in a row without progress.
    """

    claim: int
    orphaned: bool
    recoveries_max: int


class Count(Op, frozen=True, kw_only=True, gc=False):
    """Correct the number of recoveries in a row of a run of this engine. The number is lowered by 1 while the run only
    waits, so that the death of its process is not counted against it. It is raised by 1 before the run executes
    something again. See models/common/crash_blame.py.
    """

    claim: int
    change: int


class Release(Op, frozen=True, kw_only=True, gc=False):
    """Give up ownership of a waiting run, so that any engine may claim it when it can go on. Nothing happens if the run
    can go on now."""

    claim: int


class Cancel(Op, frozen=True, kw_only=True, gc=False):
    """End an active run as cancelled. Replies False and changes nothing if the run has ended or does not exist."""

    reason: str = ""
    failure: str
    expected_version: int | None = None
    is_late: bool = False  # Its parent's deadline has passed: the run fails like its parent, and is retried with it.


class Expire(Op, frozen=True, kw_only=True, gc=False):
    """End an active run whose deadline has passed as failed."""

    failure: str


class Retry(Op, frozen=True, kw_only=True, gc=False):
    """Run a failed run again. The entries from `from_entry` on are archived, and their work is done again (None: no
    entry). `events` are the events that these entries have read, in order: the run can read them again. `with_parent`
    says that the parent, which was handed the run's failure, is retried too. `deadline_since` is the time at which the
    run was given its deadline (None: when it was created)."""

    expected_version: int
    deadline_since: int | None = None
    from_entry: int | None = None
    events: tuple[Event, ...] = ()
    with_parent: bool = False

    @property
    def payload_bytes(self) -> int:
        return sum(len(event.value) for event in self.events)


class Update(Op, frozen=True, kw_only=True, gc=False):
    """Edit tags or deadline. `expected_version` None accepts any version."""

    expected_version: int | None = None
    tags: Mapping[str, str] | UnsetType = UNSET
    deadline: int | UnsetType | None = UNSET


class SetHold(Op, frozen=True, kw_only=True, gc=False):
    """Hold an active run. With a `claim`, hold it only if the run still has this claim. With `examined`, complete the
    existing hold of an operation's run with the information from its rows."""

    hold: Hold
    claim: int | None = None
    expected_version: int | None = None
    examined: bool = False


class Resume(Op, frozen=True, kw_only=True, gc=False):
    """Lift a run's hold. With `take`, this engine goes on with the run at once."""

    take: bool = True
    expected_version: int | None = None


class Notify(Op, frozen=True, kw_only=True, tag="Tell", gc=False):
    """Notify an operation's run. The rows that the notice is about are stored already, or are written by the same
    commit.

    - "news": a child has something to report. `about` is the report, for the model. If the child has ended, `child` is
      the child's id
    - "ask": the run is to give up, and so are the runs below it
    - "undo": if the run has succeeded, its work is to be undone; otherwise the run is to give up
    - "join": a handler that was registered after the run emitted may handle a message that the run waits for
    - "stop": the run is a function or a graph that an operation called, and that operation gives up
    - "fence": nothing to report. The answer shows that the run's owner has decided all earlier ops

    A called run gets no "news". It ends with a "stop" from its caller, or with an "ask" that has a `call_failure`. The
    `call_failure` is the failure with which called runs below a cancelled run end. An "ask" with a `call_failure` ends
    a called run in the commit that decides the "ask", before the caller has read anything. The `call_failure` is not
    passed on below a run that is rolling back, since the calls of that run are compensations. Some callers decide by
    themselves which reasons to obey: a run that they call (APART_TAG) ends only with a "stop".

    If no engine has ever taken the run, an "ask" or an "undo" may bring `refusal`: the rows of a run that never begins.
    It also brings the `failure` that the run ends with, and the `answer` for its parent (`parent_id`). `undone_by` is
    the deadline for the rollback of the run, or 0. The op brings this deadline, because a held run does not know its
    parent's deadline.
    """

    kind: str  # news | ask | undo | join | stop | fence
    about: str = ""
    child: str = ""
    call_failure: str = ""
    refusal: Cooperation | None = None
    failure: str = ""
    answer: str = ""
    parent_id: str = ""
    undone_by: int = 0

    @property
    def payload_bytes(self) -> int:
        size = len(self.about) + len(self.answer) + len(self.call_failure)
        return size if self.refusal is None else size + self.refusal.payload_bytes


class NotifyMembers(Op, frozen=True, kw_only=True, tag="TellMembers", rename={"notices": "tells"}, gc=False):
    """Ask the runs that have a token to give up, if the token is cancelled. `run_id` is the id under which the token's
    cancellation is stored.

    This op is left as mail: in the commit that stores the cancellation, and in a commit that creates runs with a token
    if no engine takes these runs at once. The engine that reads the mail looks for a page of runs, from `after` on, and
    puts `notices` for them into the op. The commit that decides the notices consumes the mail. If there is another
    page, from `rest` on, the commit leaves mail for it. So every run is notified, whichever engine dies.
    """

    token: str
    after: tuple[int, str] | None = None
    notices: tuple[Notify, ...] = ()
    rest: tuple[int, str] | None = None


class Emit(Op, frozen=True, kw_only=True, gc=False):
    """Emit a message from outside, with a run for every handler that is expected. It concerns no existing run.
    `members` are left as mail."""

    added: Cooperation
    starts: tuple[Start, ...] = ()
    members: tuple[NotifyMembers, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes


class Settle(Op, frozen=True, kw_only=True, gc=False):
    """End an operation's run that no engine has taken, without its code: with this `status` and these rows. Its parent
    (`parent_id`) is sent the `answer`. If an engine has taken the run, or its status is not `was`, nothing happens to
    the run. Its parent is then sent `otherwise`, unless `otherwise` is empty."""

    status: Status
    was: Status = Status.CREATED
    added: Cooperation
    outcome: Outcome
    answer: str
    otherwise: str = ""
    parent_id: str = ""

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes


class CancelScope(Op, frozen=True, kw_only=True, gc=False):
    """Ask all runs of a lineage to give up. `run_id` is the last id of the lineage: the id of a run or of a root
    emission. `notices` are for that run or the root runs. Replies False and changes nothing if all of them have ended.

    For a token, `run_id` is the id under which its cancellation is stored, and `members` is left as mail."""

    added: Cooperation
    notices: tuple[Notify, ...] = ()
    members: tuple[NotifyMembers, ...] = ()


class UndoScope(Op, frozen=True, kw_only=True, gc=False):
    """Undo an operation's run that has succeeded, with all runs below it. If `run_id` is the id of a root emission,
    undo all its root runs, with `notices` for them. Replies False and changes nothing if the run has not succeeded."""

    added: Cooperation
    notices: tuple[Notify, ...] = ()


class Cooperate(Op, frozen=True, kw_only=True, gc=False):
    """Store the progress of a live run of an operation. Its rows are added, `starts` begin, `notices` go to other runs,
    `members` are left as mail, and the run gets this status. The op is dropped if the run's claim is no longer `claim`.

    `notified` is the number of notices that the run had read when it decided this. If the run got more notices after
    that, it stays `running` instead of suspending: otherwise nobody would wake it after a crash. `awaits` are the
    children that a suspending run needs before it can go on: the end of the last of them wakes the run. If there are
    none, every notice wakes it. `is_undone` says that the run's rows ask for its rollback."""

    claim: int
    cause: str
    status: Status
    added: Cooperation
    notified: int = 0
    awaits: tuple[str, ...] = ()
    is_undone: bool = False
    starts: tuple[Start, ...] = ()
    notices: tuple[Notify | Settle, ...] = ()
    members: tuple[NotifyMembers, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_dropped: tuple[str, ...] = ()
    outcome: Outcome | None = None
    has_waited: bool = False  # since the run began: then there may be waits to clear at its end
    workflow_version: str = ""  # the run's version from now on; "": it stays as it is

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes
