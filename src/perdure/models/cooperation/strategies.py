"""Strategies: which handlers of a message its emitter waits for, and for how long. Subclass `Strategy` to write a
strategy of your own.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from datetime import timedelta
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct

from perdure.errors import InvalidDefinition
from perdure.models.cooperation.failures import Failure
from perdure.values.arguments import Duration, checked, span_of


class Handlers(Struct, frozen=True, kw_only=True):
    """The known handlers of a topic when a message is emitted.

    They are the registered handlers, the handlers that have taken a message of the topic before, and the handlers that
    were retired.
    """

    registered: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()


class Handler(Protocol):
    """A child of an emitter. Only the name of its handler is used."""

    @property
    def handler(self) -> str: ...


class Names(Sequence[str]):
    """The names of the children's handlers. They are read only when something asks for them. The number of names is
    known without a loop.
    """

    def __init__(self, children: Collection[Handler]) -> None:
        self._children = children

    def __len__(self) -> int:
        return len(self._children)

    def __iter__(self) -> Iterator[str]:
        return (child.handler for child in self._children)

    def __getitem__(self, place: Any) -> Any:
        if isinstance(place, slice) or place < 0:
            return tuple(self)[place]
        found = next(islice(self, place, None), None)
        if found is None:
            raise IndexError(place)
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __repr__(self) -> str:
        return repr(tuple(self))


class Pending(Struct, frozen=True, kw_only=True):
    """The handlers that a suspended run waits for. At this point, every child that was taken has ended.

    `missing` are the handlers that have not begun. In a rollback, they are the handlers that have not begun to roll
    back. `since` is the time when the run was suspended. `since` and `now` are in microseconds since the epoch.
    """

    missing: Sequence[str]
    giving_up: bool
    rolling_back: bool
    since: int
    now: int


class Strategy:
    """The base class of strategies. Its methods are called often, so they must be quick and pure."""

    def expected(self, topic: str, handlers: Handlers) -> frozenset[str]:
        """Return the handlers that get a run for a message. These runs are created in the commit that emits the
        message.
        """
        del topic
        return handlers.registered

    def joins(self, topic: str, handlers: Handlers) -> frozenset[str]:
        """Return the handlers that may still get a run for a message while its emitter waits.

        A handler gets this run only if it registered after the message was emitted. Once the emitter has gone on, no
        handler gets a run.
        """
        return self.expected(topic, handlers)

    def goes_on(self, pending: Pending) -> bool:
        """Return whether the emitter may go on without the handlers that have not begun."""
        return not pending.missing or pending.giving_up

    def looks_again_at(self, pending: Pending) -> int | None:
        """Return the time at which `goes_on` may become true only because time has passed, or None."""
        del pending
        return None

    def heeds(self, reasons: Sequence[Failure]) -> Sequence[Failure]:
        """Return those reasons to give up that count: cancellations, deadlines, or a parent's rollback.

        If no reason counts, the run cannot be cancelled. Then it rolls back only after it has committed.
        """
        return reasons


class Registry(Strategy):
    """Wait for every handler that is registered for the topic, even if its service is down."""

    def __repr__(self) -> str:
        return "Registry()"


@checked(error=InvalidDefinition)
class TimeWindow(Strategy):
    """Wait for a certain time. After that, wait only for the handlers that have begun in that time. The other handlers
    never begin.
    """

    def __init__(self, window: Duration) -> None:
        self.window = span_of(window, "TimeWindow(): the window", error=InvalidDefinition, positive=True)

    def goes_on(self, pending: Pending) -> bool:
        if pending.giving_up:
            return True
        # Work that has begun must be undone, even if that takes long.
        return not pending.missing if pending.rolling_back else pending.now >= self._end(pending)

    def looks_again_at(self, pending: Pending) -> int | None:
        return None if pending.rolling_back else self._end(pending)

    def _end(self, pending: Pending) -> int:
        return pending.since + self.window // timedelta(microseconds=1)

    def __repr__(self) -> str:
        return f"TimeWindow({self.window!r})"


class Historical(Strategy):
    """Wait for the handlers that have taken a message of the topic before.

    Handlers that were retired are left out.
    """

    def expected(self, topic: str, handlers: Handlers) -> frozenset[str]:
        del topic
        return handlers.seen - handlers.retired

    def joins(self, topic: str, handlers: Handlers) -> frozenset[str]:
        """Return no handlers, because a new handler has no history."""
        del topic, handlers
        return frozenset()

    def __repr__(self) -> str:
        return "Historical()"


def waits_for_all(strategy: Strategy) -> bool:
    """Return whether a run that does not give up waits until no handler is missing. If so, time alone never lets it go
    on.
    """
    kind = type(strategy)
    return kind.goes_on is Strategy.goes_on and kind.looks_again_at is Strategy.looks_again_at


def minds_each(strategy: Strategy) -> bool:
    """Return whether the result of `goes_on` may depend on the names or the number of the missing handlers.

    For the strategies in this module, the result depends only on whether a handler is missing, or on the time.
    """
    return type(strategy).goes_on not in (Strategy.goes_on, TimeWindow.goes_on)
