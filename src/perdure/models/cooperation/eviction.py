"""Eviction: which runs leave memory when there are more than may be there."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator


class Eviction:
    """Chooses among runs that wait those that have waited longest. Each is looked at once for every time that it came
    to rest, however many others there are."""

    def __init__(self, runs_max: int) -> None:
        self._runs_max = runs_max
        self._resting: OrderedDict[str, None] = OrderedDict()
        self._leaving: set[str] = set()  # It is being committed that nobody has them.

    def rests(self, run_id: str) -> None:
        """A run waits from now on."""
        self._resting[run_id] = None
        self._resting.move_to_end(run_id)

    def stays(self, run_id: str) -> None:
        """A run that may be leaving has got word."""
        self._leaving.discard(run_id)

    def forget(self, run_id: str) -> None:
        """A run is not in memory any more."""
        self._leaving.discard(run_id)
        self._resting.pop(run_id, None)

    def chosen(self, runs: int, may_leave: Callable[[str], bool]) -> Iterator[str]:
        """Of this many runs, those that are to leave now. One that may not is asked about again when it next rests."""
        while self._resting and runs - len(self._leaving) > self._runs_max:
            run_id, _ = self._resting.popitem(last=False)
            if run_id not in self._leaving and may_leave(run_id):
                self._leaving.add(run_id)
                yield run_id
