"""The common parts of the kinds that refer to records."""

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
    """Return how a node reads the record that its field names. `check` raises InvalidDefinition for an invalid body.
    Raises InvalidDefinition.
    """
    try:
        wanted = reference(kind, text)
    except InvalidArguments as error:
        raise about.wrong(field, str(error)) from error

    def looked_at(body: Any, place: str) -> None:
        checking = about.anew(place)
        checking.input_fields = None  # The names that the node maps are checked together with the node.
        check(body, checking)

    return Reading(wanted, about.place, looked_at)


class Kept(Generic[T]):
    """A cache of prepared records, for runs that find the same versions."""

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
