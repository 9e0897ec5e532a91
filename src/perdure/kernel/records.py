"""What is stored, as values: runs, journal entries, waits, audit rows, mail. Times are microseconds since the epoch.

Payloads (inputs, outputs, values) are JSON text and opaque here. Records are never part of a reference cycle, so those
that are made by the thousand spare the garbage collector the search (gc=False).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from perdure.kernel.status import Status


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One failed attempt of a step."""

    attempt: int
    type: str
    message: str
    at: int


class Failure(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An exception as data. `type` is `module:qualname`; `args` is None if the exception's arguments have no JSON form;
    `state` has those of its attributes that do, `native` what Python's own exceptions keep elsewhere (errno, filename),
    `partial` says that there was more. `members` are those of an exception group.

    `entry` is the journal entry (its completion number) whose failure this is, so that a retry knows where to go on;
    `where` says, for people, in which branch of a graph it happened.
    """

    type: str
    message: str
    args: list[Any] | None = None
    state: dict[str, Any] = field(default_factory=dict)
    native: dict[str, Any] = field(default_factory=dict)
    partial: bool = False
    members: list[Failure] = field(default_factory=list)
    stack: str = ""
    entry: int | None = None
    history: list[Attempt] = field(default_factory=list)
    cause: Failure | None = None
    where: str = ""

    @property
    def text(self) -> str:
        """What happened, and where."""
        return f"{self.message} ({self.where})" if self.where else self.message


class Hold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run is set aside beside its status. `fingerprint` is that of the code that did not fit, after those of the
    code that had been tried before (fingerprints.py); without one, only a person can lift the hold.

    The rest is about runs of operations, whose rows were examined if `next_seq`, the number of the next one, is not 0.
    `idle_seq` is the same number for a run that has nothing to undo, and 0 otherwise; `is_undoing` tells that its
    rollback has begun. `failure` is what a run gives up with, `missed` what it ends with if it could not be rolled back
    by `undone_by`; `give_up_by` is the deadline of the happy path. With these anybody can end the run, without its
    code. `asked` tells that it is to give up.
    """

    kind: str  # blocked | paused | poison
    reason: str
    details: str = ""
    fingerprint: str = ""
    at: int = 0
    idle_seq: int = 0
    failure: str = ""
    next_seq: int = 0
    is_undoing: bool = False
    missed: str = ""
    give_up_by: int = 0
    undone_by: int = 0
    asked: bool = False


class Damage(Hold, frozen=True, kw_only=True, omit_defaults=True):
    """The hold of a run whose own row is damaged. It is made when the row is read, and is never stored: once the row
    is corrected, it is gone. Nothing can be decided about the run until then."""


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """A run without its payloads: what the kernel decides on, and what is in memory for every loaded run."""

    id: str
    workflow: str
    workflow_version: str = ""
    model: str = "function"  # "operation" too: then its version is its topic, with that of its code
    status: Status
    version: int
    revision: int = 0  # audit rows written so far
    owner: str | None = None
    claim: int = 0  # grows with every change of owner; step results carry it
    parent_id: str | None = None
    bond: str = ""  # to its parent: awaited | started | detached | called
    consumed: bool = False  # its failure was handed to a run that waited for it
    undo: int = 0  # compensations that it has registered
    origin: str = ""  # what it was started as, if it continues as something else, and how often it has (lives.py)
    tags: Mapping[str, str] = field(default_factory=dict)
    hold: Hold | None = None
    deadline: int | None = None  # of an operation's run: only while it is held, see kernel/rules/operations.py
    attempt: int = 1  # grows with every operator's retry
    recoveries: int = 0  # in a row, without progress between them
    created_at: int
    started_at: int | None = None  # the time of the workflow code's first activation, in every replay
    updated_at: int
    completed_at: int | None = None
    tried: str = ""  # fingerprints of the code that did not fit before its hold was lifted; empty after progress

    @property
    def known_model(self) -> str:
        """The run's model, "" if only code of its name can tell.

        A run that was started by a name alone is stored as a function, and was never claimed: runs that are known to be
        functions begin with claim 1. A run that has continued as something else may be of another model than it began.
        The SQL stores have this condition in their queries.
        """
        if self.model == "operation":
            return self.model
        has_continued = self.origin and (self.bond != "called" or " #" in self.origin)
        return "" if has_continued or (self.model == "function" and not self.claim) else self.model


DEFINITION = "definition"  # The kind of entries that tell which definition a run of a graph began with.


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """A journal entry: what happened at one position. Exactly one of value and failure is set.

    Those of kind DEFINITION happened to nobody: their numbers are below 1."""

    run_id: str
    seq: int  # the completion number: 1, 2, 3, … in the order handed to the workflow
    position: str
    kind: str  # step | timer | wait | child | start | compensate | task | definition
    name: str
    value: str | None = None
    failure: str | None = None
    attempts: int = 1
    started_at: int
    at: int
    digest: str = ""  # of what it was called with (digests.py); empty: not known


class Staged(Struct, frozen=True, kw_only=True, gc=False):
    """What a transactional step came to, committed together with its writes, and not in the journal yet: that has a
    completion number, which nobody knows before the result is handed to the workflow."""

    run_id: str
    position: str
    name: str
    claim: int  # the run's, when it was committed
    attempt: int
    value: str  # JSON, through the codec
    started_at: int
    at: int


class Wait(Struct, frozen=True, kw_only=True, gc=False):
    """Something durable that a run waits for at a position: a timer, the next attempt of a step (retry), a step that
    runs and has sent a heartbeat (beat), an event, or the end of a run. Several options at one position are an OR.

    Events and ends have no time; `due_at` 0 says that the position was won by one, and that its run must go on. For a
    step, `attempts` have failed so far, `failure` tells of them, and `details` is what its last heartbeat said.
    """

    run_id: str
    position: str
    option: int = 0
    kind: str  # timer | retry | beat | event | run
    name: str  # of the event; for people otherwise
    where: tuple[tuple[str, str], ...] = ()  # what the event's fields must be, sorted by name
    mode: str = ""  # which retained events count: after_wait | after_create | all
    target: str | None = None  # the run whose end is waited for
    number: int = 0  # the order of waiting; given by the store
    due_at: int | None = None
    attempts: int = 0
    failure: str | None = None
    since: int = 0
    details: str | None = None


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """A named value on its way to runs. `run_id` is who it is for: its target, or the waiting run that a broadcast was
    given to (then `shared` is set); None: it is in the queue of its name. `position` is the wait that it won.

    Unless `consumed` by its first reader, it is kept for everybody until it expires.
    """

    id: str
    name: str
    value: str = ""  # JSON, through the codec
    fields: Mapping[str, str] = field(default_factory=dict)  # those that waits can ask for, as JSON
    run_id: str | None = None
    shared: bool = False
    consumed: bool = True
    position: str | None = None
    option: int = 0
    number: int = 0  # the order of sending; given by the store
    expires_at: int
    fallback: str = "discard"  # if its target ends first: discard | broadcast | dead_letter
    key: str | None = None
    actor: str = ""
    at: int


_MISFIT = "misfit: "


class DeadLetter(Struct, frozen=True, kw_only=True):
    """An event whose target ended before it was read, or could not take it."""

    id: str
    name: str
    value: str
    fields: Mapping[str, str] = field(default_factory=dict)
    run_id: str
    status: str  # how the target ended, or (see misfit) why it could not take the event
    ended_at: int  # or when it refused it
    consumed: bool = True
    at: int  # when it was sent

    @property
    def reason(self) -> str:
        """Why its reader could not take it; empty if its target ended first."""
        return self.status.removeprefix(_MISFIT) if self.status.startswith(_MISFIT) else ""


def misfit(reason: str) -> str:
    """The status of a dead letter that its reader could not take."""
    return f"{_MISFIT}{reason}"


class PublishedValue(Struct, frozen=True, kw_only=True, gc=False):
    """What a run shows under a key. `mark` says which of its code's words it was: the completion number of the
    activation, and the place in it. A word that comes again, or after a later one, changes nothing."""

    run_id: str
    key: str
    value: str  # JSON, through the codec
    at: int
    mark: tuple[int, int] | None = None


class StreamItem(Struct, frozen=True, kw_only=True, gc=False):
    """One item of a run's stream. A step's has its position and the attempt; one of workflow code has a mark instead,
    as a published value has, so that it is there once however often it comes. What is read has no mark."""

    run_id: str
    stream: str
    offset: int = 0  # 1, 2, 3, … in the order of commits; given by the store
    value: str  # JSON, through the codec
    at: int
    position: str | None = None
    attempt: int | None = None
    mark: tuple[int, int] | None = None


class Audit(Struct, frozen=True, kw_only=True, gc=False):
    """One change of a run's status, hold, tags or deadline."""

    run_id: str
    seq: int
    version: int
    was: str | None
    became: str
    cause: str
    actor: str
    details: str = ""
    at: int


class Outcome(Struct, frozen=True, kw_only=True, gc=False):
    """What a finished run leaves: an output, or a failure (JSON of Failure), or neither (cancelled)."""

    output: str | None = None
    failure: str | None = None


class Mail(Struct, frozen=True, kw_only=True):
    """An op that another process left for a run's owner. `slot` is where it looks for the answer; empty: nowhere."""

    id: int = 0  # given by the store
    run_id: str
    sender: str
    slot: str = ""
    op: str
    at: int


class Engine(Struct, frozen=True, kw_only=True):
    """A process's instance of Perdure as the store knows it. `batch` is the number of its last committed batch."""

    id: str
    epoch: int
    alive: bool
    batch: int
    host: str
    pid: int
    workflows: list[tuple[str, str]]  # names and versions
    started_at: int
