"""What the coordinator needs from outside: a store, a clock, ids, a codec. Implemented in storage/ and testing/.

A store raises the errors under StoreError, and means them:

- StoreBusy: nothing was written; sending the very same batch again is right.
- OutcomeUnknown: the batch may have landed; sending it again finds out (its number tells).
- CommitRefused: this batch will never be accepted (a constraint, a value the database cannot hold).
- CommitConflict(run_ids, mail_ids, book): these runs' rows were not as expected, this mail was gone, the book of
  handlers has another version; nothing was written.
- Fenced: this engine was marked dead, or its row is gone; nothing was written and nothing ever will be.
- StoreBroken: the store cannot be used at all.
"""

from __future__ import annotations

import builtins
import hashlib
import os
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from time import monotonic_ns, time_ns
from typing import Any, Literal, Protocol

from msgspec import Struct, field

from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import HandlerBook, MessageEventRow, ScopeRows
from perdure.kernel.records import (
    Audit,
    Damage,
    DeadLetter,
    Engine,
    Entry,
    Event,
    Hold,
    Mail,
    Outcome,
    PublishedValue,
    Run,
    Staged,
    StreamItem,
    Wait,
)
from perdure.kernel.stock import Artifact, Record, Task


class LoadedRun(Struct, frozen=True, kw_only=True):
    """A run, what it waits for, and what was sent to it: all that deciding about it needs."""

    run: Run
    waits: tuple[Wait, ...] = ()
    events: tuple[Event, ...] = ()  # those sent or given to it, in the order of sending
    orphaned: bool = False  # claimed from an engine that died with it, not one that released it
    forsaken: bool = False  # its owner is no living engine
    damage: Damage | None = None  # some of its waits or events could not be read, and are left out


class Offer(Struct, frozen=True):
    """Code that an engine has. A run fits it if it is of the same kind, and was started as the same version of the same
    workflow. The version of an operation is the topic of its messages, with the version of its code if it has one.

    `begun` is for operations that have versions: only runs that code has begun (True) fit, or only those that none has
    (False). See `fits` in storage/claims.py. Without a fingerprint, no blocked run is claimed."""

    workflow: str
    version: str
    fingerprint: str
    model: str = "function"
    begun: bool | None = None


class News(Struct, frozen=True, kw_only=True):
    """What there may be to do: mail to read; engines whose sign of life is gone; runs without a living owner that could
    go on now; blocked ones that offered code may fit, whose fingerprint is another or not known yet."""

    mail: bool = False
    dead: bool = False
    stray: bool = False
    blocked: bool = False


class StepPlace(Struct, frozen=True, kw_only=True):
    """A step of a run, and the engine that has it, with the claim by which it does."""

    engine_id: str
    epoch: int
    run_id: str
    claim: int
    position: str


class Journal(Struct, frozen=True):
    """What a run was started with, has done and waits for: all that brings it back to life.

    `failure` is what a run that rolls back is undone for; the store leaves it to be asked for. `staged` is what steps
    came to that are not in the journal yet.
    """

    input: str
    entries: list[Entry]
    waits: tuple[Wait, ...] = ()
    failure: str = ""
    staged: tuple[Staged, ...] = ()


class StoredRun(Struct, frozen=True, kw_only=True):
    """A run with its payloads, for people."""

    run: Run
    input: str
    outcome: Outcome


class ChangedRun(Struct, frozen=True):
    """A run that something has happened to."""

    id: str
    workflow: str


class Ripe(Struct, frozen=True, kw_only=True):
    """A run that nobody has in memory and that is to go on, or to be ended by its deadline, at this time."""

    run_id: str
    due_at: int
    deadline: bool


class StreamPage(Struct, frozen=True, kw_only=True):
    """Some items of a stream, and whether its run had ended when they were read: then, and if there are none, there
    will be no more."""

    items: tuple[StreamItem, ...]
    has_ended: bool


class Statement(Struct, frozen=True):
    """What to execute on a connection that is a caller's own. Parameters stand in the text as the database has them:
    $1, $2, … for Postgres; ?, or names, for SQLite. Before one that `writes` there must be a transaction."""

    sql: str
    parameters: tuple[Any, ...] | Mapping[str, Any] = ()
    writes: bool = False


