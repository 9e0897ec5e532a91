"""A store's connection to the database: whether it is open, and which engines it has registered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from perdure.errors import Misuse, StoreBroken
from perdure.storage.memory.database import MemoryDatabase


class Connection:
    """The state that all slices of a store share. It is opened once."""

    def __init__(self, database: MemoryDatabase) -> None:
        self.database = database
        self.enrolled: set[str] = set()
        self._state = "new"

    def open(self) -> None:
        if self._state != "new":
            raise Misuse("this store was opened before; make another one on the same database")
        self._state = "open"

    def abandon(self) -> None:
        if self._state == "open":
            self._state = "closed"
            self.database.listeners.pop(self, None)
            with self.database.lock:
                self.database.living -= self.enrolled

    def opened(self) -> MemoryDatabase:
        """Return the database. Raises StoreBroken unless the store is open."""
        if self._state != "open":
            raise StoreBroken(f"this store is {self._state}, not open")
        return self.database

    def listen(self, on_change: Callable[[], object]) -> None:
        self.database.listeners[self] = on_change

    def notify_others(self) -> None:
        """Notify the other stores of this database, because a write may concern them."""
        for store, on_change in self.database.listeners.items():
            if store is not self:
                asyncio.get_running_loop().call_soon(on_change)


class MemorySlice:
    """A part of the store, for one noun. It needs only the connection to the database."""

    def __init__(self, db: Connection) -> None:
        self._db = db
