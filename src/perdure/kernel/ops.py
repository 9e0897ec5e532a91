"""Ops: requested changes of state, as data. Each op contains its time and its ids. The rules are in decide.py."""

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
    """A request to change one run. `actor` is the person or program that made the request, for the audit trail."""

    run_id: str
    at: int
    actor: str = "engine"

    @property
    def payload_bytes(self) -> int:
        """The number of bytes that this op adds to a batch beyond the fixed parts of its rows."""
        return 0


class Start(Op, frozen=True, kw_only=True, gc=False):
    """Create a run. With `admit`, this engine starts the run at once. Otherwise the run is `created` until an engine
    claims it.

    `fresh` says that the id is new, so the store is not asked whether the id is in use. The coordinator sets
    `admitted_at`, at which the workflow's own time begins. It may be later than `at`, because the op may have waited in
    the inbox.
    """

    workflow: str
    workflow_version: str = ""
    model: str = "function"  # "" if it is not known
    input: str
    tags: Mapping[str, str] = field(default_factory=dict)
    deadline: int | None = None
    parent_id: str | None = None
    bond: str = ""
    origin: str = ""  # the message and the lineage of an operation's run
    fresh: bool = False
    admit: bool = True
    admitted_at: int | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.input)


class End(Struct, frozen=True, kw_only=True, gc=False):
    """The end of a run's code: `succeeded` with an output, or `failed` with a failure.

    If `has_waited` is False, the run has never waited durably, so it has no waits to clear. If `has_staged` is False,
    the run has staged no artifacts, so there is nothing to publish.
    """

    status: Status
    outcome: Outcome
    has_waited: bool = True
    has_staged: bool = True


class Continuation(Struct, frozen=True, kw_only=True, gc=False):
    """The call as which a run continues. The run keeps its id, and gets another input and perhaps another workflow. Its
    history is dropped. `origin` names the call with which the run was started (see continuation_counts.py).
    """

    workflow: str
    workflow_version: str
    input: str
    origin: str


class Advance(Op, frozen=True, kw_only=True, gc=False):
    """Store the progress of a live run: its new entries, the waits that it opened and closed, and perhaps its end. The
    op is dropped if the run no longer has this `claim`.

    - `idle`: nothing of the run is executing now. The run has only durable waits.
    - `events_read`: the ids of the events that were handed to the run; `rejected` are events that the run could not
      read
    - `read_ahead`: the ids of events that the run has read without waiting, because they were sent to it before
    - `consumed`: the runs whose failures were handed to this run
    - `starts`: the run's new children; `cancels` are the children that it no longer waits for
    - `undo`: the number of compensations that the run has registered
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
    plain: bool = False  # the op has only entries
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
    """Append items to the streams of a run, from a running step. The op is dropped if the run no longer has this
    `claim`.
    """

    claim: int
    stream_items: tuple[StreamItem, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(len(item.value) for item in self.stream_items)


class Deposit(Op, frozen=True, kw_only=True, gc=False):
    """Store parts of an artifact from a running step, or remove the parts of the artifacts in `gone`. The op is dropped
    if the run no longer has this `claim`.
    """

    claim: int
    chunks: tuple[Chunk, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


class Answer(Op, frozen=True, kw_only=True, gc=False):
    """Answer a task of the run. The answer is an event that only the task's wait accepts. If `worker` is set, this
    worker must have the task.
    """

    task_id: str
    event: Event
    worker: str | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.event.value)


class Send(Op, frozen=True, kw_only=True, gc=False):
    """Send an event to the run `run_id`. If `run_id` is empty, send it to the runs that wait for the event's name.

    With `strict`, the event is never queued. The op is refused instead. At most `pending_max` events of one name may be
    in one queue. If an event was sent with the same key before, the coordinator sets `known` to the id of that event.
    `dead_letter` is the dead letter that this event replays. It is stored as `letter`.
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
    """Give a retained event to more of the runs that wait for it. This op is about no single run."""

    event_id: str


class Forget(Op, frozen=True, kw_only=True, gc=False):
    """Remove a dead letter. This op is about no run."""

    dead_letter: str = field(name="letter")  # stored as `letter`


class PutRecord(Op, frozen=True, kw_only=True, gc=False):
    """Add a version of a record, unless its newest version has the same content. This op is about no run."""

    record: Record

    @property
    def payload_bytes(self) -> int:
        return len(self.record.body)


