"""Lineages: the ids from the root emission of a hierarchy down to a run, which name the run's ancestors.

A root emission has [r], a run that handles it [r, a], a child of that run [r, a, b]. A lineage that another one begins
with is that of an ancestor. The rows of a run, and the emissions of its steps, have the run's lineage.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.kernel.continuation_counts import without_life

Lineage = tuple[str, ...]


LINEAGE_WHOLE_MAX: Final = 64  # ids: a longer lineage is shortened


LINEAGE_END: Final = 8  # ids at the end of a shortened lineage


def origin_of(message_id: str, lineage: Lineage) -> str:
    """Return the origin of an operation's run as its row has it: the lineage and the message it was started for."""
    return f"{'/'.join(lineage)} {message_id}"


def read_origin(origin: str) -> tuple[str, Lineage]:
    """Return a run's message and its lineage."""
    lineage, _, message_id = without_life(origin).partition(" ")
    return message_id, read_lineage(lineage)


def read_lineage(text: str) -> Lineage:
    """Return the lineage from its stored text. Rows from before lineages were shortened are read too."""
    return shortened(tuple(text.split("/")))


def shortened(lineage: Lineage) -> Lineage:
    """Return the lineage. A long one is shortened to its root, "+n" for n ids that are left out, and its last ids."""
    if len(lineage) <= LINEAGE_WHOLE_MAX or is_shortened(lineage):
        return lineage
    return (lineage[0], f"+{len(lineage) - 1 - LINEAGE_END}", *lineage[-LINEAGE_END:])


def is_shortened(lineage: Lineage) -> bool:
    return len(lineage) > LINEAGE_END and lineage[1].startswith("+")


def extended(lineage: Lineage, id: str) -> Lineage:
    """Return the lineage of a child. Equal lineages have equal children, whether they were read or made."""
    if not is_shortened(lineage):
        return shortened((*lineage, id))
    return (lineage[0], f"+{int(lineage[1]) + 1}", *lineage[3:], id)


def depth_of(lineage: Lineage) -> int:
    """Return how many ids a lineage has, including those that are left out."""
    return len(lineage) - 1 + int(lineage[1]) if is_shortened(lineage) else len(lineage)


class Kinship:
    """The ancestors and descendants among lineages. A long lineage does not contain all ids, so they are found from
    parent to parent."""

    def __init__(self, lineages: Iterable[Lineage]) -> None:
        self._parents = {lineage[-1]: lineage[-2] for lineage in lineages if len(lineage) > 1}

    def above(self, lineage: Lineage) -> Iterator[str]:
        """Yield the last id of a lineage, then the ids above it as far as they are known, the root last."""
        id: str | None = lineage[-1]
        while id is not None:
            yield id
            id = self._parents.get(id)

    def below(self, id: str) -> set[str]:
        """Return an id and all ids below it."""
        children: dict[str, list[str]] = {}
        for child, parent in self._parents.items():
            children.setdefault(parent, []).append(child)
        found, waiting = {id}, [id]
        while waiting:
            more = children.get(waiting.pop(), ())
            found.update(more)
            waiting += more
        return found


def covers(upper: Lineage, lower: Lineage) -> bool:
    """Return whether `upper` is `lower` or an ancestor of it. Neither may be a shortened lineage."""
    return lower[: len(upper)] == upper


def is_root_run(lineage: Lineage) -> bool:
    """Return whether a run handles a message that was emitted from outside, or on the global scope."""
    return len(lineage) == 2


def is_run(lineage: Lineage) -> bool:
    """Return whether a lineage is that of a run. A lineage of one id is that of a root emission."""
    return len(lineage) > 1