Rows = Sequence[Sequence[Any]]


class TakenRun(Struct, frozen=True, kw_only=True):
    """What a start is told of a run that has its id already: enough to see whether both ask for the same."""

    id: str
    workflow: str
    origin: str
    input: str


class TakenMessage(Struct, frozen=True, kw_only=True):
    """What an emission is told of a message that has its id already."""

    message_id: str
    scope: str  # its root


Taken = TakenRun | TakenMessage | None


class Insertion(Struct, frozen=True):
    """How a caller's own connection inserts a new run, or a message with its runs. `steps` gives statements, takes
    their rows, and returns the run, or the message, that has the id already, or None if it was inserted; what a
    statement raised is thrown into it."""

    database: str  # postgresql | sqlite
    steps: Generator[Statement, Rows, Taken]


# So long a dead engine is remembered that did not sign off: one that was only cut off finds out whether its last commit
# has landed by the number in its row.
ENGINES_KEPT_US = 24 * 60 * 60 * 1_000_000

# A page of a stream stops after this many characters, though never before its first item.
STREAM_PAGE_CHARS_MAX = 4 * 1024 * 1024


class Within(Struct, frozen=True, kw_only=True):
    """Runs that have one of these workflows, or one of these tags (key and value). Without any it is no run at all."""

    workflows: tuple[str, ...] = ()
    tags: tuple[tuple[str, str], ...] = ()

    def covers(self, workflow: str, tags: Mapping[str, str]) -> bool:
        return workflow in self.workflows or any(tags.get(key) == value for key, value in self.tags)


class ArtifactFilter(Struct, frozen=True, kw_only=True):
    """Which artifacts to list: all that match every given field, by id, the greatest first, strictly below `after`.
    Those that are staged count only if `staged` is set; those set aside never do. With `within` their runs must be
    among these."""

    name: str | None = None
    run_id: str | None = None
    type: str | None = None
    staged: bool = False
    within: Within | None = None
    after: str | None = None
    limit: int = 100


class TaskFilter(Struct, frozen=True, kw_only=True):
    """Which tasks to list: all that match every given field, by id, strictly after `after`. An open one whose lease has
    not passed at `at` is claimed, and one whose lease has is open. With `within` their runs must be among these."""

    queue: str | None = None
    kind: str | None = None
    run_id: str | None = None
    status: str | None = None  # open | claimed | answered | withdrawn
    at: int = 0
    within: Within | None = None
    after: str | None = None
    limit: int = 100


class RunFilter(Struct, frozen=True, kw_only=True):
    """Which runs to list: all that match every given field, newest first, strictly after the cursor.

    `after` is the (created_at, id) of the last run of the page before.
    """

    workflow: str | None = None
    statuses: tuple[str, ...] = ()
    hold: str | None = None
    parent_id: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    created_from: int | None = None
    created_before: int | None = None
    after: tuple[int, str] | None = None
    limit: int = 100


# Which functions can write to tables of their own in a transaction of a store's: none, plain ones, async ones.
Transacts = Literal["no", "plain", "async"]


