"""Lineages: the ids from the root emission of a hierarchy down to a run. They name the run's ancestors.

A root emission has the lineage [r], a run that handles it has [r, a], and a child of that run has [r, a, b]. If one
lineage is the beginning of another lineage, it belongs to an ancestor. The rows of a run, and the emissions of its
steps, have the run's lineage. models/cooperation/emissions.py sets the lineage of messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from perdure.kernel.continuation_counts import without_life

Lineage = tuple[str, ...]


LINEAGE_WHOLE_MAX: Final = 64  # the number of ids; a longer lineage is shortened


LINEAGE_END: Final = 8  # the number of ids at the end of a shortened lineage


def origin_of(message_id: str, lineage: Lineage) -> str:
    """Return the origin of an operation's run in its stored form. It has the lineage, and the message for which the run
    was started.
    """
    return f"{'/'.join(lineage)} {message_id}"


def read_origin(origin: str) -> tuple[str, Lineage]:
    """Return a run's message and its lineage."""
    lineage, _, message_id = without_life(origin).partition(" ")
    return message_id, read_lineage(lineage)


def read_lineage(text: str) -> Lineage:
    """Return the lineage that a stored text contains. Lineages that older versions of Perdure stored without shortening
    can be read too.
    """
    return shortened(tuple(text.split("/")))


def shortened(lineage: Lineage) -> Lineage:
    """Return the lineage. A long lineage is shortened to its root, "+n" for the n ids that are left out, and its last
    ids.
    """
    if len(lineage) <= LINEAGE_WHOLE_MAX or is_shortened(lineage):
        return lineage
    return (lineage[0], f"+{len(lineage) - 1 - LINEAGE_END}", *lineage[-LINEAGE_END:])


def is_shortened(lineage: Lineage) -> bool:
    return len(lineage) > LINEAGE_END and lineage[1].startswith("+")


def extended(lineage: Lineage, id: str) -> Lineage:
    """Return the lineage of a child. The result is the same whether the lineage was read from a row or made in
    memory.
    """
    if not is_shortened(lineage):
        return shortened((*lineage, id))
    return (lineage[0], f"+{int(lineage[1]) + 1}", *lineage[3:], id)


def depth_of(lineage: Lineage) -> int:
    """Return how many ids a lineage has, including ids that are left out."""
    return len(lineage) - 1 + int(lineage[1]) if is_shortened(lineage) else len(lineage)


class Kinship:
    """The ancestors and descendants among lineages. A shortened lineage lacks some ids, so ancestors are found by
    following parents.
    """

    def __init__(self, lineages: Iterable[Lineage]) -> None:
        self._parents = {lineage[-1]: lineage[-2] for lineage in lineages if len(lineage) > 1}

    def above(self, lineage: Lineage) -> Iterator[str]:
        """Yield the last id of a lineage, and then the known ids above it. The root comes last."""
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
    """Return whether `upper` is `lower` or an ancestor of `lower`. Do not pass shortened lineages."""
    return lower[: len(upper)] == upper


def is_root_run(lineage: Lineage) -> bool:
    """Return whether a run handles a message that was emitted from outside, or on the global scope."""
    return len(lineage) == 2


def is_run(lineage: Lineage) -> bool:
    """Return whether a lineage belongs to a run. A lineage of one id belongs to a root emission."""
    return len(lineage) > 1
