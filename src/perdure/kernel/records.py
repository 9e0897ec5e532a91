"""Stored records as values: runs, journal entries, waits, audit rows, mail. Times are microseconds since the epoch.

Payloads (inputs, outputs, values) are JSON text and opaque here. Records are never part of a reference cycle, so the
garbage collector need not track the kinds that exist in thousands (gc=False).
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field

from perdure.kernel.status import Status


class Hold(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Why a run is held. A hold is independent of the run's status. `fingerprint` has the fingerprint of the code that
    did not fit, after those of the code that was tried before (fingerprints.py). If it is empty, only a person can lift
    the hold.

    The other fields are for runs of operations. With them, any engine can end the run without its code.

    - `next_seq`: the number of the run's next row. 0 if its rows were not examined yet
    - `idle_seq`: the same number if the run has nothing to undo, and 0 otherwise
    - `is_undoing`: the run's rollback has begun
    - `failure`: what the run gives up with
    - `missed`: what the run ends with if it could not be rolled back by `undone_by`
    - `give_up_by`: the deadline of the run before its rollback begins
    - `asked`: the run is to give up
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
    """The hold of a run whose own row is damaged. It is made when the row is read, and is never stored. Nothing can be
    decided about the run until the row is corrected."""


class Run(Struct, frozen=True, kw_only=True, gc=False):
    """A run without its payloads. The kernel decides on it, and the engine has it in memory for every loaded run."""

    id: str
    workflow: str
    workflow_version: str = ""
    model: str = "function"  # function | graph | operation; an operation's version is its topic and its code's version
    status: Status
    version: int
    revision: int = 0  # audit rows written so far
    owner: str | None = None
    claim: int = 0  # grows with every change of owner; step results carry it
    parent_id: str | None = None
    bond: str = ""  # to its parent: awaited | started | detached | called
    consumed: bool = False  # its failure was handed to a run that waited for it
    undo: int = 0  # how many compensations it has registered
    origin: str = ""  # what it was started as, if it has continued, and how often it has (lives.py)
    tags: Mapping[str, str] = field(default_factory=dict)
    hold: Hold | None = None
    deadline: int | None = None  # an operation's run has one only while it is held, see kernel/rules/operations.py
    attempt: int = 1  # grows with every operator's retry
    recoveries: int = 0  # in a row, without progress between them
    created_at: int
    started_at: int | None = None  # the time of the workflow code's first activation, in every replay
    updated_at: int
    completed_at: int | None = None
    tried: str = ""  # fingerprints of the code that did not fit before the hold was lifted; empty after progress

    @property
    def known_model(self) -> str:
        """The run's model, or "" if the row does not say: then only the code that has the run's name can tell.

        A run that was started by a name alone is stored as a function with claim 0. A run that is known to be a
        function begins with claim 1. A run that has continued as something else may have another model than it began
        with. The SQL stores have this condition in their queries.
        """
        if self.model == "operation":
            return self.model
        has_continued = self.origin and (self.bond != "called" or " #" in self.origin)
        return "" if has_continued or (self.model == "function" and not self.claim) else self.model


DEFINITION = "definition"  # The kind of an entry that says which definition a graph's run began with.


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """A journal entry: what happened at one position. Exactly one of value and failure is set.

    Entries of kind DEFINITION are not results of workflow code: their numbers are below 1."""

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
    digest: str = ""  # of the arguments of the call (digests.py); empty: not known


class Staged(Struct, frozen=True, kw_only=True, gc=False):
    """The result of a transactional step. It is committed together with the step's writes, and is not in the journal
    yet: a journal entry has a completion number, which is unknown until the workflow gets the result."""

    run_id: str
    position: str
    name: str
    claim: int  # the run's claim when the result was committed
    attempt: int
    value: str  # JSON, through the codec
    started_at: int
    at: int


class Wait(Struct, frozen=True, kw_only=True, gc=False):
    """Something durable that a run waits for at a position: a timer, the next attempt of a step (retry), a running step
    that has sent a heartbeat (beat), an event, or the end of a run. Several options at one position are alternatives:
    the first that happens wins the position.

    A wait for an event or for the end of a run has no time. If its `due_at` is 0, an event or an end has won the
    position, and the run must go on. For a step, `attempts` is how many have failed so far, `failure` describes them,
    and `details` is what its last heartbeat said.
    """

    run_id: str
    position: str
    option: int = 0
    kind: str  # timer | retry | beat | event | run
    name: str  # of the event; otherwise a name for people
    where: tuple[tuple[str, str], ...] = ()  # the values that the event's fields must have, sorted by field name
    mode: str = ""  # which retained events count: after_wait | after_create | all
    target: str | None = None  # the run whose end is waited for
    number: int = 0  # the order of waiting; given by the store
    due_at: int | None = None
    attempts: int = 0
    failure: str | None = None
    since: int = 0
    details: str | None = None


class Event(Struct, frozen=True, kw_only=True, gc=False):
    """A named value on its way to runs. `run_id` is the run that it is for: its target, or the waiting run that a
    broadcast was given to (then `shared` is set). None: the event is in the queue of its name. `position` is the wait
    that the event won.

    If `consumed`, the event goes to its first reader only. Otherwise it is retained for all readers until it expires.
    """

    id: str
    name: str
    value: str = ""  # JSON, through the codec
    fields: Mapping[str, str] = field(default_factory=dict)  # the fields that waits can choose by, as JSON
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
    """An event that its target could not read, or did not read before it ended."""

    id: str
    name: str
    value: str
    fields: Mapping[str, str] = field(default_factory=dict)
    run_id: str
    status: str  # how the target ended, or (see misfit) why it could not read the event
    ended_at: int  # when the target ended, or when it could not read the event
    consumed: bool = True
    at: int  # when it was sent

    @property
    def reason(self) -> str:
        """Why the reader could not read the event; empty if the target ended first."""
        return self.status.removeprefix(_MISFIT) if self.status.startswith(_MISFIT) else ""


def misfit(reason: str) -> str:
    """Return the status of a dead letter that its reader could not read."""
    return f"{_MISFIT}{reason}"


class PublishedValue(Struct, frozen=True, kw_only=True, gc=False):
    """The value that a run shows under a key. `mark` identifies the publication: the completion number of the
    activation, and the place in it. A publication that comes again, or after a later one, changes nothing."""

    run_id: str
    key: str
    value: str  # JSON, through the codec
    at: int
    mark: tuple[int, int] | None = None


class StreamItem(Struct, frozen=True, kw_only=True, gc=False):
    """One item of a run's stream. An item of a step has its position and attempt. An item of workflow code has a mark
    instead, like a published value, so that it is stored once. Items that are read have no mark."""

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
    """An op that another process left for a run's owner. `slot` is where the answer goes. Empty: none is wanted."""

    id: int = 0  # given by the store
    run_id: str
    sender: str
    slot: str = ""
    op: str
    at: int


class Engine(Struct, frozen=True, kw_only=True):
    """An engine as the store knows it. `batch` is the number of its last committed batch."""

    id: str
    epoch: int
    alive: bool
    batch: int
    host: str
    pid: int
    workflows: list[tuple[str, str]]  # names and versions
    started_at: int