class Store(Protocol):
    """Where runs live. One per engine. All methods but `abandon`, `withdraw` and `listen` may raise StoreBusy or
    StoreBroken, which is StoreMisconfigured if somebody can mend it while engines run."""

    @property
    def transacts(self) -> Transacts:
        """What `transact` takes as a body."""

    @property
    def clock(self) -> Clock | None:
        """The clock that all engines on this store go by, right from `open` on; None if each has its machine's own."""
        ...

    @property
    def poll_s(self) -> float:
        """How often an engine should `look`, whatever it hears."""

    async def open(self) -> None:
        """Connect and bring the schema up to date, under a lock. Raises StoreBroken, SchemaTooNew."""

    async def close(self) -> None:
        """Finish what is in flight and let go of everything. Idempotent."""

    def abandon(self) -> None:
        """Let go as a killed process would: no more writes, the sign of life gone, nothing tidied up. Idempotent."""

    def is_surely_alive(self) -> bool:
        """Whether nobody can have found the sign of life of this store's engine gone so far. If this process was
        stopped for a while, somebody may have: then a commit tells. Asks nobody."""

    def listen(self, heard: Callable[[], object]) -> None:
        """Call back, on the running loop, whenever others may have left something for this store's engine or for
        everybody. Only a hint: some may be lost, some may be for nothing. Ends with `close` and `abandon`."""

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> News:
        """Whether there is mail that `mail` would give, an engine that `mark_dead_engines` would mark, a run that
        `claim` would take
        or `ripe` would give as due by `at`. One cheap read."""

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        """Register an engine, alive, with batch 0 and a fresh epoch; hold its sign of life until close or abandon."""

    async def retire(self, engine_id: str) -> None:
        """Mark an engine as not alive and release every run that it still owns, in one transaction. It has nothing
        under way, so it may be forgotten, as by `purge`. A missing engine is a dead one: it is Fenced."""

    def withdraw(self, engine_id: str) -> None:
        """Give up an engine's sign of life, without asking the database: whoever looks takes the engine for dead, and
        may take its runs over. Another one may then be enrolled. Idempotent."""

    async def mark_dead_engines(self) -> list[str]:
        """Mark every engine whose sign of life is gone as not alive; their ids. Claims nothing."""

    async def engines(self, *, living: bool = False) -> list[Engine]:
        """All engines the store knows, or those not marked dead, by epoch. What the latter costs does not grow with
        the former."""

    async def commit(self, batch: Batch) -> Committed:
        """Apply the batch in one transaction, or not at all; what was found out about broadcasts and waits.

        The engine's row goes from `batch.number - 1` to `batch.number` in it. If the row already has `batch.number`,
        the batch had landed before: return without writing. A key that was used before, mail or a dead letter that is
        gone, is a CommitConflict. Who wins something here and is owned by another living engine gets mail about it
        (kernel.mail.wake_mail).

        A stream's items get their offsets here. Of what has a mark, an item that is there is left as it is, and a
        published value is replaced only by one with a greater mark. Entries that are archived take their marks with
        them: items from there on have none, values stay until one with a mark from there on comes. A run that gets
        another input has said nothing yet: its items have no marks, its values any other replaces.

        An artifact that workflow code stages and that is there (the same run, `seq` and `number`, no position) is left
        as it is. Published ones get the next versions of their names, in the order of staging. Entries that are
        archived take with them what was staged with them or after; of a run that hops, all is kept, as if staged before
        any entry. With the end of a run go chunks that no artifact has. An answer to a task that is not open, or that
        another worker has, is a CommitConflict.

        If the batch's cooperation names a version of the book of handlers, and that is not the book's, it is a
        CommitConflict. A handler that is seen for the first time changes the book. A second event with the same scope
        and number, or with the same message and key, is a CommitRefused.
        """

    def insertion(self, batch: Batch) -> Insertion:
        """What writes the rows of one new run, or of one message with its runs, as `commit` would, but in a caller's
        transaction, and tells nobody until that is committed. It may be executed in any thread.

        Its steps raise Misuse if the connection cannot do that: it leads to another database, reads only, or has no
        transaction; RunExists if the id is taken by a run that its user may not know more of; and HandlersChanged if
        the handlers are not those of the batch. Nothing is written then, and the
        caller's transaction goes on. Raises Misuse if there are no connections to such a store."""

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        """Have a step write to tables of the user's, and stage what it came to, in one transaction; what is staged.

        `body` gets a connection to the database, and gives what is to be staged: a plain function, which is called in
        the store's own thread, or an async one, which is awaited here, as `transacts` says. What it raises rolls all
        back, and is raised as it is. If something is staged at this position, that is returned, and no body is called.
        There is one transaction for a position at a time.

        Raises Fenced; CommitConflict unless the run is the engine's, with this claim, when the transaction begins and
        when it ends: if it is not at the beginning, no body is called;
        CommitRefused if the database refuses to commit; OutcomeUnknown, and then calling it again finds out; Misuse if
        there are no transactions here, or if the body ended this one.
        """

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        """Take over up to `limit` active runs without a living owner that fit an offer, oldest first.

        Suspended runs are left where they are: `ripe` tells when they go on. Held runs are left alone, but for
        blocked ones whose hold has fingerprints, and not the offer's: other code may fit.
        Each claimed run's `claim` grows by one. Raises Fenced.
        """

    async def set_aside(self, run_id: str, hold: Hold, *, engine_id: str, at: int) -> bool:
        """Hold a run that is damaged, unless it is held or another living engine has it; whether that was done. Nobody
        owns it then, and nothing else in its row changes but its revision. The hold is audited."""

    async def load(self, ids: Sequence[str]) -> dict[str, LoadedRun]:
        """Runs by id in one query; unknown ids are absent; an empty list asks nothing."""

    async def load_whole(self, ids: Sequence[str]) -> dict[str, tuple[LoadedRun, Journal]]:
        """Runs by id, each with its journal, in one read; unknown ids are absent; an empty list asks nothing. A journal
        is never older than its run. Raises RowDamaged if the journal of one of them cannot be read."""

    async def children(self, ids: Sequence[str], *, stopped: bool = False) -> builtins.list[LoadedRun]:
        """The active children of these runs that are not detached; with `stopped`, also those that were cancelled or
        rolled back."""

    async def ripe(self, *, offers: Sequence[Offer], before: int, limit: int) -> builtins.list[Ripe]:
        """Of the runs without a living owner that fit an offer and are not held: those whose earliest wait, or whose
        deadline, is before a time; the earliest first. Held runs too, whatever is offered, by their deadlines alone, if
        these end them: those that go forward, and those of operations."""

    async def sent(self, keys: Sequence[str]) -> dict[str, str]:
        """The events that were sent with these keys: key -> event id."""

    async def spreading(self) -> builtins.list[str]:
        """Retained events that have not reached all who waited for them when they were sent."""

    async def events(
        self, *, name: str | None = None, run_id: str | None = None, limit: int = 100
    ) -> builtins.list[Event]:
        """Events that wait to be read, in the order of sending: a run's, or (None) those of everybody."""

    async def letters(
        self, *, name: str | None = None, after: str | None = None, limit: int = 100
    ) -> builtins.list[DeadLetter]:
        """Dead letters by id, strictly after one."""

    async def letter(self, letter_id: str) -> DeadLetter | None:
        """One dead letter."""

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        """Forget events that have expired, keys and replies from before a time, and engines that have been dead for a
        day (ENGINES_KEPT_US) and that nobody needs to know of: not one that owns a run, nor the last one that had
        some code. How many, up to `limit` of each."""

    async def journal(self, run_id: str) -> tuple[str, list[Entry]]:
        """A run's input and its entries in completion order. Raises RunNotFound."""

    async def journals(self, ids: Sequence[str]) -> dict[str, Journal]:
        """The same of several runs, their waits and what is staged, in one read; unknown ids are absent, no ids ask
        nothing."""

    async def archived(self, run_id: str) -> list[tuple[int, Entry]]:
        """Entries set aside by retries, with the attempt they belonged to."""

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        """Runs with payloads in one query; unknown ids are absent; an empty list asks nothing."""

    async def list(self, wanted: RunFilter) -> list[Run]:
        """Runs without payloads, newest first, by keyset."""

    async def count(self, wanted: RunFilter) -> int:
        """How many runs `list` would return for the same filter, without reading them: at most its `limit`."""

    async def tally(self, cells: Sequence[tuple[str, int, int]], limit: int) -> builtins.list[int]:
        """How many runs have a status and were created from one time on and before another, for each of these cells; of
        each up to `limit` are counted."""

    async def audit(self, run_id: str) -> builtins.list[Audit]:
        """A run's audit rows, oldest first."""

    async def audits(self, ids: Sequence[str]) -> builtins.list[Audit]:
        """The audit rows of several runs, in one query: by run, oldest first. No ids ask nothing."""

    async def changed_runs(self, *, since: int, after: str = "", limit: int = 100) -> builtins.list[ChangedRun]:
        """Runs that may have audit rows from a time on, by id, strictly after one."""

    async def published(self, run_id: str, key: str | None = None) -> builtins.list[PublishedValue]:
        """What a run has published, by key: under one, or (None) under all. Raises RunNotFound."""

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        """The items of a stream with an offset greater than `after`, in order: up to `limit`, and fewer if they are
        large. Raises RunNotFound; a stream that nobody wrote to is empty."""

    async def streams(self, run_id: str) -> dict[str, int]:
        """The names of a run's streams, and the offset of the last item of each. Raises RunNotFound."""

    async def artifacts(self, wanted: ArtifactFilter) -> builtins.list[Artifact]:
        """Artifacts without content, by keyset."""

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        """One artifact with its content, unless that is in chunks: by id, if it is staged or published, or by name the
        published one of a version (None: the newest)."""

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        """One chunk of an artifact."""

    async def tasks(self, wanted: TaskFilter) -> builtins.list[Task]:
        """Tasks by keyset."""

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        """Tasks by id in one query; unknown ids are absent; an empty list asks nothing."""

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> builtins.list[Task]:
        """Give up to `limit` open tasks of a queue that nobody has at `at` to a worker, by id; each to one worker
        only."""

    async def hold_task(
        self,
        *,
        task_id: str,
        worker: str,
        at: int,
        keep: bool,
        details: str | None = None,
        error: str | None = None,
        actor: str = "",
    ) -> bool:
        """Lengthen a worker's lease, or (`keep` False) end it; whether the worker has the task, and it is open. None
        leaves details and error as they are."""

    async def put_record(self, record: Record) -> int:
        """Add a version of a record, unless its newest has the same digest; the version that has it."""

    async def record(self, kind: str, name: str, version: int | None = None) -> Record | None:
        """One version of a record (None: the newest)."""

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> builtins.list[Record]:
        """The newest versions of the records of a kind, by name, strictly after one."""

    async def record_versions(
        self, *, since: int, after: tuple[str, str, int] | None = None, limit: int = 100
    ) -> builtins.list[Record]:
        """All versions of all records that were put from a time on, by (kind, name, version), strictly after one."""

    async def put_token(self, token: StoredToken) -> bool:
        """Add a version of a token, if it is the next one of its name; whether the newest is this one then, also if it
        was so before. When it was last used is taken over."""

    async def token(self, name: str) -> StoredToken | None:
        """The newest version of a token."""

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> builtins.list[StoredToken]:
        """The newest versions of all tokens, by name, strictly after one."""

    async def token_versions(
        self, *, after: tuple[str, int] | None = None, limit: int = 100
    ) -> builtins.list[StoredToken]:
        """All versions of all tokens, by name and version, strictly after one."""

    async def use_token(self, name: str, *, at: int) -> None:
        """Note when a token was used, unless it was used later."""

    async def put_session(self, session: StoredSession) -> None:
        """Add a session, unless there is one with its id."""

    async def session(self, id: str) -> StoredSession | None:
        """A session, also one that is over and was not removed yet."""

    async def end_session(self, id: str) -> None:
        """Remove a session."""

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        """Remove sessions that are over at a time; how many, up to `limit`."""

    async def handlers(self) -> HandlerBook:
        """All handlers that were ever registered or seen."""

    async def register(self, handlers: Sequence[tuple[str, str]], *, at: int) -> HandlerBook:
        """Have these operations (topic, name) expected to handle messages from now on; the book afterwards."""

    async def unregister(self, topic: str, name: str, *, at: int) -> bool:
        """Take a handler out of the book; whether it was in it."""

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        """All that deciding about these runs of operations needs, in one read: the runs, those above and their
        children; all events of their own lineages, and those with a key of the messages of all these runs; their
        messages and all that they emitted; what they and their children returned. An id may be a root emission's: then
        its own events and its root runs, in the same way. Unknown ids are absent."""

    async def events_at(self, places: Sequence[tuple[str, int]]) -> builtins.list[MessageEventRow]:
        """Message events by scope and number; unknown ones are absent."""

    async def hierarchy(self, id: str) -> ScopeRows:
        """All rows of a run of an operation and of all below it, or of all that belongs to a root emission."""

    async def emitted(self, message_id: str) -> MessageEventRow | None:
        """The event that says that a message was emitted."""

    async def post(self, mail: Mail) -> int:
        """Leave mail; its id. FIFO per sender. Mail with a slot that was used before is not left again: its id is 0."""

    async def mail(self, engine_id: str, limit: int) -> builtins.list[Mail]:
        """Mail for runs that this engine owns, or no living engine, or that do not exist; oldest first."""

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        """Take the answers out of these slots: those that are there by now."""


