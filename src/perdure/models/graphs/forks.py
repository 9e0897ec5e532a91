"""How a token is forked: how many branches there are, and which of them have no token yet. Pure.

The tokens of a large fork are created in pieces, so that no activation of a run takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.errors import ExpressionFailed
from perdure.models.graphs.limits import beyond
from perdure.models.graphs.plan import Edge
from perdure.models.graphs.tokens import Fork, Token

# Branches whose tokens are created in one piece. Replays depend on it: another number needs new rules.
BORN_AT_ONCE_MAX: Final = 250


class Unborn:
    """The branches of a fork that have no token yet: those from `at` on. `token` is the token that was forked."""

    __slots__ = ("at", "fork", "piece_max", "token", "ways")

    def __init__(self, fork: Fork, token: Token, ways: Sequence[Edge], piece_max: int) -> None:
        """`ways` are the edges of the branches, by index."""
        self.fork = fork
        self.token = token
        self.ways = ways
        self.at = 0
        self.piece_max = piece_max

    def __len__(self) -> int:
        return 0 if self.fork.closed else self.fork.total - self.at

    def take(self) -> range:
        """Return the indices of the next piece, whose tokens are created now."""
        begin = self.at
        self.at = min(self.fork.total, begin + self.piece_max)
        return range(begin, self.at)


def part_of(edge: Edge, view: Any) -> list[Any] | int:
    """Return the items of an edge's branches, or their number. Raises ExpressionFailed."""
    if edge.foreach is None:
        return edge.spawn or 1
    items = edge.foreach.evaluate(view)
    if not isinstance(items, list):
        place, source = edge.foreach.place, edge.foreach.source
        message = f"{place}: {source!r} is to be gone through, but it is no list: {items!r:.100}"
        raise ExpressionFailed(message, expression=source, place=place)
    return items


def size_of(part: list[Any] | int) -> int:
    return part if isinstance(part, int) else len(part)


__all__ = ["BORN_AT_ONCE_MAX", "Unborn", "beyond", "part_of", "size_of"]
