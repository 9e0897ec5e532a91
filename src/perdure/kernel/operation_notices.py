"""The notices that an operation's run has got, counted: whether it may suspend, end, or go on after one of them.

Which children a run waits for is decided in models/cooperation/readiness.py.

The value is beside the run in the memory of its owner, and ops change it. It is not stored: an engine that claims a run
reads all its rows before the run writes anything, and every notice is about rows. So each claim begins with an empty
value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

# The kinds of notices: see ops.Notify.
NEWS: Final = "news"  # a child has something to report
ASK: Final = "ask"  # the run, or a run above it, is to give up
UNDO: Final = "undo"  # the run is to be undone
JOIN: Final = "join"  # a handler may handle what the run waits for
STOP: Final = "stop"  # the operation that called the run gives up
FENCE: Final = "fence"  # nothing: the answer shows that the run's owner has decided all that was sent to it before


class Awaited(Struct, frozen=True, gc=False):
    """A set of children. Removing one is cheap, since a run with ten thousand children removes one after the other:
    `left` has a bit for each child that is left, at the child's place."""

    places: Mapping[str, int]
    left: int

    @staticmethod
    def of(children: Iterable[str]) -> Awaited:
        places = {child: place for place, child in enumerate(children)}
        return Awaited(places, (1 << len(places)) - 1) if places else NOBODY

    def without(self, child: str) -> Awaited:
        """Return the set without a child. A child that is not in it, or was removed before, changes nothing."""
        place = self.places.get(child)
        if place is None or not self.left >> place & 1:
            return self
        return Awaited(self.places, self.left ^ 1 << place)


NOBODY: Final = Awaited({}, 0)


class Readiness(Struct, frozen=True, gc=False):
    """What an operation's run was notified of under this `claim`.

    `notified` counts the notices. `asked_at` is the number of the last notice that asked the run to give up, and
    `undone_at` that of the last one that asked for its rollback (0: none did). `awaited` are the children that a
    suspended run needs before it can go on. Without any, every notice wakes it.
    """

    claim: int = 0
    notified: int = 0
    asked_at: int = 0
    undone_at: int = 0
    awaited: Awaited = NOBODY

    def since(self, claim: int) -> Readiness:
        """Return what is known of the run under this claim."""
        return self if self.claim == claim else Readiness(claim)

    def after(self, kind: str, child: str) -> Readiness:
        """Return the readiness after one more notice. `child` is the child that has ended, if one has."""
        notified = self.notified + 1
        awaited = self.awaited.without(child) if child and self.awaited.left else self.awaited
        asked_at = notified if kind in (ASK, STOP) else self.asked_at
        undone_at = notified if kind == UNDO else self.undone_at
        return Readiness(self.claim, notified, asked_at, undone_at, awaited)

    def is_woken_by(self, kind: str, child: str) -> bool:
        """Return whether a suspended run goes on after a notice that is counted here already."""
        return kind != NEWS or not child or not self.awaited.left

    def awaiting(self, children: Iterable[str]) -> Readiness:
        """Return the readiness of a run that suspends until these children have ended, or (without any) goes on."""
        return Readiness(self.claim, self.notified, self.asked_at, self.undone_at, Awaited.of(children))


NOT_NOTIFIED: Final = Readiness()
