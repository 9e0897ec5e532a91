"""Nodes of a run that only one token may stand at: whose turn it is, and who comes next. Pure.

The order is that of coming: who waits longest is next. A token waits in one place at most and gives back what it has
before it comes to another, so no two can wait for each other.
"""

from __future__ import annotations

from collections import OrderedDict

from perdure.models.graphs.plan import Exclusive, Plan
from perdure.models.graphs.tokens import Token


class Turns:
    """Who has its turn at the exclusive nodes of one run."""

    __slots__ = ("_at", "_having", "_holders", "_queues")

    def __init__(self, plan: Plan) -> None:
        self._at = {node: part for part in plan.exclusive for node in part.nodes}
        self._holders: dict[int, Token] = {}  # by the number of the part
        self._queues: dict[int, OrderedDict[Token, None]] = {}  # A plain dict takes long to find its first one.
        self._having: dict[Token, Exclusive] = {}  # tokens that have their turn, or wait for it

    def __len__(self) -> int:
        """How many have their turn, or wait for it."""
        return len(self._having)

    def done(self, token: Token) -> Token | None:
        """The token's node has come to its end: who may run now, if that was its turn."""
        part = self._having.get(token)
        return None if part is None or part.keep else self.leave(token)

    def move(self, token: Token, node: str) -> tuple[bool, Token | None]:
        """The token comes to a node: whether it may run there, and who else may run now."""
        part, had = self._at.get(node), self._having.get(token)
        if had is not None and had is part:
            return True, None
        following = None if had is None else self.leave(token)
        if part is None:
            return True, following
        self._having[token] = part
        if self._holders.setdefault(part.number, token) is token:
            return True, following
        self._queues.setdefault(part.number, OrderedDict())[token] = None
        return False, following

    def leave(self, token: Token) -> Token | None:
        """The token has left, or is gone: who may run now."""
        part = self._having.pop(token, None)
        if part is None:
            return None
        queue = self._queues.get(part.number)
        if self._holders[part.number] is not token:
            assert queue is not None
            del queue[token]
            return None
        del self._holders[part.number]
        if not queue:
            return None
        following, _ = queue.popitem(last=False)
        self._holders[part.number] = following
        return following

    def is_waiting(self, token: Token) -> bool:
        part = self._having.get(token)
        return part is not None and self._holders[part.number] is not token
