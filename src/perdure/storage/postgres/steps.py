"""Transactional steps: what a step writes to tables of its own, and what it came to, in one transaction.

Each has a connection to itself for as long as it runs; there are a few, and others wait for their turn. The fence comes
last: so the run's row is locked for no longer than a commit takes, however long the step does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final
from uuid import uuid4

import asyncpg
from msgspec.structs import astuple

from perdure.errors import CommitConflict, EngineBug, Fenced, Misuse, OutcomeUnknown
from perdure.kernel.records import Staged
from perdure.ports import StepPlace
from perdure.storage.postgres.address import Address
from perdure.storage.postgres.connection import Connection, Lanes, Transaction, connect_step
from perdure.storage.postgres.faults import is_lost
from perdure.storage.postgres.rows import staged_of

LANES: Final = 4  # transactional steps that run at once, each on a connection; opened as they are needed

_DEAD = 1
_LOST = 2

# What would take the connection away from the store.
_REFUSED: Final = frozenset({"close", "terminate", "reset", "add_listener", "add_termination_listener"})


Body = Callable[[Any], Awaitable[Staged]]


class StepConnection:
    """The connection that a step has: asyncpg's, but for what would end it. Works until the step ends."""

    def __init__(self, connection: Connection) -> None:
        self._connection: Connection | None = connection

    def __getattr__(self, name: str) -> Any:
        if self._connection is None:
            raise Misuse("this connection belonged to a transactional step, which has ended")
        if name in _REFUSED:
            raise Misuse(f"{name}() does not work in a transactional step: the connection is the store's")
        return getattr(self._connection, name)

    def end(self) -> None:
        self._connection = None


class _BodyFailed(Exception):
    """The step itself raised; all that it wrote is rolled back."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error


class StepTransactions:
    """Bodies of steps, each in its transaction."""

    def __init__(self, address: Address) -> None:
        # The schema's name was checked when the URL was read; the functions themselves know where they belong.
        self._entering = f'select * from "{address.schema}".enter_step_v1($1, $2, $3)'  # noqa: S608
        self._staging = f'select "{address.schema}".stage_v1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)'
        self._lanes = Lanes(address, "step", LANES, connect_step)
        self._turns = asyncio.Semaphore(LANES)

    async def transact(self, place: StepPlace, body: Body) -> Staged:
        """As the port says. Raises what the body raises as it is."""
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
                await _clean(connection)
                raise
            await _clean(connection)
        if staged is None:
            raise failure or EngineBug("a transaction came to nothing")
        return staged

    async def close(self) -> None:
        await self._lanes.close()

    def abandon(self) -> None:
        self._lanes.abandon()

    async def _in_transaction(self, connection: Connection, place: StepPlace, body: Body) -> Staged:
        mark = f"{place.engine_id}:{uuid4()}"
        transaction = connection.transaction()
        await transaction.start()
        try:
            row = await connection.fetchrow(self._entering, place.run_id, place.position, mark)
            if row is not None:
                await transaction.rollback()
                return staged_of(row)
            staged = await _called(connection, body)
            state = await self._stage(connection, place, mark, staged)
        except Exception:
            await _roll_back(connection, transaction)
            raise
        if state:
            await _roll_back(connection, transaction)
            raise _refusal(state, place)
        try:
            await transaction.commit()
        except Exception as error:
            if is_lost(error):
                raise OutcomeUnknown(
                    f"the connection broke at the end of a step of run {place.run_id!r}: {error}"
                ) from error
            raise
        return staged

    async def _stage(self, connection: Connection, place: StepPlace, mark: str, staged: Staged) -> int:
        try:
            state: int = await connection.fetchval(self._staging, place.engine_id, place.epoch, mark, *astuple(staged))
        except Exception as error:
            # It has let the transaction rest for too long, or something of it is still under way, or it has caught the
            # error of a statement and gone on as if nothing had been: trying again is for its policy to decide.
            if is_lost(error) or isinstance(error, asyncpg.InFailedSQLTransactionError):
                raise _BodyFailed(error) from error
            raise
        return state


async def _called(connection: Connection, body: Body) -> Staged:
    guard = StepConnection(connection)
    try:
        return await body(guard)
    except BaseException as error:
        raise _BodyFailed(error) from error
    finally:
        guard.end()


async def _roll_back(connection: Connection, transaction: Transaction) -> None:
    """Or cut the connection: then the server does it."""
    try:
        if not connection.is_closed():
            await transaction.rollback()
    except BaseException as error:
        connection.terminate()
        if not isinstance(error, Exception):
            raise


async def _clean(connection: Connection) -> None:
    """The next step finds nothing of what this one has set or locked for its session."""
    try:
        if not connection.is_closed():
            await connection.reset()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, OSError):
        connection.terminate()


def _refusal(state: int, place: StepPlace) -> Exception:
    if state == _DEAD:
        return Fenced(f"engine {place.engine_id!r} was marked dead", engine_id=place.engine_id)
    if state == _LOST:
        return CommitConflict(frozenset({place.run_id}))
    return _BodyFailed(
        Misuse(
            "the step has ended its transaction itself: it is committed with its result when it returns, and not"
            " before. What it has committed stays"
        )
    )


__all__ = ["LANES", "StepConnection", "StepTransactions"]
