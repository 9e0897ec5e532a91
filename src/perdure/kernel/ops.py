"""Ops: requested state changes, as data. Time and ids come in with them; the rules are in decide.py."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType, field

from perdure.kernel.cooperation import Cooperation
from perdure.kernel.records import DeadLetter, Entry, Event, Hold, Outcome, PublishedValue, StreamItem, Wait
from perdure.kernel.status import Status
from perdure.kernel.stock import Chunk, Stock


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
    """Create a run. `admit` starts it on this engine at once; otherwise it waits as `created` to be claimed.

    `fresh` says that the id was just made, so nobody needs to look whether it is taken. `admitted_at`, which the
    coordinator sets, is when the workflow's own time begins: the op may have waited in the inbox since `at`.
    """

    workflow: str
    workflow_version: str = ""
    model: str = "function"  # "": not known
    input: str
    tags: Mapping[str, str] = field(default_factory=dict)
    deadline: int | None = None
    parent_id: str | None = None
    bond: str = ""
    origin: str = ""  # of an operation's run: its message and its lineage
    fresh: bool = False
    admit: bool = True
    admitted_at: int | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.input)


class End(Struct, frozen=True, kw_only=True, gc=False):
    """How a run's code ended: `succeeded` with an output or `failed` with a failure.

    Unless it `has_waited` for something durable in its life, there is nothing of that kind to clear; unless it
    `has_staged` artifacts, there are none to publish.
    """

    status: Status
    outcome: Outcome
    has_waited: bool = True
    has_staged: bool = True


class Continuation(Struct, frozen=True, kw_only=True, gc=False):
    """What a run continues as: the same run, with another input and perhaps another workflow, and no history. `origin`
    tells what it was before (see identity.py)."""

    workflow: str
    workflow_version: str
    input: str
    origin: str


class Advance(Op, frozen=True, kw_only=True, gc=False):
    """A live run went on: these entries happened, these waits came and went, and perhaps it ended.

    `idle` means that nothing of it is running now: it waits only for what is durable. `events_read` are the ids of
    events that it was handed, `rejected` those of them that it could not take; `read_ahead` are those that it has read
    without waiting for them, since they had been sent to it before; `consumed` are the runs whose failure it was
    handed. `starts` are its new children, `cancels` those it no longer waits for; `undo` is how many compensations it
    has registered; `published` and `stream_items` what its code says meanwhile; `stock` its artifacts and tasks. It is
    dropped unless `claim` is still the run's.
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
    plain: bool = False  # it has entries and nothing else
    published: tuple[PublishedValue, ...] = ()
    stream_items: tuple[StreamItem, ...] = ()
    stock: Stock | None = None
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
        if self.stock is not None:
            size += self.stock.payload_bytes
        return size if self.continuation is None else size + len(self.continuation.input)


class Append(Op, frozen=True, kw_only=True, gc=False):
    """A step that runs has something to say. Dropped unless `claim` is still the run's."""

    claim: int
    stream_items: tuple[StreamItem, ...]

    @property
    def payload_bytes(self) -> int:
        return sum(len(item.value) for item in self.stream_items)


