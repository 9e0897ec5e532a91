"""A thread with a connection of its own, and a queue of work for it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from perdure.errors import StoreBroken, StoreError
from perdure.storage.sqlite.checkpoints import Checkpoints
from perdure.storage.sqlite.faults import BINDING_ERRORS, store_fault

T = TypeVar("T")

_Work = Callable[[sqlite3.Connection], Any]
_Order = tuple[_Work, asyncio.AbstractEventLoop, "asyncio.Future[Any]"]


class DatabaseThread:
    """Does work on one connection, one piece after the other, in the order asked for.

    Work is never interrupted: who stops waiting for it does not undo it. The thread is a daemon, so that a program
    that forgets to close its store still ends. With `checkpoints`, they are made when there is nothing else to do.
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
        """Connect. Raises what connecting raises, as a StoreError."""
        self._thread.start()
        try:
            await self.run(lambda _: None)
        except BaseException:
            self.abandon()
            raise

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Have work done; its result. Raises StoreError instead of SQLite's own errors."""
        if self._stopping:
            raise _closed(self._path)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._orders.put((work, loop, future))
        return await future

    def keep(self, connection: sqlite3.Connection) -> None:
        """From the thread itself: have another connection closed in the end."""
        self._also.append(connection)

    async def stop(self) -> None:
        """Do what was asked for, then close the connection."""
        if not self._stopping:
            self._stopping = True
            # Not with the loop's executor: a program that closes its store at its very end has none any more.
            loop = asyncio.get_running_loop()
            closed: asyncio.Future[None] = loop.create_future()
            self._orders.put((sqlite3.Connection.close, loop, closed))
            self._orders.put(None)
            with suppress(StoreError):
                await closed

    def abandon(self) -> None:
        """Do nothing any more but what is being done at this moment."""
        self._abandoned = True
        if not self._stopping:
            self._stopping = True
            self._orders.put(None)

    def _main(self) -> None:
        connection: sqlite3.Connection | None = None
        while (order := self._next(connection)) is not None:
            work, loop, future = order
            result: object = None
            error: BaseException | None = None
            try:
                if self._abandoned:
                    raise _closed(self._path)
                if connection is None:
                    connection = self._connect(self._path)
                result = work(connection)
            except (sqlite3.Error, *BINDING_ERRORS) as fault:
                error = store_fault(fault, self._path)
                error.__cause__ = fault
            except BaseException as fault:  # noqa: BLE001 - whatever it is, it belongs to who asked
                error = fault
            with suppress(RuntimeError):  # The loop was closed: nobody waits for the answer any more.
                loop.call_soon_threadsafe(_answer, future, result, error)
            del order, work, loop, future, result, error
        for opened in (*self._also, *([] if connection is None else [connection])):
            opened.close()

    def _next(self, connection: sqlite3.Connection | None) -> _Order | None:
        """What to do next, as soon as there is something."""
        if self._checkpoints is None or connection is None or self._stopping:
            return self._orders.get()
        while (patience_s := self._checkpoints.patience_s(connection)) is not None:
            try:
                return self._orders.get(timeout=patience_s)
            except Empty:
                self._checkpoints.bring_in(connection)
        return self._orders.get()


def _answer(future: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    if future.done():
        return  # Who asked stopped waiting.
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _closed(path: Path) -> StoreError:
    return StoreBroken(f"the store on {path} is closed; open another one", path=path)
