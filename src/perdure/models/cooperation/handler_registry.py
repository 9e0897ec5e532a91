"""Who handles what: the book of handlers as this process knows it. Whoever emits says which version it went by.

Those who wait for handlers are told of new ones after these were registered. That this is still to be done stands in
the book too, as a handler of a topic that nobody emits on, from the same commit on: if a process dies in between, the
next one that looks into the book does it.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from perdure.kernel.cooperation import HandlerBook
from perdure.models.cooperation.strategies import Handlers
from perdure.ports import Ids, Store

# The handlers of this topic are marks: new handlers of which not all know who wait.
_MARKS: Final = "perdure.unannounced"
_UNANNOUNCED_BEFORE: Final = "perdure.untold"  # The same of earlier versions, whose marks have no ids.

Pair = tuple[str, str]  # topic, name

# A topic, a name, and an id: a handler that is registered again has a new mark, which nobody strikes out unseen.
Mark = tuple[str, str, str]


class HandlerRegistry:
    """Read when it is first needed, and again when a commit has found it old."""

    def __init__(self, store: Store, ids: Ids) -> None:
        self._store = store
        self._ids = ids
        self._version: int | None = None
        self.topics: dict[str, Handlers] = {}
        self.unannounced: frozenset[Mark] = frozenset()  # new handlers that not all know of who wait

    @property
    def version(self) -> int:
        return self._version or 0

    async def register(self, handlers: Sequence[Pair], at: int) -> None:
        """Have these expected from now on. Those that were not before are `unannounced`. Raises StoreError."""
        await self.load(again=True)
        known = {topic: self.topics[topic].registered for topic, _ in handlers if topic in self.topics}
        if new := [pair for pair in handlers if pair[1] not in known.get(pair[0], ())]:
            marks = [_stored((*pair, self._ids(at))) for pair in new]
            self._take(await self._store.register([*handlers, *marks], at=at))

    async def told(self, marks: Collection[Mark], at: int) -> None:
        """All who waited when these were registered know of them. Raises StoreError."""
        for mark in sorted(marks):
            await self._store.unregister(*_stored(mark), at=at)
        await self.load(again=True)

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
        unannounced: set[Mark] = set()
        for row in book.handlers:
            if row.topic in (_MARKS, _UNANNOUNCED_BEFORE):
                if row.retired_at is None:
                    unannounced.add(_read_mark(row.name) if row.topic == _MARKS else (*_read_pair(row.name), ""))
                continue
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
        self.unannounced = frozenset(unannounced)


def _stored(mark: Mark) -> Pair:
    """A mark as a row of the book."""
    topic, name, id = mark
    if id:
        return _MARKS, msgspec.json.encode(mark).decode()
    return _UNANNOUNCED_BEFORE, msgspec.json.encode((topic, name)).decode()


_read_mark: Final = msgspec.json.Decoder(Mark).decode
_read_pair: Final = msgspec.json.Decoder(Pair).decode
