"""The sizes of the values that joins merge. This module is pure.

A merge can put a value of the context back into the context twice. In a loop, the value then doubles with every lap. At
first this takes no memory, because the same object occurs many times. So each merge is measured before it is made.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import maxsize
from typing import Any, Final

from msgspec.json import encode as to_json

from perdure.models.graphs.limits import beyond
from perdure.models.graphs.rules_versions import MERGES_RULES

_KNOWN_MAX: Final = 256


class Sizes:
    """The number of bytes that merged values take as JSON, within a limit. If a merge adds to a value that was measured
    before, only the addition is measured. So a loop that adds one item in each lap measures only that item.
    """

    __slots__ = ("_known", "_limit")

    def __init__(self, bytes_max: int, rules: int) -> None:
        """`rules` is the version of the run's rules. If the run began before this limit existed, it has no limit."""
        self._limit = bytes_max if rules >= MERGES_RULES else maxsize
        # By the id of the value. The value itself is kept too, so that no other object gets the same id.
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, values: Iterable[Any], place: str, target: str) -> int:
        """Return how many bytes these values take. Raises LimitExceeded as soon as they take too many."""
        total = self.bound(values)
        if total is None:
            what = f"a merged value at {target} of more than {self._limit:,} bytes"
            raise beyond(place, what, "merged_bytes", self._limit)
        return total

    def bound(self, values: Iterable[Any]) -> int | None:
        """Return how many bytes these values take. Return None as soon as they take too many."""
        total = 0
        seen: dict[int, int] = {}  # Many branches may bring the same object.
        for value in values:
            if (size := seen.get(id(value))) is None:
                size = seen[id(value)] = self._size(value)
            total += size + 1  # one more byte for the comma
            if total > self._limit:
                return None
        return total

    def replace(self, old: Any, new: Any, size: int) -> None:
        """Note the size of a value that replaces another value."""
        self._known.pop(id(old), None)
        if isinstance(new, dict | list):
            self._known.pop(id(new), None)
            self._known[id(new)] = new, size
            if len(self._known) > _KNOWN_MAX:
                del self._known[next(iter(self._known))]

    def _size(self, value: Any) -> int:
        if (known := self._known.get(id(value))) is not None:
            return known[1]
        try:
            return len(to_json(value))
        except (TypeError, ValueError, OverflowError, RecursionError):
            return 0  # The value has no JSON form. Storing it raises an error of its own.


__all__ = ["Sizes"]
