"""Callers from outside who wait for a store that does not answer. Each of them gets StoreUnavailable after
`patience_s`.

A request may fail again and again, or hang. So callers are checked after each failure, and once a second while a
request is under way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Literal, TypeVar

from perdure.coordinator.call_spans import Silences, call_began
from perdure.coordinator.caller_patience import unavailable
from perdure.coordinator.inbox import Inbox
from perdure.coordinator.queued_ops import Item
from perdure.errors import StoreError, StoreUnavailable

_LOOK_EVERY_S: Final = 1.0

T = TypeVar("T")

Kind = Literal["read", "commit"]


class Callers:
    """Finds the callers that have waited too long, and gives them the error. It may be used only on the loop."""

    def __init__(self, inbox: Inbox, patience_s: float) -> None:
        self._inbox = inbox
        self._patience_s = patience_s
        self._batch: Sequence[Item] = ()
        self._has_given_up = False  # True if a caller whose op is in the current batch has given up
        self._is_committing = False
        self._unanswered: dict[Kind, float] = {}  # by kind of request: the time since which the store has not answered
        self._failure: StoreError | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.silences = Silences()
        self.looked: Callable[[], object] | None = None  # called each time after callers were checked

    def begin(self) -> None:
        """Note that a batch was taken from the inbox. The batch has no ops of callers who have given up."""
        self._has_given_up = False

    def asking(self, kind: Kind, batch: Sequence[Item] | None = None) -> None:
        """Note that a request is sent to the store. If `batch` is given, the request is for these ops."""
        loop = asyncio.get_running_loop()
        self._unanswered.setdefault(kind, loop.time())
        self._is_committing = kind == "commit"
        if batch is not None:
            self._batch = batch
        if self._timer is None:
            self._timer = loop.call_later(_LOOK_EVERY_S, self._look)

    def answered(self, kind: Kind) -> None:
        """Note that the store has answered a request of this kind. A store may answer reads but no commits. Then
        callers keep waiting for the commit.
        """
        began = self._unanswered.pop(kind, None)
        if began is not None and self._failure is not None:
            self.silences.note(began, asyncio.get_running_loop().time())
        if kind == "commit":
            self._unanswered.clear()
            self._is_committing = False
        if not self._unanswered:
            self._failure = None

    def failed(self, error: StoreError) -> None:
        """Note that a request failed and is repeated. Callers who have waited too long get StoreUnavailable."""
        self._failure = error
        self._give_up()

    def overdue(self, since: float) -> StoreUnavailable | None:
        """Return the error for a caller who has waited since the time `since`. Return None if the caller must keep
        waiting.
        """
        if not self._unanswered:
            return None
        silent_since = max(since, min(self._unanswered.values()))
        waited = asyncio.get_running_loop().time() - silent_since + self.silences.between(since, silent_since)
        return unavailable(waited, self._failure) if waited >= self._patience_s else None

    async def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait, on behalf of a caller, for work of the engine itself that commits ops. Raises StoreUnavailable after
        `patience_s`. Then the work is cancelled, but the ops that it has queued stay queued.
        """
        loop = asyncio.get_running_loop()
        since = loop.time() if (call := call_began.get()) is None else call
        task = loop.create_task(work)
        try:
            while not task.done():
                await asyncio.wait([task], timeout=_LOOK_EVERY_S)
                if not task.done() and (error := self.overdue(since)) is not None:
                    raise error
            return task.result()
        finally:
            task.cancel()

    def has_given_up(self) -> bool:
        """Return whether a caller whose op is in the batch has given up."""
        return self._has_given_up and any(item.given_up for item in self._batch)

    def doubt(self, error: StoreError) -> None:
        """The outcome of a batch will stay unknown, so its callers get StoreUnavailable."""
        for item in self._batch:
            if item.outside and not item.given_up:
                item.given_up = self._has_given_up = True
                item.refuse(unavailable(self._waited(item), error, is_unknown=True))

    def rest(self) -> None:
        """Stop checking callers, because nobody waits any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._unanswered.clear()
        self._batch = ()

    def waiting(self, items: list[Item]) -> list[Item]:
        """Return the ops whose callers have not given up."""
        if not self._has_given_up:
            return items
        for item in items:
            if item.given_up:
                self._inbox.leave()
        return [item for item in items if not item.given_up]

    def _look(self) -> None:
        self._timer = None
        self._give_up()
        if self._unanswered:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_EVERY_S, self._look)

    def _give_up(self) -> None:
        for item in self._batch:
            if item.outside and not item.given_up and self.overdue(item.since) is not None:
                item.given_up = self._has_given_up = True
                item.refuse(unavailable(self._waited(item), self._failure, is_unknown=self._is_committing))
        for item in self._inbox.remove(lambda item: item.outside and self.overdue(item.since) is not None):
            item.refuse(unavailable(self._waited(item), self._failure))
            self._inbox.leave()
        if self.looked is not None:
            self.looked()

    def _waited(self, item: Item) -> float:
        return asyncio.get_running_loop().time() - item.since


__all__ = ["Callers", "Kind"]
