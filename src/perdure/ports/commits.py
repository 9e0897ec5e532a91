"""Writes: a batch of an engine, rows in a caller's own transaction, and a step's transaction."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal, Protocol

from msgspec import Struct

from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Staged


class StepPlace(Struct, frozen=True, kw_only=True):
    """A step of a run, with the engine that owns the run, and the run's claim."""

    engine_id: str
    epoch: int
    run_id: str
    claim: int
    position: str


class Statement(Struct, frozen=True):
    """A statement to execute on a caller's own connection. The text has the placeholders of its database: $1, $2, … for
    Postgres, and ? or names for SQLite. A statement that `writes` needs an open transaction.
    """

    sql: str
    parameters: tuple[Any, ...] | Mapping[str, Any] = ()
    writes: bool = False


Rows = Sequence[Sequence[Any]]


class TakenRun(Struct, frozen=True, kw_only=True):
    """An existing run that has the same id as a new start. It has the fields that are needed to compare the two
    starts.
    """

    id: str
    workflow: str
    origin: str
    input: str


class TakenMessage(Struct, frozen=True, kw_only=True):
    """An existing message that has the same id as a new emission."""

    message_id: str
    scope: str  # the id of its root emission


Taken = TakenRun | TakenMessage | None


class Insertion(Struct, frozen=True):
    """The statements that insert a new run, or a message with its runs, over a caller's own connection. The generator
    `steps` yields statements. The rows of each statement are sent into it. If a statement raises, the error is thrown
    into `steps`. It returns None if the rows were inserted. Otherwise it returns the existing run or message that has
    the id.
    """

    database: str  # postgresql | sqlite
    steps: Generator[Statement, Rows, Taken]


# The kinds of function that a transactional step can have on a store: none, plain functions, or async functions.
Transacts = Literal["no", "plain", "async"]


class CommitStore(Protocol):
    """Writes. All changes of a run's state are batches. docs/decisions lists the other writes."""

    async def commit(self, batch: Batch) -> Committed:
        """Apply the batch in one transaction, or not at all. Return the results that only the transaction knows, for
        example which runs got a broadcast.

        The transaction changes the number in the engine's row from `batch.number - 1` to `batch.number`. If the row
        already has `batch.number`, the batch was committed before. Then return without writing. Raises CommitConflict
        if a key was used before, or if mail or a dead letter no longer exists. If a run that another living engine owns
        wins a wait in this transaction, that engine gets mail (kernel.mail.wake_mail).

        Streams and published values: this transaction sets the offsets of stream items. An item whose mark is already
        stored is not stored again. A published value with a mark is replaced only by a value with a greater mark. If
        the entries from number n on are archived, items whose marks are n or greater lose their marks. A published
        value whose mark is n or greater stays until another value with such a mark arrives. If a run gets another
        input, its items lose their marks, and any new value replaces its published values.

        Artifacts: an artifact of workflow code is not stored again if it is already stored. It is the same artifact if
        the run, `seq` and `number` are equal, and it has no position. Published artifacts get the next versions of
        their names, in the order of staging. If entries are archived, the artifacts that were staged with them or after
        them are removed. If a run continues, its artifacts are kept. They count as staged before all entries. When a
        run ends, chunks without an artifact are removed.

        Tasks: raises CommitConflict for an answer to a task that is not open or that another worker has.

        Cooperation: raises CommitConflict if the batch was made with another version of the handler registry. If a
        handler is seen for the first time, the registry gets a new version. Raises CommitRefused for a second event
        with the same scope and number, or with the same message and key.
        """

    def insertion(self, batch: Batch) -> Insertion:
        """Return the statements that insert one new run, or one message with its runs, in a caller's transaction. They
        write the same rows as `commit`. Nobody is notified before the caller's transaction is committed. The statements
        may be executed in any thread.

        The steps raise Misuse if the connection leads to another database, is read-only, or has no transaction. They
        raise RunExists if the id belongs to a run that the connection's user may not read. They raise HandlersChanged
        if the handlers have changed since the batch was made. After these errors nothing is written, and the caller's
        transaction can go on.

        Raises Misuse if users cannot connect to this kind of store.
        """

    @property
    def transacts(self) -> Transacts:
        """The kind of function that `transact` accepts as a body."""

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        """Let a step write to the user's tables and stage its result in one transaction. Return the staged result.

        `body` is called with a connection to the database, and returns the result to stage. `transacts` says which kind
        of function `body` must be. A plain function is called in the store's own thread. An async function is awaited
        here. If `body` raises, the transaction is rolled back, and the error is raised unchanged. If a result is
        already staged at this position, that result is returned, and `body` is not called. Only one transaction at a
        time can run for a position.

        Raises CommitConflict if the engine does not own the run with this claim. This is checked when the transaction
        begins, before `body` is called, and when it ends. Raises Fenced. Raises CommitRefused if the database refuses
        to commit. Raises OutcomeUnknown if the outcome is not known; then call again to find it out. Raises Misuse if
        this store has no transactions, or if `body` has ended its transaction. Raises StoreBusy if the database failed
        while `body` ran, whatever `body` raised. This does not count as a failure of the step.
        """
