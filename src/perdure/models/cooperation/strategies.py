"""Which handlers of a message its emitter waits for, and how long: the ways to choose, and the class for one's own."""

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
    """What is known of a topic's handlers when a message is emitted: those in the durable registry, those that have
    ever taken a message of it, and those that were explicitly taken out of the registry."""

    registered: frozenset[str] = frozenset()
    seen: frozenset[str] = frozenset()
    retired: frozenset[str] = frozenset()


class Handler(Protocol):
    """A child, as far as its name goes."""

    @property
    def handler(self) -> str: ...


class Names(Sequence[str]):
    """The handlers of children, named when they are asked for: how many there are is known without going through
    them."""

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
    """What a suspended run waits for, once none of the children that were taken is still at work.

    `missing` are the handlers that have not begun (on the way back: to roll back), `since` is when the run was
    suspended, both times in microseconds since the epoch.
    """

    missing: Sequence[str]
    giving_up: bool
    rolling_back: bool
    since: int
    now: int


class Strategy:
    """Subclass this for a strategy of one's own. Its methods are asked often: they must be quick and pure."""

    def expected(self, topic: str, handlers: Handlers) -> frozenset[str]:
        """The handlers that get a run of their own for a message, in the commit that emits it."""
        del topic
        return handlers.registered

    def joins(self, topic: str, handlers: Handlers) -> frozenset[str]:
        """The handlers that may still get a run for a message while its emitter waits: of those that have registered
        since it was emitted. Once the emitter has gone on it is too late."""
        return self.expected(topic, handlers)

    def goes_on(self, pending: Pending) -> bool:
        """Whether the emitter need not wait for the handlers that have not begun."""
        return not pending.missing or pending.giving_up

    def looks_again_at(self, pending: Pending) -> int | None:
        """When `goes_on` may become true just because time has passed."""
        del pending
        return None

    def heeds(self, reasons: Sequence[Failure]) -> Sequence[Failure]:
        """Those reasons to give up (cancellations, deadlines, a parent's rollback) that count. None: it cannot be
        cancelled, and rolls back only after it has committed."""
        return reasons


class Registry(Strategy):
    """Wait for every handler that is registered for the topic, also while its service is down."""

    def __repr__(self) -> str:
        return "Registry()"


@checked(error=InvalidDefinition)
class TimeWindow(Strategy):
    """Wait this long, then for those handlers that have begun by then. The others are not begun any more."""

    def __init__(self, window: Duration) -> None:
        self.window = span_of(window, "TimeWindow(): the window", error=InvalidDefinition, positive=True)

    def goes_on(self, pending: Pending) -> bool:
        if pending.giving_up:
            return True
        # What was begun must be undone, however long it takes.
        return not pending.missing if pending.rolling_back else pending.now >= self._end(pending)

    def looks_again_at(self, pending: Pending) -> int | None:
        return None if pending.rolling_back else self._end(pending)

    def _end(self, pending: Pending) -> int:
        return pending.since + self.window // timedelta(microseconds=1)

    def __repr__(self) -> str:
        return f"TimeWindow({self.window!r})"


class Historical(Strategy):
    """Wait for those handlers that have taken a message of the topic before, unless they were taken out since."""

    def expected(self, topic: str, handlers: Handlers) -> frozenset[str]:
        del topic
        return handlers.seen - handlers.retired

    def joins(self, topic: str, handlers: Handlers) -> frozenset[str]:
        """Nobody: who is new has no history."""
        del topic, handlers
        return frozenset()

    def __repr__(self) -> str:
        return "Historical()"
