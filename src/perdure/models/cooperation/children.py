"""A run's children: their states, and which of them the run still waits for.

What a child has become changes one entry, whatever the number of children: a step with n children costs n times what
one child costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from perdure.models.cooperation.events import Lineage, State
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.progress import Window

_RANKS: Final = {
    State.CREATED: 0,
    State.ACTIVE: 1,
    State.COMMITTED: 2,
    State.ROLLING_BACK: 3,
    State.ROLLED_BACK: 4,
    State.ROLLBACK_FAILED: 4,
    State.DISMISSED: 4,
}
_BUSY: Final = (State.ACTIVE, State.ROLLING_BACK)
_NO_IDS: Final[frozenset[str]] = frozenset()


class Child(Struct, frozen=True, kw_only=True, gc=False):
    """A run that handles something that this run has emitted."""

    message_id: str
    handler: str
    lineage: Lineage
    state: State
    failure: Failure | None = None
    is_call: bool = False

    @property
    def id(self) -> str:
        return self.lineage[-1]

    def become(self, state: State, failure: Failure | None) -> Child:
        """The child in a later state; itself if it is that far already."""
        return replace(self, state=state, failure=failure) if _RANKS[state] > _RANKS[self.state] else self


_NOBODY: Final[dict[str, Child]] = {}  # for those that have no window: never written to


class Outstanding(Struct, frozen=True, gc=False):
    """Of the children of a window: those that have not begun (what they are to do), and those that have and are not
    done. `emitted` are the window's messages, but those whose handlers were told to roll back."""

    missing: Collection[Child]
    busy: Collection[Child]
    emitted: frozenset[str]


class Children:
    """The children of one run, in the order of emission."""

    __slots__ = ("_busy", "_emitted", "_ids", "_known", "_missing", "_new", "_told", "_window")

    def __init__(self, children: Iterable[Child] = ()) -> None:
        self._known: dict[str, Child] = {}
        self._ids: dict[str, list[str]] = {}  # by message
        self._new: list[Child] = []  # about to be written
        self._window: Window | None = None  # which the following belong to
        self._emitted = self._told = _NO_IDS
        self._missing = self._busy = _NOBODY
        for child in children:
            self.add(child)

    def __iter__(self) -> Iterator[Child]:
        return iter(self._known.values())

    def __len__(self) -> int:
        return len(self._known)

    def get(self, run_id: str) -> Child | None:
        return self._known.get(run_id)

    def of(self, message_ids: Iterable[str]) -> Iterator[Child]:
        """The children that handle these messages."""
        for message_id in message_ids:
            for run_id in self._ids.get(message_id, ()):
                yield self._known[run_id]

    def has(self, message_id: str, handler: str) -> bool:
        return any(child.handler == handler for child in self.of((message_id,)))

    def outstanding(self, window: Window) -> Outstanding:
        """Counted once for a window; then each child that changes is moved."""
        if window is not self._window:
            self._window = window
            self._emitted, self._told = frozenset(window.emitted), frozenset(window.told)
            self._missing, self._busy = {}, {}
            for child in self.of(window.messages):
                self._sort(child)
        return Outstanding(self._missing.values(), self._busy.values(), self._emitted)

    def place_of(self, child: Child) -> Literal["missing", "busy", ""]:
        """Where a child belongs in the window that was asked about last; nowhere if that is not, or no longer, waiting
        for it."""
        is_told = child.message_id in self._told
        if not is_told and child.message_id not in self._emitted:
            return ""
        if child.state in _BUSY:
            return "busy"
        return "missing" if child.state is State.CREATED or (is_told and child.state is State.COMMITTED) else ""

    @property
    def sorted(self) -> tuple[Mapping[str, Child], Mapping[str, Child]]:
        """Those of the window that are missing, and those that are busy, by id."""
        return self._missing, self._busy

    # Changes.

    def add(self, child: Child) -> None:
        """Another one. If the run's window has its message already, it is waited for."""
        if child.id in self._known:
            return
        self._known[child.id] = child
        self._ids.setdefault(child.message_id, []).append(child.id)
        self._sort(child)

    def put(self, child: Child) -> None:
        """What a child has become."""
        if self._known[child.id] is child:
            return
        self._known[child.id] = child
        if self._window is not None:
            self._missing.pop(child.id, None)
            self._busy.pop(child.id, None)
            self._sort(child)

    def draft(self, children: Iterable[Child]) -> None:
        """Add children that are about to be written. See `keep` and `discard`."""
        for child in children:
            self._new.append(child)
            self.add(child)

    def keep(self) -> None:
        """Those that were about to be written are."""
        if self._new:
            self._new.clear()

    def discard(self) -> None:
        """Those that were about to be written are not."""
        for child in self._new:
            if self._known.pop(child.id, None) is not None:
                self._ids[child.message_id].remove(child.id)
        self._new.clear()
        self._window = None
        self._emitted = self._told = _NO_IDS

    def _sort(self, child: Child) -> None:
        place = self.place_of(child)
        if place == "missing":
            self._missing[child.id] = child
        elif place == "busy":
            self._busy[child.id] = child


class Foreseen(Children):
    """Children as they will be once a batch is committed, on top of what they are. Costs what has changed."""

    __slots__ = ("_base", "_changed", "_later_busy", "_later_missing", "_seen")

    def __init__(self, base: Children) -> None:
        super().__init__()
        self._base = base
        self._changed: dict[str, Child] = {}
        self._seen: Window | None = None
        self._later_missing = _Later({})
        self._later_busy = _Later({})

    def __iter__(self) -> Iterator[Child]:
        return (self._changed.get(child.id, child) for child in self._base)

    def __len__(self) -> int:
        return len(self._base)

    def get(self, run_id: str) -> Child | None:
        return self._changed.get(run_id) or self._base.get(run_id)

    def of(self, message_ids: Iterable[str]) -> Iterator[Child]:
        return (self._changed.get(child.id, child) for child in self._base.of(message_ids))

    def outstanding(self, window: Window) -> Outstanding:
        outstanding = self._base.outstanding(window)
        if window is not self._seen:
            self._seen = window
            missing, busy = self._base.sorted
            self._later_missing, self._later_busy = _Later(missing), _Later(busy)
            for child in self._changed.values():
                self._move(child)
        return Outstanding(self._later_missing, self._later_busy, outstanding.emitted)

    def put(self, child: Child) -> None:
        self._changed[child.id] = child
        if self._seen is not None:
            self._move(child)

    def _move(self, child: Child) -> None:
        place = self._base.place_of(child)
        self._later_missing.leave(child.id)
        self._later_busy.leave(child.id)
        if place:
            (self._later_missing if place == "missing" else self._later_busy).enter(child)


class _Later(Collection[Child]):
    """What there is, without what has changed, and with what has come."""

    def __init__(self, base: Mapping[str, Child]) -> None:
        self._base = base
        self._left: set[str] = set()
        self._come: dict[str, Child] = {}

    def leave(self, run_id: str) -> None:
        if self._come.pop(run_id, None) is None and run_id in self._base:
            self._left.add(run_id)

    def enter(self, child: Child) -> None:
        self._come[child.id] = child

    def __len__(self) -> int:
        return len(self._base) - len(self._left) + len(self._come)

    def __iter__(self) -> Iterator[Child]:
        yield from (child for run_id, child in self._base.items() if run_id not in self._left)
        yield from self._come.values()

    def __contains__(self, child: object) -> bool:
        return any(one is child for one in self)
