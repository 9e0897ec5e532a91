"""Stored rows as values: journal entries, waits, published values, mail, engines.

Runs are in runs.py, events in events.py, users' versioned records in records.py. Times are microseconds since the
epoch.

Payloads (inputs, outputs, values) are JSON text and opaque here. Rows are never part of a reference cycle, so the
garbage collector need not track the kinds that exist in thousands (gc=False).
"""

from __future__ import annotations

from msgspec import Struct

DEFINITION = "definition"  # The kind of the entry that names the definition with which a graph's run began.


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
    value: str  # JSON, encoded by the codec
    started_at: int
    at: int


class Wait(Struct, frozen=True, kw_only=True, gc=False):
    """Something durable that a run waits for at a position: a timer, the next attempt of a step (retry), a running step
    that has sent a heartbeat (beat), an event, or the end of a run. Several options at one position are alternatives:
    the first that happens wins the position.

    A wait for an event or for the end of a run has no due time. If its `due_at` is 0, an event or an end has won the
    position, and the run must go on. For a step, `attempts` is the number of failed attempts so far, `failure`
    describes them, and `details` has the details of its last heartbeat.
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


class PublishedValue(Struct, frozen=True, kw_only=True, gc=False):
    """The value that a run shows under a key. `mark` identifies the publication: the completion number of the
    activation, and the place in it. A publication that is repeated, or that arrives after a later publication, changes
    nothing."""

    run_id: str
    key: str
    value: str  # JSON, encoded by the codec
    at: int
    mark: tuple[int, int] | None = None


class StreamItem(Struct, frozen=True, kw_only=True, gc=False):
    """One item of a run's stream. An item of a step has its position and attempt. An item of workflow code has a mark
    instead, like a published value, so that it is stored once. Items that are read have no mark."""

    run_id: str
    stream: str
    offset: int = 0  # 1, 2, 3, … in the order of commits; given by the store
    value: str  # JSON, encoded by the codec
    at: int
    position: str | None = None
    attempt: int | None = None
    mark: tuple[int, int] | None = None


class Mail(Struct, frozen=True, kw_only=True):
    """An op that another process left for a run's owner. `slot` is the slot for the answer; empty if no answer is
    wanted."""

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
