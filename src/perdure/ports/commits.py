"""Writing: a batch of an engine, rows in a caller's own transaction, and a step's transaction."""

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
    """A statement to execute on a caller's own connection. The text has the database's own placeholders: $1, $2, … for
    Postgres; ?, or names, for SQLite. A statement that `writes` needs an open transaction."""

    sql: str
    parameters: tuple[Any, ...] | Mapping[str, Any] = ()
    writes: bool = False


Rows = Sequence[Sequence[Any]]


class TakenRun(Struct, frozen=True, kw_only=True):
    """An existing run that has the id of a new start, with the fields that are needed to compare both starts."""

    id: str
    workflow: str
    origin: str
    input: str


class TakenMessage(Struct, frozen=True, kw_only=True):
    """An existing message that has the id of a new emission."""

    message_id: str
    scope: str  # its root


Taken = TakenRun | TakenMessage | None


class Insertion(Struct, frozen=True):
    """The statements with which a caller's own connection inserts a new run, or a message with its runs. The generator
    `steps` yields statements, and is sent their rows. If a statement raises, the error is thrown into `steps`. It
    returns None if the rows were inserted. Otherwise it returns the existing run or message that has the id."""

    database: str  # postgresql | sqlite
    steps: Generator[Statement, Rows, Taken]


# The step functions that can write to the user's tables in a transaction of the store: none, plain functions, or async
# functions.
Transacts = Literal["no", "plain", "async"]


class CommitStore(Protocol):
    """Writes. All changes of state are batches. docs/decisions lists the other writes."""

    async def commit(self, batch: Batch) -> Committed:
        """Apply the batch in one transaction, or not at all. Return the results for its broadcasts and waits.

        The transaction moves the engine's row from `batch.number - 1` to `batch.number`. If the row already has
        `batch.number`, the batch was committed before: return without writing. Raises CommitConflict if a key was used
        before, or if mail or a dead letter is gone. If a run that another living engine owns wins something here, that
        engine gets mail (kernel.mail.wake_mail).

        Streams and published values: the items of a stream get their offsets here. An item with a mark that is stored
        already is not stored again. A published value with a mark is replaced only by a value with a greater mark. If
        the entries from number n on are archived, items with marks from n on lose their marks. A published value with a
        mark from n on stays until another value with a mark from n on comes. If a run gets another input, its items
        lose their marks, and any new value replaces its values.

        Artifacts: an artifact of workflow code that is stored already (the same run, `seq` and `number`, no position)
        is not stored again. Published artifacts get the next versions of their names, in the order of staging. If
        entries are archived, the artifacts staged with or after them are removed. If a run continues, its artifacts are
        kept, as if they had been staged before any entry. At the end of a run, chunks without an artifact are removed.

        Tasks: raises CommitConflict for an answer to a task that is not open, or that another worker has.

        Cooperation: raises CommitConflict if the batch names another version of the handler registry than the current
        version. A handler that is seen for the first time changes the registry. Raises CommitRefused for a second event
        with the same scope and number, or with the same message and key.
        """

    def insertion(self, batch: Batch) -> Insertion:
        """Return the insertion of one new run, or of one message with its runs, in a caller's transaction. It writes
        the rows that `commit` would write. Nobody is notified before that transaction is committed. It may be executed
        in any thread.

        Its steps raise Misuse if the connection leads to another database, is read-only, or has no transaction. They
        raise RunExists if the id is taken by a run that the connection's user may not read, and HandlersChanged if the
        handlers have changed since the batch was made. Then nothing is written, and the caller's transaction goes on.

        Raises Misuse if users cannot connect to a store of this kind."""

    @property
    def transacts(self) -> Transacts:
        """The kind of function that `transact` accepts as a body."""

    async def transact(self, place: StepPlace, body: Callable[[Any], Any], /) -> Staged:
        """Let a step write to the user's tables and stage its result, in one transaction. Return the staged result.

        `body` gets a connection to the database, and returns the result to stage. `transacts` says whether `body` must
        be a plain function, which is called in the store's own thread, or an async function, which is awaited here. If
        `body` raises, the transaction is rolled back, and the error is raised unchanged. If a result is already staged
        at this position, that result is returned, and `body` is not called. A position has one transaction at a time.

        Raises CommitConflict if the engine does not own the run with this claim, when the transaction begins (then
        `body` is not called) or when it ends. Raises Fenced; CommitRefused if the database refuses to commit;
        OutcomeUnknown, and then another call finds out the outcome; Misuse if this store has no transactions, or if
        `body` ended its transaction. Raises StoreBusy if the database failed under `body`, whatever `body` raised then:
        that does not count as a failure of the step.
        """
