"""Stored rows as values: journal entries, waits, published values, mail, engines.

runs.py has runs, events.py has events, and records.py has users' versioned records. Times are microseconds since the
epoch.

Payloads (inputs, outputs, values) are JSON text, which the kernel does not read. Rows are never part of a reference
cycle. So the garbage collector does not need to track the kinds of rows that exist in thousands (gc=False).
"""

from __future__ import annotations

from msgspec import Struct

DEFINITION = "definition"  # the kind of the entry that names the definition with which a graph's run began


class Entry(Struct, frozen=True, kw_only=True, gc=False):
    """A journal entry: the result at one position. Either the value or the failure is set.

    Entries of kind DEFINITION are not results of workflow code. Their numbers are below 1.
    """

    run_id: str
    seq: int  # the completion number: 1, 2, 3, … in the order in which the workflow got the results
    position: str
    kind: str  # step | timer | wait | child | start | compensate | task | definition
    name: str
    value: str | None = None
    failure: str | None = None
    attempts: int = 1
    started_at: int
    at: int
    digest: str = ""  # the digest of the call's arguments (digests.py); empty if it is not known


class Staged(Struct, frozen=True, kw_only=True, gc=False):
    """The result of a transactional step. It is committed together with the step's writes, and is not in the journal
    yet. A journal entry has a completion number, and this number is not known until the workflow gets the result.
    """

    run_id: str
    position: str
    name: str
    claim: int  # the run's claim when the result was committed
    attempt: int
    value: str  # JSON, encoded by the codec
    started_at: int
    at: int


class Wait(Struct, frozen=True, kw_only=True, gc=False):
    """A durable wait of a run at a position. The run waits for a timer, the next attempt of a step (retry), a running
    step that has sent a heartbeat (beat), an event, or the end of a run. If a position has several options, the first
    that happens wins the position.

    A wait for an event or for the end of a run has no due time. If its `due_at` is 0, an event or the end of a run has
    won the position, and the run must go on. For a step, `attempts` is the number of failed attempts so far, and
    `failure` describes them. `details` has the details of the step's last heartbeat.
    """

    run_id: str
    position: str
    option: int = 0
    kind: str  # timer | retry | beat | event | run
    name: str  # the name of the event, or a name for people
    where: tuple[tuple[str, str], ...] = ()  # the values that the event's fields must have, sorted by field name
    mode: str = ""  # which retained events the wait accepts: after_wait | after_create | all
    target: str | None = None  # the run whose end the wait is for
    number: int = 0  # the order of waiting; the store sets it
    due_at: int | None = None
    attempts: int = 0
    failure: str | None = None
    since: int = 0
    details: str | None = None


class PublishedValue(Struct, frozen=True, kw_only=True, gc=False):
    """The value that a run shows under a key. `mark` identifies the publication. It has the completion number of the
    activation, and the publication's index in it. A repeated publication changes nothing. A publication that arrives
    after a later publication changes nothing either.
    """

    run_id: str
    key: str
    value: str  # JSON, encoded by the codec
    at: int
    mark: tuple[int, int] | None = None


class StreamItem(Struct, frozen=True, kw_only=True, gc=False):
    """One item of a run's stream. An item of a step has its position and attempt. An item of workflow code has a mark
    instead, as a published value has, so that it is stored only once. When items are read, they have no mark.
    """

    run_id: str
    stream: str
    offset: int = 0  # 1, 2, 3, … in the order of commits; the store sets it
    value: str  # JSON, encoded by the codec
    at: int
    position: str | None = None
    attempt: int | None = None
    mark: tuple[int, int] | None = None


class Mail(Struct, frozen=True, kw_only=True):
    """An op that another process left for a run's owner. `slot` is the slot for the reply. It is empty if no reply is
    wanted.
    """

    id: int = 0  # set by the store
    run_id: str
    sender: str
    slot: str = ""
    op: str
    at: int


class Engine(Struct, frozen=True, kw_only=True):
    """The stored row of an engine. `batch` is the number of its last committed batch."""

    id: str
    epoch: int
    alive: bool
    batch: int
    host: str
    pid: int
    workflows: list[tuple[str, str]]  # names and versions
    started_at: int
