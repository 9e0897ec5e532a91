"""The slots of a fork, which bound how many of its branches run at once. They decide which branch may begin next. This
module is pure.

Branches begin in the order of their index. A branch keeps its slot until it ends, at a join or anywhere else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from perdure.models.graphs.plan import Edge
from perdure.models.graphs.tokens import Token


class Slots:
    """The slots of one fork. Each edge with a bound has slots of its own."""

    __slots__ = ("_edges", "_free", "_gone", "_running", "_waiting")

    def __init__(self, ways: Sequence[Edge]) -> None:
        """`ways` are the edges of the branches, by index."""
        self._edges = ways
        self._free = {edge.number: edge.at_once for edge in ways if edge.at_once is not None}
        self._waiting: dict[int, deque[Token]] = {number: deque() for number in self._free}
        self._running: set[int] = set()
        self._gone: set[int] = set()  # branches that ended before they began

    def admit(self, token: Token) -> bool:
        """Return whether the token of a branch may begin. If it may not begin, `leave` returns the token when its turn
        has come.
        """
        number = self._edges[token.index].number
        free = self._free.get(number)
        if free is None:
            return True
        if free:
            self._free[number] = free - 1
            self._running.add(token.index)
            return True
        self._waiting[number].append(token)
        return False

    def leave(self, index: int) -> tuple[Token, Edge] | None:
        """Note that a branch has ended. Return the token that may begin now, with its edge."""
        edge = self._edges[index]
        if index not in self._running:
            self._gone.add(index)
            return None
        self._running.remove(index)
        waiting = self._waiting[edge.number]
        while waiting:
            token = waiting.popleft()
            if token.index not in self._gone:
                self._running.add(token.index)
                return token, edge
        self._free[edge.number] += 1
        return None


__all__ = ["Slots"]
