"""Forks: the branches of a token that was forked, and the branches that have no token yet. This module is pure.

The tokens of a large fork are created in pieces, so that no activation of a run takes long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from perdure.errors import ExpressionFailed
from perdure.models.graphs.branch_slots import Slots
from perdure.models.graphs.plan import Edge
from perdure.models.graphs.tokens import Fork, Token, items_of

# The number of branches whose tokens are created in one piece. Replays depend on this number. To change it, add a new
# version of the rules.
BRANCHES_AT_ONCE_MAX: Final = 250


class PendingBranches:
    """The branches of a fork that have no token yet. These are all branches from the index `at` on. `token` is the
    token that was forked.
    """

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
        """Return the branch indices of the next piece. The caller creates their tokens now."""
        begin = self.at
        self.at = min(self.fork.total, begin + self.piece_max)
        return range(begin, self.at)


def part_of(edge: Edge, view: Any) -> list[Any] | int:
    """Return the items of an edge's branches, or the number of branches. Raises ExpressionFailed."""
    if edge.foreach is None:
        return edge.spawn or 1
    items = edge.foreach.evaluate(view)
    if not isinstance(items, list):
        place, source = edge.foreach.place, edge.foreach.source
        message = f"{place}: {source!r} is to be gone through, but it is no list: {items!r:.100}"
        raise ExpressionFailed(message, expression=source, place=place)
    return items


def ways_of(edges: Sequence[Edge], parts: Sequence[list[Any] | int]) -> list[Edge]:
    """Return the edge of each branch, by branch index. `parts` has the items of each edge's branches, or their
    number.
    """
    sizes = [part if isinstance(part, int) else len(part) for part in parts]
    return [edge for edge, size in zip(edges, sizes, strict=True) for _ in range(size)]


def forked(
    token: Token, id: int, edges: Sequence[Edge], parts: Sequence[list[Any] | int], ways: Sequence[Edge]
) -> Fork:
    """Return the fork of a token. The fork is open in the token's branch of the outer fork. The new fork has no tokens
    yet.
    """
    outer = token.fork
    fork = Fork(
        id=id, site=token.node, total=len(ways), scope=token.scope, outer=outer, index=token.index, laps=token.laps
    )
    fork.is_split = not any(edge.is_multiple for edge in edges)
    fork.items = items_of(parts)
    fork.in_a_row, fork.error = token.in_a_row, token.error
    fork.slots = Slots(ways) if any(edge.at_once is not None for edge in edges) else None
    outer.inner[fork.id] = fork
    outer.live[token.index] += 1
    return fork


__all__ = ["BRANCHES_AT_ONCE_MAX", "PendingBranches", "forked", "part_of", "ways_of"]
