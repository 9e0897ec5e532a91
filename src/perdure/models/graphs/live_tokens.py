"""Live tokens: the tokens of a run that have not ended, and the nodes that must start or stop for them. This module is
pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from perdure.models.graphs.cancellable_tokens import Standing
from perdure.models.graphs.context import Scope
from perdure.models.graphs.exclusive_nodes import Turns
from perdure.models.graphs.limits import beyond
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.tokens import Fork, Token


class LiveTokens:
    """The live tokens of one run, by id. `to_start` and `to_stop` collect the machine's next decisions."""

    def __init__(self, plan: Plan) -> None:
        self.by_id: dict[int, Token] = {}
        self.to_start: dict[int, Token] = {}
        self.to_stop: list[int] = []
        self.work = 0  # how many tokens were created, moved or ended so far
        self.in_a_row_max = plan.limits.in_a_row
        self.turns = Turns(plan) if plan.exclusive else None
        self._standing = Standing(plan.cancellable) if plan.cancellable else None
        self._has_places = self.turns is not None or self._standing is not None
        self._nodes = plan.nodes
        self._ids = 0

    def new_id(self) -> int:
        """Return the next id. Tokens and forks share one count."""
        self._ids += 1
        return self._ids

    def create(self, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> Token:
        """Create a token in a branch of a fork."""
        self._ids += 1
        self.work += 1
        token = Token(self._ids, fork, index, scope, laps)
        self.by_id[token.id] = fork.tokens[token.id] = token
        return token

    def take(self, token_id: int) -> Token | None:
        """Return the token whose node has a result. Return None if the token no longer waits for that result. The token
        gets a new id, so that a repeated result is ignored.
        """
        token = self.by_id.pop(token_id, None)
        if token is not None:
            del token.fork.tokens[token_id]
            self._ids += 1
            token.id = self._ids
            self.by_id[token.id] = token.fork.tokens[token.id] = token
            if self.turns is not None and (following := self.turns.done(token)) is not None:
                self.to_start[following.id] = following
        return token

    def enter(self, token: Token, node: str) -> None:
        """Move a token to a node. Start the node if the token has its turn. Raises LimitExceeded."""
        token.node = node
        if self._standing is not None:
            self._standing.move(token, node)
        token.in_a_row += 1
        self.work += 1
        if token.in_a_row > self.in_a_row_max:
            what = f"{token.in_a_row:,} nodes in a row without anything to wait for (does it go round?)"
            raise beyond(self._nodes[node].place, what, "in_a_row", self.in_a_row_max)
        if self.turns is not None:
            may_run, following = self.turns.move(token, node)
            if following is not None:
                self.to_start[following.id] = following
            if not may_run:
                return
        self.to_start[token.id] = token

    def hold(self, token: Token, node: str) -> None:
        """Place a token before a node that it may not enter yet, because its branch has no slot."""
        token.node = node
        if self._standing is not None:
            self._standing.move(token, node)

    def remove(self, token: Token) -> None:
        """End a token whose node has ended or never started."""
        self.work += 1
        del self.by_id[token.id]
        del token.fork.tokens[token.id]
        self.to_start.pop(token.id, None)
        if self._has_places:
            self._leave(token)

    def stop(self, token: Token) -> None:
        """End a token. If its node runs, stop the node. The caller must remove the token from its fork."""
        self.work += 1
        del self.by_id[token.id]
        if self.to_start.pop(token.id, None) is None:
            self.to_stop.append(token.id)
        if self._has_places:
            self._leave(token)

    def stop_node(self, token: Token) -> None:
        """If the node of a token that is about to be removed runs, stop the node."""
        if token.id not in self.to_start:
            self.to_stop.append(token.id)

    def at_nodes(self, fork: Fork, names: Iterable[str]) -> list[Token]:
        """Return the tokens at these nodes, in the branch that contains a fork: see `Standing.within`."""
        return [] if self._standing is None else self._standing.within(fork, names)

    def _leave(self, token: Token) -> None:
        """Give up the token's turn at an exclusive node, and its entry among the tokens that edges can cancel."""
        if self._standing is not None:
            self._standing.leave(token)
        if self.turns is not None and (following := self.turns.leave(token)) is not None:
            self.to_start[following.id] = following


__all__ = ["LiveTokens"]