class Deposit(Op, frozen=True, kw_only=True, gc=False):
    """A step that runs hands over parts of an artifact, or takes back those of `gone` artifacts. Dropped unless `claim`
    is still the run's."""

    claim: int
    chunks: tuple[Chunk, ...] = ()
    gone: tuple[str, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return sum(len(chunk.data) for chunk in self.chunks)


class Answer(Op, frozen=True, kw_only=True, gc=False):
    """Answer a task of the run, with an event that only its wait takes. A `worker` must be the one who has the task."""

    task_id: str
    event: Event
    worker: str | None = None

    @property
    def payload_bytes(self) -> int:
        return len(self.event.value)


class Send(Op, frozen=True, kw_only=True, gc=False):
    """Send an event: to the run `run_id`, or, if that is empty, to whoever waits for its name.

    `strict` refuses to queue it. At most `pending_max` of one name wait in one queue. `known` is set by the coordinator
    to the id of the event that was sent with the same key before.
    """

    event: Event
    strict: bool = False
    pending_max: int = 10_000
    known: str = ""
    letter: str = ""  # the dead letter that this is

    @property
    def payload_bytes(self) -> int:
        return len(self.event.value)


class Spread(Op, frozen=True, kw_only=True, gc=False):
    """Give a retained event to more of those who wait for it. It concerns no single run."""

    event_id: str


class Forget(Op, frozen=True, kw_only=True, gc=False):
    """Remove a dead letter. It concerns no run."""

    letter: str


class Due(Op, frozen=True, kw_only=True, gc=False):
    """The timer among the options of a wait is due: it wins, if nothing has won before."""

    claim: int
    position: str
    option: int


class Wake(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a waiting run that nobody has in memory, if this engine has its workflow.

    `then` is what the run does next, if its code has been run already, for the claim that the run has once it is taken.
    It is decided with the wake-up, and is committed with it or not at all."""

    then: Advance | None = None

    @property
    def payload_bytes(self) -> int:
        return 0 if self.then is None else self.then.payload_bytes


class CheckFence(Op, frozen=True, kw_only=True, gc=False):
    """Commit nothing: whether that works shows whether this engine may still write. An `error` is for whoever asked."""

    error: str = ""


class Take(Op, frozen=True, kw_only=True, gc=False):
    """Go on with a run that this engine has just claimed. `orphaned`: its last owner died with it.

    Held as poison when it was orphaned more than `recoveries_max` times in a row without getting anywhere.
    """

    claim: int
    orphaned: bool
    recoveries_max: int


class Count(Op, frozen=True, kw_only=True, gc=False):
    """Correct how often a run of this engine was recovered in a row: by -1 while it only waits, so that the death of
    its process is not counted against it, and by +1 before it executes something again. See models/common/blame.py."""

    claim: int
    change: int


class Release(Op, frozen=True, kw_only=True, gc=False):
    """Give a waiting run up, so that any engine may claim it when it can go on. Nothing happens if it can now."""

    claim: int


class Cancel(Op, frozen=True, kw_only=True, gc=False):
    """End an active run as cancelled. Replies False, changing nothing, if it has ended or does not exist."""

    reason: str = ""
    failure: str
    expected_version: int | None = None
    is_late: bool = False  # The deadline of its parent has passed: it fails with that, and can be retried with it.


class Expire(Op, frozen=True, kw_only=True, gc=False):
    """End an active run whose deadline has passed as failed."""

    failure: str


class Retry(Op, frozen=True, kw_only=True, gc=False):
    """Run a failed run again: the entries from `from_entry` on (None: none) are archived and happen anew. `events` are
    those that they have read, in order: the run can read them again. `with_parent`: its parent, which was handed its
    failure, is retried too."""

    expected_version: int
    from_entry: int | None = None
    events: tuple[Event, ...] = ()
    with_parent: bool = False

    @property
    def payload_bytes(self) -> int:
        return sum(len(event.value) for event in self.events)


class Update(Op, frozen=True, kw_only=True, gc=False):
    """Edit tags or deadline. `expected_version` None takes whatever version there is."""

    expected_version: int | None = None
    tags: Mapping[str, str] | UnsetType = UNSET
    deadline: int | UnsetType | None = UNSET


class SetHold(Op, frozen=True, kw_only=True, gc=False):
    """Set an active run aside. With a `claim`, only if that is still the run's. With `examined`, complete the hold that
    an operation's run has, from its rows."""

    hold: Hold
    claim: int | None = None
    expected_version: int | None = None
    examined: bool = False


class Resume(Op, frozen=True, kw_only=True, gc=False):
    """Lift a run's hold. `take` goes on with it on this engine at once."""

    take: bool = True
    expected_version: int | None = None


class Tell(Op, frozen=True, kw_only=True, gc=False):
    """Word for a run of an operation, of what is in its rows already or comes with this very commit.

    - "news": of a child, which `about` has for the model
    - "ask": the run is to give up; so are those below it
    - "undo": what it did is to be undone, if it is done, and otherwise it is to give up
    - "join": somebody who has registered since may handle what the run waits for
    - "stop": the operation that has called this run, a function or a graph, gives up
    - "fence": nothing. The answer shows that the run's owner has decided all that was sent to it before

    A run that was called gets no news. It ends with "stop", from its caller, or with an "ask" that has a
    `call_failure`: the failure that called runs below a cancelled one end with. Such an "ask" ends a called run in the
    commit that decides it, before its caller has read anything. It does not go on below a run that is rolling back,
    whose calls are compensations; and a run whose caller has a way of its own to heed reasons waits for "stop".

    Where the run was never taken, an "ask" or an "undo" may bring `refusal`, the rows of one that never begins, with
    the `failure` it ends with and the `answer` that its parent (`parent_id`) is told then. `undone_by` is the deadline
    by which what the run did is to be undone, 0 if there is none: a held run does not know its parent's.
    """

    kind: str  # news | ask | undo | join | stop | fence
    about: str = ""
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


class TellMembers(Op, frozen=True, kw_only=True, gc=False):
    """Ask runs that were given a token to give up, if the token is cancelled. `run_id` is the id under which its
    cancellation is stored.

    This op is left as mail: in the commit that stores the cancellation, and in a commit that creates runs with a token
    which no engine takes at once. The engine that reads the mail looks for a page of runs, from `after` on, and puts
    `tells` for them into the op. The commit that tells them consumes the mail, and leaves mail for the next page if
    there is one, from `rest` on. So every run is told, whichever engine dies.
    """

    token: str
    after: tuple[int, str] | None = None
    tells: tuple[Tell, ...] = ()
    rest: tuple[int, str] | None = None


class Emit(Op, frozen=True, kw_only=True, gc=False):
    """Emit a message from outside, with a run for every handler that is expected. It concerns no run that is there.
    `members` are left as mail."""

    added: Cooperation
    starts: tuple[Start, ...] = ()
    members: tuple[TellMembers, ...] = ()

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes


class Settle(Op, frozen=True, kw_only=True, gc=False):
    """Have a run of an operation that nobody has taken end without its code: as `status`, with these rows. Its parent
    (`parent_id`) is told the `answer`. If somebody has taken it, or it is not in the status that it `was` in, nothing
    happens, and its parent is told `otherwise`, if that is given."""

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
    """Ask all runs of a lineage to give up: `run_id` is its last id, a run's or a root emission's. `tells` are for the
    root runs. Replies False, changing nothing, if the run has ended.

    For a token, `run_id` is the id under which its cancellation is stored, and `members` is left as mail."""

    added: Cooperation
    tells: tuple[Tell, ...] = ()
    members: tuple[TellMembers, ...] = ()


class UndoScope(Op, frozen=True, kw_only=True, gc=False):
    """Have a run of an operation that has succeeded undone, with all below it, or (without a run) all root runs of an
    emission: these are told. Replies False, changing nothing, unless the run has succeeded."""

    added: Cooperation
    tells: tuple[Tell, ...] = ()


class Cooperate(Op, frozen=True, kw_only=True, gc=False):
    """A live run of an operation went on: these rows are added, these runs begin, these others are told, `members` are
    left as mail, and the run has this status now. It is dropped unless `claim` is still the run's.

    `heard` is how often it had got word when this was decided. If that is more by now, it does not rest, whatever it
    wanted: a crash would leave nobody to wake it."""

    claim: int
    cause: str
    status: Status
    added: Cooperation
    heard: int = 0
    starts: tuple[Start, ...] = ()
    tells: tuple[Tell | Settle, ...] = ()
    members: tuple[TellMembers, ...] = ()
    waits: tuple[Wait, ...] = ()
    waits_dropped: tuple[str, ...] = ()
    outcome: Outcome | None = None
    has_waited: bool = False  # in its life: then there may be waits to clear at its end
    workflow_version: str = ""  # that it has from now on; "": it stays as it is

    @property
    def payload_bytes(self) -> int:
        return self.added.payload_bytes
