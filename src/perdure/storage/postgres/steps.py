"""Transactional steps: a step's writes to its own tables, and its result, are in one transaction.

While a step runs, it has a connection of its own. There are only a few connections. Other steps wait until a connection
is free. Before the body begins, the transaction checks that this engine still owns the run. At the end, the transaction
checks this again, with locks. So the run's row is locked only as long as a commit takes, even if the step takes long.

A broken connection, a server without space, or a conflict with another transaction is not a failure of the step. It
raises StoreBusy. If a connection was lost and the server still has the session open, the session is ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final
from uuid import uuid4
from weakref import WeakValueDictionary

import asyncpg
from msgspec.structs import astuple

from perdure.errors import (
    CommitConflict,
    CommitRefused,
    EngineBug,
    Fenced,
    Misuse,
    OutcomeUnknown,
    PerdureError,
    StoreBusy,
    StoreError,
)
from perdure.kernel.rows import Staged
from perdure.ports import StepPlace
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.connection import Lanes, connect_step, step_rest_s
from perdure.storage.postgres.driver import Connection, Transaction
from perdure.storage.postgres.faults import (
    FAULTS,
    is_broken,
    is_definite,
    is_lost,
    is_of_the_server,
    is_passing,
    is_read_only,
)
from perdure.storage.postgres.liveness import SignsOfLife
from perdure.storage.postgres.reads import fetch
from perdure.storage.postgres.rows import staged_of

LANES: Final = 4  # how many transactional steps run at once, each with its own connection

_DEAD = 1
_LOST = 2
_BUSY = 4
_ANSWER_SHARE: Final = 0.8  # the longest wait for an answer to the store's own statements, as a part of the lease
_ANSWER_MIN_S: Final = 5.0  # the smallest value of this limit, because some statements wait for locks

# Methods that would take the connection away from the store.
_REFUSED: Final = frozenset({"close", "terminate", "reset", "add_listener", "add_termination_listener"})


Body = Callable[[Any], Awaitable[Staged]]


class StepConnection:
    """The connection that a step gets. It is asyncpg's connection without the methods that would end it. It can be used
    until the step ends.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection
        self.watched = connection
        self._faults: list[BaseException] = []  # errors of the server that no statement causes
        self._used_at = time.monotonic()
        self._lost_at: float | None = None
        connection.add_query_logger(self._note_query)
        connection.add_termination_listener(self._note_loss)

    def __getattr__(self, name: str) -> Any:
        if self._connection is None:
            raise Misuse("this connection belonged to a transactional step, which has ended")
        if name in _REFUSED:
            raise Misuse(f"{name}() does not work in a transactional step: the connection is the store's")
        if not self._connection.is_closed():
            self._used_at = time.monotonic()
        return getattr(self._connection, name)

    async def has_store_failed(self) -> bool:
        """Return whether the connection or the server has failed during the step so far."""
        if self._connection is None or self._connection.is_closed():
            return True
        try:
            await self._connection.execute("select 1")
        except FAULTS as error:
            if self._connection.is_closed() or is_broken(error):
                return True
        return bool(self._faults)

    async def fault(self, *, works: bool) -> BaseException | None:
        """Return the error of the store that made the step fail. Return None if the step failed by itself. This is
        called after the rollback.
        """
        if not works:
            return ConnectionError("the connection broke during the step")
        for fault in self._faults:
            if not is_read_only(fault) or await _refuses_writes(self.watched):
                return fault
        return None

    def has_rested(self, limit_s: float) -> bool:
        """Return whether the server ended the session because the step left it idle for too long.

        The driver does not report why the server ended an idle session. So the time decides.
        """
        lost_at = time.monotonic() if self._lost_at is None else self._lost_at
        return lost_at - self._used_at >= limit_s

    def close_to_step(self) -> None:
        """Close the connection for a step that has ended, so that tasks that the step has left behind cannot use it."""
        self._connection = None

    def end(self) -> None:
        """Stop watching the connection. The transaction has ended, so errors no longer matter."""
        self.watched.remove_query_logger(self._note_query)
        self.watched.remove_termination_listener(self._note_loss)

    def _note_query(self, query: Any) -> None:
        error: BaseException | None = query.exception
        if error is not None and (is_of_the_server(error) or is_read_only(error)):
            self._faults.append(error)

    def _note_loss(self, _connection: Any) -> None:
        self._lost_at = time.monotonic()


async def _refuses_writes(connection: Connection) -> bool:
    """Return whether the server accepts no writes at all. Return False if only this transaction is read-only."""
    question = "select pg_is_in_recovery() or current_setting('default_transaction_read_only')::boolean"
    try:
        return bool(await connection.fetchval(question))
    except FAULTS:
        return True


