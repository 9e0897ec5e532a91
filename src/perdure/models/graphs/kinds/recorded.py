"""What kinds that refer to records have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, Generic, TypeVar

import msgspec

from perdure.errors import InvalidArguments
from perdure.models.graphs.kinds.base import Preparing
from perdure.models.graphs.records import Found, Reading, RecordKind, reference

T = TypeVar("T")

_KEPT_MAX: Final = 32


def reading(
    kind: RecordKind, text: str, about: Preparing, field: str, check: Callable[[Any, Preparing], object]
) -> Reading:
    """How a node reads the record that one of its fields names; `check` raises InvalidDefinition for a body that cannot
    work. Raises InvalidDefinition."""
    try:
        wanted = reference(kind, text)
    except InvalidArguments as error:
        raise about.wrong(field, str(error)) from error

    def looked_at(body: Any, place: str) -> None:
        checking = about.anew(place)
        checking.input_fields = None  # What a node maps for it is the node's own affair.
        check(body, checking)

    return Reading(wanted, about.place, looked_at)


class Kept(Generic[T]):
    """What was made of records, for runs that find the same: preparing parses, and is the same each time."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: dict[bytes, T] = {}

    def get(self, found: Iterable[Found], make: Callable[[], T]) -> T:
        key = msgspec.json.encode(list(found))
        made = self._made.get(key)
        if made is None:
            if len(self._made) >= _KEPT_MAX:
                self._made.clear()
            made = self._made[key] = make()
        return made
