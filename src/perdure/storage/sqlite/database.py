"""A store's connections to its file: a thread that writes, a thread that reads, and the hints about changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from perdure.errors import CommitRefused, Misuse, StoreBroken, UnstorableValue
from perdure.storage.local_hints import Neighbour
from perdure.storage.sqlite.checkpoints import Checkpoints
from perdure.storage.sqlite.connection import connect_reader, connect_writer
from perdure.storage.sqlite.hints import LogWatch, Writes
from perdure.storage.sqlite.liveness import SignsOfLife
from perdure.storage.sqlite.lost_commits import FileWatch
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.thread import DatabaseThread

T = TypeVar("T")


class Database:
    """The state that all slices of a store share. It is opened once."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.signs = SignsOfLife(path)
        self.writer = DatabaseThread("perdure-sqlite-writer", path, connect_writer, Checkpoints())
        self.reader = DatabaseThread("perdure-sqlite-reader", path, connect_reader)
        self.files = FileWatch(path)
        self.neighbour = Neighbour(f"sqlite {path}")
        self._writes = Writes()
        self._watch: LogWatch | None = None
        self._state = "new"

    async def open(self) -> None:
        if self._state != "new":
            raise Misuse(f"the store on {self.path} was opened before; make another one")
        self._state = "open"
        try:
            await self.writer.start()
            await self.reader.start()
        except BaseException:
            self.abandon()
            raise

    async def close(self) -> None:
        if self._state == "open":
            self._state = "closed"
            self._stop_listening()
            try:
                await self.reader.stop()
                await self.writer.stop()
            except BaseException:
                self.reader.abandon()
                self.writer.abandon()
                raise
            finally:
                # If the file was replaced, the lock files stay. The numbers in them show the next engine which commits
                # are missing in the file.
                is_log_gone = not self.path.with_name(f"{self.path.name}-wal").exists()
                self.signs.end(tidy=not self.files.is_replaced, is_log_gone=is_log_gone)

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            self._stop_listening()
            # A write in progress either succeeds, or is fenced by the engine that finds this sign of life missing.
            self.writer.abandon()
            self.reader.abandon()
            self.signs.end(tidy=False)

    def listen(self, on_change: Callable[[], object]) -> None:
        self._watch = LogWatch(self.path, on_change, self._writes)
        self.neighbour.listen(on_change)

    def _stop_listening(self) -> None:
        self.neighbour.leave()
        if self._watch is not None:
            self._watch.end()

    async def write(self, work: Callable[[sqlite3.Connection], T], *, then: Callable[[], object] | None = None) -> T:
        """Do work that writes, and call `then` once the written data is known to be kept."""
        self.check_open()
        return await self.writer.run(partial(self._writes.do, partial(self.files.kept, work, then=then)))

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        self.check_open()
        try:
            return await self.reader.run(work)
        except CommitRefused as error:
            raise UnstorableValue(f"nothing in a store can match this: {error}") from error

    async def fetch(self, query: str, variables: Mapping[str, object]) -> list[tuple[Any, ...]]:
        return await self.read(lambda connection: connection.execute(QUERIES[query], variables).fetchall())

    def check_open(self) -> None:
        """Raise StoreBroken unless the store is open."""
        if self._state != "open":
            raise StoreBroken(f"the store on {self.path} is {self._state}, not open", path=self.path)


class SqliteSlice:
    """A part of the store, for one noun. It needs only the connection to the file."""

    def __init__(self, db: Database) -> None:
        self._db = db