class _BodyFailed(Exception):
    """The step itself raised. All its writes are rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class StepTransactions:
    """Runs the bodies of steps, each in its own transaction."""

    def __init__(self, address: Address, others: Lanes, signs: SignsOfLife) -> None:
        """Set up the lanes of steps. `others` are lanes that ask the server about transactions whose connection was
        lost.
        """
        # The schema's name was checked when the URL was parsed. The functions themselves know their schema.
        self._entering = f'select state, (entry).* from "{address.schema}".enter_step_v2($1, $2, $3, $4, $5, $6)'  # noqa: S608
        self._staging = f'select "{address.schema}".stage_v2($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)'
        self._silence_ms = str(max(1, int(address.silence_s * 1000)))
        self._lanes = Lanes(address, "step", LANES, connect_step)
        self._turns = asyncio.Semaphore(LANES)
        self._rest_s = step_rest_s(address)
        self._silence_s = address.silence_s
        self._answer_s = max(_ANSWER_MIN_S, address.lease_s * _ANSWER_SHARE)
        self._others = others
        self._signs = signs
        self._alone: WeakValueDictionary[tuple[str, int, str], asyncio.Lock] = WeakValueDictionary()

    async def transact(self, place: StepPlace, body: Body) -> Staged:
        """Run a step's body in a transaction, as `CommitStore.transact` describes. Raises the body's own errors
        unchanged.
        """
        key = (place.run_id, place.claim, place.position)
        alone = self._alone.get(key)
        if alone is None:
            alone = self._alone[key] = asyncio.Lock()
        async with alone:
            try:
                return await self._in_turn(place, body)
            except (StoreBusy, OutcomeUnknown):
                # The server may not know yet that the connection is lost. This request does not wait for a free
                # connection. The open session keeps its locks, and all connections may be waiting for these locks.
                with suppress(StoreError):
                    await self._ask_others("end_step", place)
                raise

    async def _ask_others(self, query: str, place: StepPlace) -> Any:
        where = {"run": place.run_id, "claim": place.claim, "position": place.position}
        async with self._others.use() as connection:
            rows = await fetch(connection, query, **where, silence=timedelta(seconds=self._silence_s))
        return rows[0][0]

    async def _in_turn(self, place: StepPlace, body: Body) -> Staged:
        staged: Staged | None = None
        failure: BaseException | None = None
        async with self._turns, self._lanes.use() as connection:
            try:
                staged = await self._in_transaction(connection, place, body)
            except _BodyFailed as failed:
                failure = failed.error
            except BaseException as error:
                if not isinstance(error, Exception) or is_lost(error.__cause__ or error):
                    connection.terminate()
                is_ours = isinstance(error, (PerdureError, *FAULTS)) or not isinstance(error, Exception)
                if not is_ours and connection.is_closed():
                    # The connection was closed between two messages of one request. In this case the driver uses an
                    # attribute that it has already cleared.
                    raise asyncpg.ConnectionDoesNotExistError("the connection was cut during a request") from error
                await self._clean(connection)
                raise
            await self._clean(connection)
        if staged is None:
            raise failure or EngineBug("a step's transaction gave neither a result nor an error")
        return staged

    async def close(self) -> None:
        await self._lanes.close()

    def abandon(self) -> None:
        self._lanes.abandon()

    @contextmanager
    def _in_time(self, connection: Connection) -> Generator[None]:
        """Limit the time of the store's own statements. If an answer is missing, the connection is lost."""
        guard = asyncio.get_running_loop().call_later(self._answer_s, connection.terminate)
        try:
            yield
        finally:
            guard.cancel()

    async def _in_transaction(self, connection: Connection, place: StepPlace, body: Body) -> Staged:
        mark = f"{place.engine_id}:{uuid4()}"
        transaction = connection.transaction()
        guard: StepConnection | None = None
        with self._in_time(connection):
            await transaction.start()
        try:
            found = await self._enter(connection, place, mark)
            if found is not None:
                await self._roll_back(connection, transaction)
                return found
            guard = StepConnection(connection)
            staged = await self._called(guard, connection, place, body)
            state = await self._stage(connection, place, mark, staged)
        except _BodyFailed as failed:
            works = await self._roll_back(connection, transaction)
            if guard is not None and isinstance(failed.error, Exception):
                await self._check(guard, place, failed.error, works=works)
            raise
        except Exception:
            await self._roll_back(connection, transaction)
            raise
        finally:
            if guard is not None:
                guard.end()
        if state:
            await self._roll_back(connection, transaction)
            raise _refusal(state, place)
        await self._commit(connection, transaction, place)
        return staged

    async def _enter(self, connection: Connection, place: StepPlace, mark: str) -> Staged | None:
        """Check that this engine still owns the run. Return the staged result of the step, or None if nothing is staged
        yet.

        Raises Fenced, CommitConflict, StoreBusy.
        """
        with self._in_time(connection):
            row = await connection.fetchrow(
                self._entering, place.engine_id, place.epoch, place.run_id, place.claim, place.position, mark
            )
        if row is None:
            raise EngineBug("the beginning of a step's transaction gave no answer")
        if row[0]:
            raise _refusal(row[0], place)
        if row[1] is not None:
            return staged_of(row[1:])
        if not self._signs.is_lasting():
            # The process may have been stopped while it waited for the answer.
            async with self._others.use() as other:
                await self._signs.renew(other)
            if not self._signs.is_lasting():
                raise Fenced(f"engine {place.engine_id!r} has lost its sign of life", engine_id=place.engine_id)
        return None

    async def _commit(self, connection: Connection, transaction: Transaction, place: StepPlace) -> None:
        try:
            with self._in_time(connection):
                await transaction.commit()
        except Exception as error:
            if is_lost(error) or connection.is_closed():
                raise OutcomeUnknown(
                    f"the connection broke at the end of a step of run {place.run_id!r}: {error}"
                ) from error
            if is_definite(error) and not is_passing(error):
                raise CommitRefused(f"the database refused to commit what the step wrote: {error}") from error
            raise

    async def _called(self, guard: StepConnection, connection: Connection, place: StepPlace, body: Body) -> Staged:
        watch = asyncio.get_running_loop().create_task(self._watch(connection, place), name="perdure-step-watch")
        try:
            return await body(guard)
        except BaseException as error:
            raise _BodyFailed(error) from error
        finally:
            watch.cancel()
            guard.close_to_step()

    async def _watch(self, connection: Connection, place: StepPlace) -> None:
        """If the server no longer has the transaction, close the connection by force, because no answer would ever
        come.
        """
        while True:
            await asyncio.sleep(self._silence_s)
            with suppress(StoreError):
                if not await self._ask_others("is_step_open", place):
                    connection.terminate()
                    return

    async def _check(self, guard: StepConnection, place: StepPlace, error: Exception, *, works: bool) -> None:
        """Raise StoreBusy if the step failed because of the store. Otherwise the step itself has failed."""
        with self._in_time(guard.watched):
            fault = await guard.fault(works=works)
        if fault is None:
            return
        if not works and not _is_in_flight(error) and guard.has_rested(self._rest_s):
            error.add_note(
                f"The step left its transaction idle for more than {self._rest_s:.0f} s, and the server ended the"
                " session: do what takes long in another step"
            )
            return
        raise StoreBusy(
            f"the database failed during a step of run {place.run_id!r}; nothing was written ({fault}; the step raised"
            f" {type(error).__name__}: {error})"
        ) from fault

    async def _stage(self, connection: Connection, place: StepPlace, mark: str, staged: Staged) -> int:
        try:
            with self._in_time(connection):
                state: int = await connection.fetchval(
                    self._staging, self._silence_ms, place.engine_id, place.epoch, mark, *astuple(staged)
                )
        except Exception as error:
            # The step itself has failed. It left the transaction idle for too long, left a statement running, or caught
            # the error of a statement and went on. If the connection broke instead, the rollback finds that out.
            if is_lost(error) or isinstance(error, asyncpg.InFailedSQLTransactionError):
                raise _BodyFailed(error) from error
            raise
        return state

    async def _roll_back(self, connection: Connection, transaction: Transaction) -> bool:
        """Roll back. If that is not possible, close the connection by force, so that the server rolls back. Returns
        whether the connection still worked.
        """
        if connection.is_closed():
            return False
        try:
            with self._in_time(connection):
                await transaction.rollback()
        except BaseException as error:
            is_lost_before = connection.is_closed() or is_broken(error)
            connection.terminate()
            if not isinstance(error, Exception):
                raise
            return not is_lost_before
        return True

    async def _clean(self, connection: Connection) -> None:
        """Reset the session, so that the next step finds no settings and no locks of this step."""
        try:
            if not connection.is_closed():
                with self._in_time(connection):
                    await connection.reset()
        except Exception:  # noqa: BLE001 - the driver may use an attribute that it has cleared
            connection.terminate()


def _is_in_flight(error: BaseException | None) -> bool:
    """Return whether a statement was running when the connection broke."""
    while error is not None:
        if isinstance(error, asyncpg.ConnectionDoesNotExistError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _refusal(state: int, place: StepPlace) -> Exception:
    if state == _DEAD:
        return Fenced(f"engine {place.engine_id!r} was marked dead", engine_id=place.engine_id)
    if state == _LOST:
        return CommitConflict(frozenset({place.run_id}))
    if state == _BUSY:
        return StoreBusy(f"another transaction of the same step of run {place.run_id!r} has not ended yet")
    return _BodyFailed(
        Misuse(
            "the step has ended its transaction itself: it is committed with its result when it returns, and not"
            " before. What it has committed stays"
        )
    )


__all__ = ["LANES", "StepConnection", "StepTransactions"]
