"""Cancellation: ends the tokens of a fork at once. After that, no join of the fork decides anything. This module is
pure.
"""

from __future__ import annotations

from perdure.models.graphs.joins import Joins
from perdure.models.graphs.live_tokens import LiveTokens
from perdure.models.graphs.tokens import Fork, Token


class Cancellation:
    """Ends the tokens in a fork."""

    def __init__(self, tokens: LiveTokens, joins: Joins) -> None:
        self._tokens = tokens
        self._joins = joins

    def within(self, fork: Fork) -> None:
        """End all tokens in a fork."""
        for token in fork.tokens.values():
            self._tokens.stop(token)
        self._close_inner(fork)
        for meeting in fork.meetings.values():
            self._joins.drop_timer(fork, meeting)
            meeting.still_live = 0
        fork.tokens.clear()
        fork.live = [0] * fork.total
        fork.unfinished = fork.failed_live = 0
        fork.slots = None

    def others(self, token: Token) -> None:
        """End all tokens in a token's fork except the token itself. The joins of the fork keep waiting for this
        token.
        """
        fork = token.fork
        for other in fork.tokens.values():
            if other is not token:
                self._tokens.stop(other)
        self._close_inner(fork)
        fork.tokens = {token.id: token}
        fork.live = [0] * fork.total
        fork.live[token.index] = fork.unfinished = 1
        fork.failed_live = int(token.index in fork.failed)
        fork.slots = None
        for meeting in fork.meetings.values():
            meeting.still_live = int(token.index in meeting.arrived)

    def _close_inner(self, fork: Fork) -> None:
        for inner in fork.inner.values():
            inner.closed = True
            self.within(inner)
        fork.inner.clear()


__all__ = ["Cancellation"]