class TimerHandle(Protocol):
    def cancel(self) -> object: ...


class Clock(Protocol):
    """What time it is, how much time passes, and callbacks on the running loop. All in microseconds.

    The time of day may be set, ahead and back. What is due at a time follows it; what lasts for a while does not.
    """

    def now(self) -> int:
        """The time of day, since the epoch."""
        ...

    def monotonic(self) -> int:
        """A count that only grows, from any beginning: to measure how long something takes in this process."""
        ...

    def call_at(self, when: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back when it is `when`, or as soon after as possible. If the time of day is set, ahead or back, that is
        noticed within a second or so. Never early. Cancel is idempotent."""
        ...

    def call_after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        """Call back when this much time has passed, whatever the time of day is then. Cancel is idempotent."""


class Ids(Protocol):
    """Makes ids that nobody else makes: of runs, events and engines."""

    def __call__(self, now: int, /) -> str: ...


class Codec(Protocol):
    """Turns payloads' JSON text into what is stored and back: for encryption or compression."""

    def encode(self, text: str) -> str: ...

    def decode(self, text: str) -> str: ...


class Probe(Protocol):
    """Sees the points that ops come by, and may stop them there: for tests (see perdure.testing.YieldPoints)."""

    def reached(self, point: str, run_id: str) -> Awaitable[object] | None:
        """An op of this run is at this point. What is returned is awaited before it goes on, unless the engine owes it
        and it is not in a batch yet."""


ALARM_LOOKS_EVERY_US = 1_000_000


class SystemClock:
    """The machine's clock and the running asyncio loop."""

    def now(self) -> int:
        return time_ns() // 1000

    def monotonic(self) -> int:
        return monotonic_ns() // 1000

    def call_at(self, when: int, callback: Callable[[], object]) -> TimerHandle:
        return _Alarm(self, when, callback)

    def call_after(self, delay: int, callback: Callable[[], object]) -> TimerHandle:
        import asyncio

        return asyncio.get_running_loop().call_later(max(0, delay) / 1_000_000, callback)


class _Alarm:
    """A callback at a time of day. Looks at the clock once a second: loops count time, and do not notice that a clock
    was set, or that the machine was asleep."""

    __slots__ = ("_callback", "_clock", "_next", "_when")

    def __init__(self, clock: SystemClock, when: int, callback: Callable[[], object]) -> None:
        self._clock = clock
        self._when = when
        self._callback: Callable[[], object] | None = callback
        self._next = clock.call_after(min(when - clock.now(), ALARM_LOOKS_EVERY_US), self._look)

    def cancel(self) -> None:
        self._callback = None
        self._next.cancel()

    def _look(self) -> None:
        callback = self._callback
        if callback is None:
            return
        left = self._when - self._clock.now()
        if left > 0:
            self._next = self._clock.call_after(min(left, ALARM_LOOKS_EVERY_US), self._look)
            return
        self._callback = None
        callback()


class PlainCodec:
    """Stores payloads as they are, so that a person can read them in the table."""

    def encode(self, text: str) -> str:
        return text

    def decode(self, text: str) -> str:
        return text


def new_id(now: int) -> str:
    """A UUIDv7: 48 bits of milliseconds, then randomness; ids made later sort later, to the millisecond."""
    time = f"{now // 1000:012x}"
    try:
        return f"{time[:8]}-{time[8:]}-{_CHANCES.pop()}"
    except IndexError:
        # To ask the system for each one's alone takes longer than all the rest. Others may do the same meanwhile.
        drawn = os.urandom(10 * _CHANCES_DRAWN).hex()
        _CHANCES.extend([_chance(drawn[start : start + 20]) for start in range(0, len(drawn), 20)])
        return new_id(now)


def derived_id(now: int, seed: str) -> str:
    """As `new_id`, the same for the same time and seed."""
    time = f"{now // 1000:012x}"
    return f"{time[:8]}-{time[8:]}-{_chance(hashlib.sha256(seed.encode()).hexdigest()[:20])}"


def _chance(digits: str) -> str:
    return f"7{digits[:3]}-{_VARIANT[digits[3]]}{digits[4:7]}-{digits[7:19]}"


_CHANCES: list[str] = []  # the ends of ids to come, each of which is used once
_CHANCES_DRAWN = 256
os.register_at_fork(after_in_child=_CHANCES.clear)

_VARIANT = {digit: "89ab"[int(digit, 16) % 4] for digit in "0123456789abcdef"}  # its two highest bits are 10