class PutToken(Op, frozen=True, kw_only=True, gc=False):
    """Add a version of a token, if it is the next version. This op is about no run."""

    token: StoredToken


class PutSession(Op, frozen=True, kw_only=True, gc=False):
    """Add a session, unless a session with its id exists. This op is about no run."""

    session: StoredSession


class EndSession(Op, frozen=True, kw_only=True, gc=False):
    """Remove a session. This op is about no run."""

    id: str


class RegisterHandlers(Op, frozen=True, kw_only=True, gc=False):
    """Register these operations (topic, name) as handlers. From now on they are expected to handle messages. This op is
    about no run.
    """

    handlers: tuple[tuple[str, str], ...]


class RetireHandlers(Op, frozen=True, kw_only=True, gc=False):
    """Remove handlers (topic, name) from the registry. This op is about no run."""

    handlers: tuple[tuple[str, str], ...]


class ReleaseTask(Op, frozen=True, kw_only=True, gc=False):
    """Give back a task that a worker has. The task is open again at once. An `error` says that the worker failed. This
    op is about no run: the run that waits for the task keeps waiting.
    """

    task_id: str
    worker: str
    error: str | None = None


class Due(Op, frozen=True, kw_only=True, gc=False):
    """Let a due timer win its wait, unless another option has already won the wait."""

    claim: int
    position: str
    option: int


