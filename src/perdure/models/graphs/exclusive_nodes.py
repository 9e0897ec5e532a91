"""Exclusive nodes of a run: which token has its turn, and which token is next. This module is pure.

The token that has waited longest is next. A token waits for at most one group, and releases its turn before it moves to
another group. So there can be no deadlock.
"""

from __future__ import annotations

from collections import OrderedDict

from perdure.models.graphs.plan import Exclusive, Plan
from perdure.models.graphs.tokens import Token


class Turns:
    """The turns at the exclusive nodes of one run."""

    __slots__ = ("_at", "_having", "_holders", "_queues")

    def __init__(self, plan: Plan) -> None:
        self._at = {node: part for part in plan.exclusive for node in part.nodes}
        self._holders: dict[int, Token] = {}  # by the number of the group
        # an OrderedDict, because a plain dict is slow to find its first key
        self._queues: dict[int, OrderedDict[Token, None]] = {}
        self._having: dict[Token, Exclusive] = {}  # tokens that have their turn or wait for it

    def __len__(self) -> int:
        """Return how many tokens have their turn or wait for it."""
        return len(self._having)

    def done(self, token: Token) -> Token | None:
        """Note that the token's node has ended. Return the token that may run now, or None."""
        part = self._having.get(token)
        return None if part is None or part.keep else self.leave(token)

    def move(self, token: Token, node: str) -> tuple[bool, Token | None]:
        """Move the token to a node. Return whether it may run there, and which other token may run now."""
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
        """Remove the token. Return the token that may run now, or None."""
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
