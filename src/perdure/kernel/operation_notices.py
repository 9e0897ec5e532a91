"""Counts of the notices that an operation's run has got.

They decide whether the run may suspend or end, and whether a notice wakes it.

models/cooperation/readiness.py decides which children a run waits for.

The run's owner keeps this value in memory, together with the run. Ops change it. The value is not stored. Every notice
is about stored rows. An engine that claims a run reads all its rows before the run writes anything. So each claim
begins with an empty value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

# The kinds of notices. See ops.Notify.
NEWS: Final = "news"  # a child has something to report
ASK: Final = "ask"  # the run, or a run above it, must give up
UNDO: Final = "undo"  # the run must be undone
JOIN: Final = "join"  # a new handler may handle a message that the run waits for
STOP: Final = "stop"  # the operation that called the run gives up
FENCE: Final = "fence"  # nothing to report; the reply shows that the run's owner has decided all earlier ops


class Awaited(Struct, frozen=True, gc=False):
    """A set of children. Removing a child is cheap, because a run may remove ten thousand children one by one. `left`
    has a bit for each child that is still in the set.
    """

    places: Mapping[str, int]
    left: int

    @staticmethod
    def of(children: Iterable[str]) -> Awaited:
        places = {child: place for place, child in enumerate(children)}
        return Awaited(places, (1 << len(places)) - 1) if places else NOBODY

    def without(self, child: str) -> Awaited:
        """Return the set without a child. If the child is not in the set, nothing changes."""
        place = self.places.get(child)
        if place is None or not self.left >> place & 1:
            return self
        return Awaited(self.places, self.left ^ 1 << place)


NOBODY: Final = Awaited({}, 0)


class Readiness(Struct, frozen=True, gc=False):
    """The notices that an operation's run got under this `claim`, and the children that it waits for.

    `notified` counts the notices. `asked_at` is the number of the last notice that asked the run to give up.
    `undone_at` is the number of the last notice that asked for its rollback. They are 0 if there was no such notice.
    `awaited` are the children that must end before a suspended run can go on. If `awaited` is empty, every notice wakes
    the run.
    """

    claim: int = 0
    notified: int = 0
    asked_at: int = 0
    undone_at: int = 0
    awaited: Awaited = NOBODY

    def since(self, claim: int) -> Readiness:
        """Return this readiness. If it belongs to another claim, return an empty readiness."""
        return self if self.claim == claim else Readiness(claim)

    def after(self, kind: str, child: str) -> Readiness:
        """Return the readiness after one more notice. `child` is the id of the child that has ended, or ""."""
        notified = self.notified + 1
        awaited = self.awaited.without(child) if child and self.awaited.left else self.awaited
        asked_at = notified if kind in (ASK, STOP) else self.asked_at
        undone_at = notified if kind == UNDO else self.undone_at
        return Readiness(self.claim, notified, asked_at, undone_at, awaited)

    def is_woken_by(self, kind: str, child: str) -> bool:
        """Return whether a suspended run goes on after this notice. The notice must already be counted here."""
        return kind != NEWS or not child or not self.awaited.left

    def awaiting(self, children: Iterable[str]) -> Readiness:
        """Return the readiness of a run that suspends until these children have ended. Without children, return the
        readiness of a run that goes on, or of a run that every notice wakes.
        """
        return Readiness(self.claim, self.notified, self.asked_at, self.undone_at, Awaited.of(children))


NOT_NOTIFIED: Final = Readiness()
