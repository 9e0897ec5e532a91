"""A thread with a connection of its own, and a queue of work."""

from __future__ import annotations

import asyncio
import math
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from perdure.errors import StoreBroken, StoreError
from perdure.storage.sqlite.checkpoints import Checkpoints
from perdure.storage.sqlite.faults import BINDING_ERRORS, is_locked, store_fault

T = TypeVar("T")

_Work = Callable[[sqlite3.Connection], Any]
_Order = tuple[_Work, asyncio.AbstractEventLoop, "asyncio.Future[Any]", float]


class DatabaseThread:
    """Does pieces of work on one connection, one after the other, in the order in which they were submitted.

    Work is never interrupted. If a caller stops waiting, its work is still done. If the file is locked for too long,
    all work that was submitted in this time fails with the same error. Otherwise each piece of work would wait for the
    lock again.

    The thread is a daemon. So a program that forgets to close its store still ends. With `checkpoints`, the thread
    makes checkpoints when it has no other work.
    """

    def __init__(
        self,
        name: str,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection],
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self._path = path
        self._connect = connect
        self._checkpoints = checkpoints
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        self._abandoned = False
        self._stopping = False
        self._also: list[sqlite3.Connection] = []
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)

    async def start(self) -> None:
        """Connect. Raises a StoreError if that fails."""
        self._thread.start()
        try:
            await self.run(lambda _: None)
        except BaseException:
            self.abandon()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Do work in the thread and return its result. Errors of SQLite become StoreErrors."""
        if self._stopping:
            raise _closed(self._path)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._orders.put((work, loop, future, time.monotonic()))
        return await future

    def keep(self, connection: sqlite3.Connection) -> None:
        """Also close another connection at the end. This must be called in the thread itself."""
        self._also.append(connection)

    async def stop(self) -> None:
        """Do the work that was submitted, and then close the connection."""
        if not self._stopping:
            self._stopping = True
            # This does not use the loop's executor, because it no longer exists when a program closes its store at its
            # very end.
            loop = asyncio.get_running_loop()
            closed: asyncio.Future[None] = loop.create_future()
            self._orders.put((sqlite3.Connection.close, loop, closed, math.inf))
            self._orders.put(None)
            with suppress(StoreError):
                await closed

    def abandon(self) -> None:
        """Do no more work after the current piece."""
        self._abandoned = True
        if not self._stopping:
            self._stopping = True
            self._orders.put(None)

    def _main(self) -> None:
        connection: sqlite3.Connection | None = None
        locked: sqlite3.Error | None = None
        locked_until = 0.0
        while (order := self._next(connection)) is not None:
            work, loop, future, asked_at = order
            result: object = None
            error: BaseException | None = None
            try:
                if self._abandoned:
                    raise _closed(self._path)
                if locked is not None and asked_at < locked_until:
                    raise locked
                if connection is None:
                    connection = self._connect(self._path)
                result = _done(work, connection)
            except (sqlite3.Error, *BINDING_ERRORS) as fault:
                error = store_fault(fault, self._path)
                error.__cause__ = fault
                if is_locked(fault) and fault is not locked:
                    locked, locked_until = fault, time.monotonic()
            except BaseException as fault:  # noqa: BLE001 - whatever it is, it goes to the caller
                error = fault
            with suppress(RuntimeError):  # The loop was closed, so nobody waits for the result.
                loop.call_soon_threadsafe(_answer, future, result, error)
            del order, work, loop, future, result, error
        for opened in (*self._also, *([] if connection is None else [connection])):
            opened.close()

    def _next(self, connection: sqlite3.Connection | None) -> _Order | None:
        """Wait for the next piece of work, and return it."""
        if self._checkpoints is None or connection is None or self._stopping:
            return self._orders.get()
        while (patience_s := self._checkpoints.patience_s(connection)) is not None:
            try:
                return self._orders.get(timeout=patience_s)
            except Empty:
                self._checkpoints.bring_in(connection)
        return self._orders.get()


def _done(work: _Work, connection: sqlite3.Connection) -> object:
    """Do work, and return its result.

    Damaged text that is not UTF-8 is read as bytes, so that an error can show it.
    """
    try:
        return work(connection)
    except sqlite3.OperationalError as error:
        if "Could not decode to UTF-8" not in str(error) or connection.in_transaction:
            raise
    connection.text_factory = _text_or_bytes
    try:
        return work(connection)
    finally:
        connection.text_factory = str


def _text_or_bytes(stored: bytes) -> str | bytes:
    try:
        return stored.decode()
    except UnicodeDecodeError:
        return stored


def _answer(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # The caller has stopped waiting.
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _closed(path: Path) -> StoreError:
    return StoreBroken(f"the store on {path} is closed; open another one", path=path)
