"""Reads the causes of a failure that are stored in other rows. This happens before code or a caller sees the failure,
and has a bound.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from perdure.models.cooperation.failures import LEVELS_MAX, Failure, within_levels
from perdure.models.cooperation.message_events import MessageEvent

READ_MAX: Final = 256  # the number of failures that are read for one failure
_KNOWN_MAX: Final = 2_048

Read = Callable[[Sequence[str]], Awaitable[Mapping[str, Failure]]]  # takes places, and returns the failures by place


class KnownFailures:
    """Failures that this process has stored or read, by place. They do not need to be read again.

    For example, thousands of children that roll back at once have the same cause. When there are too many, the oldest
    failures are forgotten.
    """

    def __init__(self) -> None:
        self._known: OrderedDict[str, Failure] = OrderedDict()

    def note(self, rows: Iterable[MessageEvent]) -> None:
        """Keep the failures of committed rows."""
        for row in rows:
            failure = row.exception
            if failure is not None and not failure.cut and failure.place == f"{row.cooperation_lineage[-1]}/{row.seq}":
                self.keep(failure)

    def keep(self, failure: Failure) -> None:
        """Keep a whole failure, in the form that the row at its place has."""
        self._known[failure.place] = within_levels(failure)
        if len(self._known) > _KNOWN_MAX:
            self._known.popitem(last=False)

    def known(self, failure: Failure) -> Failure:
        """Return the whole failure for a reference if it is known. Otherwise return the reference."""
        return self._known.get(failure.place, failure) if failure.cut else failure

    def among(self, places: Iterable[str]) -> dict[str, Failure]:
        return {place: self._known[place] for place in places if place in self._known}


async def whole(failure: Failure, read: Read) -> Failure:
    """Return the failure with its causes, up to LEVELS_MAX levels and READ_MAX causes.

    All further causes stay references, each with its root cause. Nothing is read if the failure has no references.
    Raises the errors of `read`.
    """
    found: dict[str, Failure] = {}
    wanted = [*_cut(failure, {})]
    for _ in range(LEVELS_MAX):
        wanted = wanted[: READ_MAX - len(found)]
        if not wanted:
            break
        read_now = await read(wanted)
        found |= read_now
        wanted = [place for one in read_now.values() for place in _cut(one, found)]
    return resolved(failure, found) if found else failure


def resolved(failure: Failure, found: Mapping[str, Failure], levels: int = LEVELS_MAX) -> Failure:
    """Return the failure. References to failures that were found are replaced by these failures."""
    if failure.cut:
        failure = found.get(failure.place, failure)
    if levels == 0 or failure.cut:
        return failure
    return replace(failure, causes=tuple(resolved(cause, found, levels - 1) for cause in failure.causes))


def _cut(failure: Failure, found: Mapping[str, Failure]) -> dict[str, None]:
    """Return the places of a failure's references that were not found yet. Each place occurs once."""
    places: dict[str, None] = {}
    waiting = [failure]
    while waiting:
        one = waiting.pop()
        if not one.cut:
            waiting += reversed(one.causes)
        elif one.place not in found:
            places[one.place] = None
    return places
