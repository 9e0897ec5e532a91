"""Eviction: it chooses the runs that leave memory when there are more runs than the limit."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Protocol


class EvictionListener(Protocol):
    """Knows which runs may leave memory."""

    def may_leave(self, run_id: str, /) -> bool:
        """Return whether a run is still in memory and only waits."""
        ...


class Eviction:
    """Chooses the runs that have waited longest.

    A run is examined once each time it begins to wait. So the cost does not grow with the number of runs.
    """

    def __init__(self, runs_max: int, listener: EvictionListener) -> None:
        self._runs_max = runs_max
        self._listener = listener
        self.resting: OrderedDict[str, None] = OrderedDict()
        self.leaving: set[str] = set()  # runs whose release is being committed

    def rests(self, run_id: str) -> None:
        """Note that a run waits from now on."""
        self.resting[run_id] = None
        self.resting.move_to_end(run_id)

    def stays(self, run_id: str) -> None:
        """Keep a run in memory that was chosen to leave, because it goes on."""
        self.leaving.discard(run_id)

    def forget(self, run_id: str) -> None:
        """Forget a run that is no longer in memory."""
        self.leaving.discard(run_id)
        self.resting.pop(run_id, None)

    def chosen(self, runs: int) -> Iterator[str]:
        """Yield the runs that must leave memory now. `runs` is the number of runs in memory.

        A run that may not leave is considered again when it next begins to wait.
        """
        while self.resting and runs - len(self.leaving) > self._runs_max:
            run_id, _ = self.resting.popitem(last=False)
            if run_id not in self.leaving and self._listener.may_leave(run_id):
                self.leaving.add(run_id)
                yield run_id


__all__ = ["Eviction", "EvictionListener"]