class Wake(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a waiting run without an owner, if this engine has its workflow. If this engine owns the run, read the
    events and the ends of runs that other transactions have matched to it.

    If the run's code has already run, `then` is the run's next advance. The advance has the claim that this op gives
    the run. The advance is decided together with the wake-up. Both are committed together, or neither is.
    """

    then: Advance | None = None

    @property
    def payload_bytes(self) -> int:
        return 0 if self.then is None else self.then.payload_bytes


class CheckFence(Op, frozen=True, kw_only=True, gc=False):
    """Commit even if there is nothing to write. The commit shows whether this engine may still write. If `error` is
    set, the reply is an EngineBug with this text.
    """

    error: str = ""


class Take(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a run that this engine has just claimed. `orphaned` says that its last owner died while it owned the
    run.

    If the run was orphaned more than `recoveries_max` times in a row without progress, it is held as poison.
    """

    claim: int
    orphaned: bool
    recoveries_max: int


class Count(Op, frozen=True, kw_only=True, gc=False):
    """Correct the number of recoveries in a row, for a run of this engine. The number is lowered by 1 while the run
    only waits. So if the process dies, this does not count for the run. The number is raised by 1 before the run
    executes again. See models/common/crash_blame.py.
    """

    claim: int
    change: int


class Release(Op, frozen=True, kw_only=True, gc=False):
    """Give up ownership of a waiting run, so that any engine may claim the run when it can go on. If the run can go on
    now, nothing happens.
    """

    claim: int


class Cancel(Op, frozen=True, kw_only=True, gc=False):
    """End an active run as cancelled. Replies False and changes nothing if the run has ended or does not exist."""

    reason: str = ""
    failure: str
    expected_version: int | None = None
    # whether its parent's deadline has passed; then the run fails like its parent, and is retried with it
    is_late: bool = False


class Expire(Op, frozen=True, kw_only=True, gc=False):
    """Fail an active run, because its deadline has passed."""

    failure: str


class Retry(Op, frozen=True, kw_only=True, gc=False):
    """Run a failed run again. The entries from `from_entry` on are archived, and their work is done again. None means
    that no entry is archived. `events` are the events that the archived entries have read, in order. The run can read
    them again. `with_parent` says that the parent is retried too. The parent had received the run's failure.
    `deadline_since` is the time at which the run got its deadline. None means the time of its creation.
    """

    expected_version: int
    deadline_since: int | None = None
    from_entry: int | None = None
    events: tuple[Event, ...] = ()
    with_parent: bool = False

    @property
    def payload_bytes(self) -> int:
        return sum(len(event.value) for event in self.events)


class Update(Op, frozen=True, kw_only=True, gc=False):
    """Change the tags or the deadline. If `expected_version` is None, any version is accepted."""

    expected_version: int | None = None
    tags: Mapping[str, str] | UnsetType = UNSET
    deadline: int | UnsetType | None = UNSET


class SetHold(Op, frozen=True, kw_only=True, gc=False):
    """Hold an active run. With a `claim`, the run is held only if it still has this claim. With `examined`, the
    existing hold of an operation's run is completed with information from the run's rows.
    """

    hold: Hold
    claim: int | None = None
    expected_version: int | None = None
    examined: bool = False


class Resume(Op, frozen=True, kw_only=True, gc=False):
    """Lift a run's hold. With `take`, this engine continues the run at once."""

    take: bool = True
    expected_version: int | None = None


class Notify(Op, frozen=True, kw_only=True, tag="Tell", gc=False):
    """Notify an operation's run. The rows that the notice is about are already stored, or are written in the same
    commit.

    - "news": a child has something to report. `about` is the report, for the model. If the child has ended, `child` is
      the child's id.
    - "ask": the run and the runs below it must give up
    - "undo": if the run has succeeded, its work must be undone; otherwise the run must give up
    - "join": a handler was registered after the run emitted, and may handle a message that the run waits for
    - "stop": the run is a function or a graph that an operation called, and that operation gives up
    - "fence": nothing to report. The reply shows that the run's owner has decided all earlier ops.

    A called run (a function or a graph) gets no "news". It ends after a "stop" from its caller, or after an "ask" with
    a `call_failure`. `call_failure` is the failure with which the called runs below a cancelled run end. An "ask" with
    a `call_failure` ends a called run in the commit that decides the "ask". The caller of the run has not read anything
    by then. A run that is rolling back does not pass the `call_failure` on, because the runs that it has called are
    compensations. Some callers decide by themselves which reasons to give up count. A run that they call (APART_TAG)
    ends only after a "stop".

    For a run that no engine has ever taken, an "ask" or an "undo" may contain `refusal`. These are the rows of a run
    that never begins. It also contains the `failure` with which the run ends, and the `answer` for its parent
    (`parent_id`). `undone_by` is the deadline for the rollback of the run, or 0. It is in the op, because a held run
    does not know its parent's deadline.
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
    """If a token is cancelled, ask the runs that have this token to give up. `run_id` is the id under which the token's
    cancellation is stored.

    A commit leaves this op as mail in two cases: it stores the cancellation, or it creates runs with a token that no
    engine takes at once. The engine that reads the mail looks for a page of runs, beginning at `after`. It puts
    `notices` for these runs into the op. The commit that decides the notices consumes the mail. If there is another
    page, beginning at `rest`, the commit leaves mail for it. So every run is notified, even if engines die.
    """

    token: str
    after: tuple[int, str] | None = None
    notices: tuple[Notify, ...] = ()
    rest: tuple[int, str] | None = None


class Emit(Op, frozen=True, kw_only=True, gc=False):
    """Emit a message from outside, with a run for every expected handler. This op is about no existing run. `members`
    are left as mail.
    """

    added: Cooperation
    starts: tuple[Start, ...] = ()
    members: tuple[NotifyMembers, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes


class Settle(Op, frozen=True, kw_only=True, gc=False):
    """End an operation's run that no engine has taken. It ends with this `status` and these rows, without its code. The
    `answer` is sent to its parent (`parent_id`). If an engine has taken the run, or if the run's status is not `was`,
    the run stays unchanged. In that case `otherwise` is sent to its parent, unless it is empty.
    """

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

    If this is about a token, `run_id` is the id under which the token's cancellation is stored, and `members` are left
    as mail.
    """

    added: Cooperation
    notices: tuple[Notify, ...] = ()
    members: tuple[NotifyMembers, ...] = ()


class UndoScope(Op, frozen=True, kw_only=True, gc=False):
    """Undo an operation's run that has succeeded, with all runs below it. If `run_id` is the id of a root emission,
    undo all runs that handle its message. `notices` are for these runs. Replies False and changes nothing if the run
    has not succeeded.
    """

    added: Cooperation
    notices: tuple[Notify, ...] = ()


class Cooperate(Op, frozen=True, kw_only=True, gc=False):
    """Store the progress of a live run of an operation. The op adds its rows, begins `starts`, sends `notices` to other
    runs, leaves `members` as mail, and sets the status. The op is dropped if the run no longer has this `claim`.

    `notified` is the number of notices that the run had read when it made this decision. If the run has got more
    notices after that, it stays `running` instead of suspending. Otherwise nobody would wake it after a crash. `awaits`
    are the children that must end before a suspended run can go on. The end of the last of them wakes the run. If
    `awaits` is empty, every notice wakes the run. `is_undone` says that the run's rows ask for its rollback.
    """

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
    has_waited: bool = False  # whether the run has waited since it began; if so, there may be waits to clear at its end
    workflow_version: str = ""  # the run's version from now on; "" leaves it unchanged

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes
