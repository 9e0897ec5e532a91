"""Who handles what: the book of handlers as this process knows it. Whoever emits says which version it went by."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.kernel.cooperation import HandlerBook
from perdure.models.cooperation.strategies import Handlers
from perdure.ports import Store


class Book:
    """Read when it is first needed, and again when a commit has found it old."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._version: int | None = None
        self.topics: dict[str, Handlers] = {}

    @property
    def version(self) -> int:
        return self._version or 0

    async def register(self, handlers: Sequence[tuple[str, str]], at: int) -> set[str]:
        """Have these (topic, name) expected from now on; the topics that have a handler more than before. Raises
        StoreError."""
        await self.load(again=True)
        new = {
            topic for topic, name in handlers if topic not in self.topics or name not in self.topics[topic].registered
        }
        if new:
            self._take(await self._store.register(handlers, at=at))
        return new

    async def load(self, *, again: bool = False) -> None:
        """Raises StoreError."""
        if again or self._version is None:
            self._take(await self._store.handlers())

    def is_seen(self, topic: str, name: str) -> bool:
        """Whether a handler has taken a message of a topic before, as far as is known."""
        known = self.topics.get(topic)
        return known is not None and name in known.seen

    def _take(self, book: HandlerBook) -> None:
        if self._version is not None and book.version < self._version:
            return  # A newer answer came first.
        self._version = book.version
        topics: dict[str, list[set[str]]] = {}
        for row in book.handlers:
            registered, seen, retired = topics.setdefault(row.topic, [set(), set(), set()])
            if row.registered_at is not None and row.retired_at is None:
                registered.add(row.name)
            if row.retired_at is not None:
                retired.add(row.name)
            if row.seen_at is not None:
                seen.add(row.name)
        self.topics = {
            topic: Handlers(registered=frozenset(registered), seen=frozenset(seen), retired=frozenset(retired))
            for topic, (registered, seen, retired) in topics.items()
        }
