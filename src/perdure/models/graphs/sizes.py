"""The sizes of values that joins merge. Pure.

A merge can put a value of the context back into the context, twice. In a loop the value doubles with every lap. That
takes no memory at first, because the same object occurs many times. So each merge is measured before it is done.
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
    """Bytes that merged values take as JSON, within a limit. A value that a merge has measured is not measured again
    when more is added to it. So a loop that adds one item in each lap measures only that item."""

    __slots__ = ("_known", "_limit")

    def __init__(self, bytes_max: int, rules: int) -> None:
        """`rules` are the rules of the run. A run that began before there was a limit has no limit."""
        self._limit = bytes_max if rules >= MERGES_RULES else maxsize
        # By the id of the value. The value is kept beside its size, so that no other value gets its id.
        self._known: dict[int, tuple[Any, int]] = {}

    def of(self, values: Iterable[Any], place: str, target: str) -> int:
        """Return how many bytes these values take. Raises LimitExceeded as soon as they take too many."""
        total = self.bound(values)
        if total is None:
            what = f"a merged value at {target} of more than {self._limit:,} bytes"
            raise beyond(place, what, "merged_bytes", self._limit)
        return total

    def bound(self, values: Iterable[Any]) -> int | None:
        """Return how many bytes these values take; None as soon as they take too many."""
        total = 0
        seen: dict[int, int] = {}  # Many branches may bring the same object.
        for value in values:
            if (size := seen.get(id(value))) is None:
                size = seen[id(value)] = self._size(value)
            total += size + 1  # with a comma
            if total > self._limit:
                return None
        return total

    def replace(self, old: Any, new: Any, size: int) -> None:
        """Note the size of a value that takes the place of another one."""
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
            return 0  # It has no JSON form. Storing it fails with an error of its own.


__all__ = ["Sizes"]
