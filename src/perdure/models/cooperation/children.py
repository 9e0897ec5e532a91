"""A run's children: their states, and which of them the run still waits for.

When a child gets a new state, only one entry changes, however many children there are. So a step with n children costs
n times as much as a step with one child.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final, Literal

from msgspec import Struct
from msgspec.structs import replace

from perdure.kernel.lineages import Lineage
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import State
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
    """A run that handles a message that this run has emitted."""

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
        """Return the child in a later state. If the child is already in that state, or in a later one, return it
        unchanged.
        """
        return replace(self, state=state, failure=failure) if _RANKS[state] > _RANKS[self.state] else self


_NOBODY: Final[dict[str, Child]] = {}  # used while there is no window; must stay empty


class Outstanding(Struct, frozen=True, gc=False):
    """The children that a window waits for. `missing` children have not begun their work or their rollback. `busy`
    children have begun and have not ended.

    `emitted` are the window's messages. Messages whose handlers were asked to undo are left out.
    """

    missing: Collection[Child]
    busy: Collection[Child]
    emitted: frozenset[str]


class Children:
    """The children of one run, in the order of emission."""

    __slots__ = ("_busy", "_emitted", "_ids", "_known", "_missing", "_new", "_undone", "_window")

    def __init__(self, children: Iterable[Child] = ()) -> None:
        self._known: dict[str, Child] = {}
        self._ids: dict[str, list[str]] = {}  # the ids of children, by message
        self._new: list[Child] = []  # children that are about to be written
        self._window: Window | None = None  # the window that the following fields belong to
        self._emitted = self._undone = _NO_IDS
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
        """Yield the children that handle these messages."""
        for message_id in message_ids:
            for run_id in self._ids.get(message_id, ()):
                yield self._known[run_id]

    def has(self, message_id: str, handler: str) -> bool:
        return any(child.handler == handler for child in self.of((message_id,)))

    def outstanding(self, window: Window) -> Outstanding:
        """Return the children that a window waits for. The children are sorted once. After that, only a child whose
        state changes is moved.
        """
        if window is not self._window:
            self._window = window
            self._emitted, self._undone = frozenset(window.emitted), frozenset(window.undone)
            self._missing, self._busy = {}, {}
            for child in self.of(window.messages):
                self._sort(child)
        return Outstanding(self._missing.values(), self._busy.values(), self._emitted)

    def awaited(self, window: Window, which: Literal["all", "busy", "missing"]) -> tuple[str, ...]:
        """Return the ids of the children that a window waits for: all of them, the busy children, or the missing
        children.
        """
        self.outstanding(window)
        if which == "all":
            return (*self._busy, *self._missing)
        return tuple(self._busy if which == "busy" else self._missing)

    def _place_of(self, child: Child) -> Literal["missing", "busy", ""]:
        """Return the group to which a child belongs in the current window. Return "" if the window does not wait for
        the child.
        """
        is_undone = child.message_id in self._undone
        if not is_undone and child.message_id not in self._emitted:
            return ""
        if child.state in _BUSY:
            return "busy"
        return "missing" if child.state is State.CREATED or (is_undone and child.state is State.COMMITTED) else ""

    # Changes.

    def add(self, child: Child) -> None:
        """Add a child. If the child's message is in the run's window, the window waits for the child."""
        if child.id in self._known:
            return
        self._known[child.id] = child
        self._ids.setdefault(child.message_id, []).append(child.id)
        self._sort(child)

    def put(self, child: Child) -> None:
        """Replace a child by the same child in a new state."""
        if self._known[child.id] is child:
            return
        self._known[child.id] = child
        if self._window is not None:
            self._missing.pop(child.id, None)
            self._busy.pop(child.id, None)
            self._sort(child)

    def draft(self, children: Iterable[Child]) -> None:
        """Add children that are about to be written. `keep` keeps them, and `discard` removes them."""
        for child in children:
            self._new.append(child)
            self.add(child)

    def keep(self) -> None:
        """Keep the children of a draft that was committed."""
        if self._new:
            self._new.clear()

    def discard(self) -> None:
        """Remove the children of a draft that was not committed."""
        for child in self._new:
            if self._known.pop(child.id, None) is not None:
                self._ids[child.message_id].remove(child.id)
        self._new.clear()
        self._window = None
        self._emitted = self._undone = _NO_IDS

    def _sort(self, child: Child) -> None:
        place = self._place_of(child)
        if place == "missing":
            self._missing[child.id] = child
        elif place == "busy":
            self._busy[child.id] = child
