"""The handler registry as this process knows it. It says which operations handle which topics.

A commit that emits messages contains the version of the registry that the emission used. After a new handler is
registered, runs that wait for handlers are notified of it. The commit that registers a handler also stores a mark. The
mark says that these runs must still be notified. The mark is stored as a handler of a topic on which no message is
emitted. If the process dies before it has notified the runs, the next process that reads the registry finds the mark
and notifies them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, Final

import msgspec

from perdure.kernel.cooperation import HandlerList
from perdure.kernel.ops import Op, RegisterHandlers, RetireHandlers
from perdure.models.cooperation.strategies import Handlers
from perdure.ports import Ids, Store

# The handlers of this topic are marks of new handlers that were not announced to all waiting runs yet.
_MARKS: Final = "perdure.unannounced"
# the topic that earlier versions of Perdure used; their marks have no ids
_UNANNOUNCED_BEFORE: Final = "perdure.untold"

Pair = tuple[str, str]  # topic, name

# A topic, a name, and an id. A handler that is registered again gets a new mark with a new id. So a process that
# announced the old mark cannot remove the new mark.
Mark = tuple[str, str, str]


class HandlerRegistry:
    """The handlers of all topics. They are read when they are first needed, and again when a commit has found them
    outdated.
    """

    def __init__(self, store: Store, submit: Callable[[Op], Awaitable[Any]], ids: Ids) -> None:
        self._store = store
        self._submit = submit
        self._ids = ids
        self._version: int | None = None
        self.topics: dict[str, Handlers] = {}
        self.unannounced: frozenset[Mark] = frozenset()  # new handlers that were not announced to all waiting runs yet

    @property
    def version(self) -> int:
        return self._version or 0

    async def register(self, handlers: Sequence[Pair], at: int) -> None:
        """Register handlers. From now on, emitters expect them. New handlers are `unannounced`. Raises StoreError."""
        await self.load(again=True)
        known = {topic: self.topics[topic].registered for topic, _ in handlers if topic in self.topics}
        if new := [pair for pair in handlers if pair[1] not in known.get(pair[0], ())]:
            marks = [_stored((*pair, self._ids(at))) for pair in new]
            await self._submit(RegisterHandlers(run_id="", at=at, handlers=(*handlers, *marks)))
            await self.load(again=True)

    async def retire(self, handlers: Sequence[Pair], at: int) -> bool:
        """Remove handlers from the registry. Return whether at least one of them was registered. Raises StoreError."""
        was_known: bool = await self._submit(RetireHandlers(run_id="", at=at, handlers=tuple(handlers)))
        await self.load(again=True)
        return was_known

    async def announced(self, marks: Collection[Mark], at: int) -> None:
        """Remove the marks of handlers of which all waiting runs were notified. Raises StoreError."""
        await self.retire([_stored(mark) for mark in sorted(marks)], at)

    async def load(self, *, again: bool = False) -> None:
        """Read the registry from the store, unless it was read before. With `again`, always read it. Raises
        StoreError.
        """
        if again or self._version is None:
            self._take(await self._store.handlers())

    def is_seen(self, topic: str, name: str) -> bool:
        """Return whether this process knows that a handler has taken a message of the topic before."""
        known = self.topics.get(topic)
        return known is not None and name in known.seen

    def _take(self, stored: HandlerList) -> None:
        if self._version is not None and stored.version < self._version:
            return  # A newer version of the registry was read in the meantime.
        self._version = stored.version
        topics: dict[str, list[set[str]]] = {}
        unannounced: set[Mark] = set()
        for row in stored.handlers:
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
    """Return a mark as a row of the registry."""
    topic, name, id = mark
    if id:
        return _MARKS, msgspec.json.encode(mark).decode()
    return _UNANNOUNCED_BEFORE, msgspec.json.encode((topic, name)).decode()


_read_mark: Final = msgspec.json.Decoder(Mark).decode
_read_pair: Final = msgspec.json.Decoder(Pair).decode
