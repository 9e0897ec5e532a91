"""The machine decides what happens next in a run of a graph. It is pure: it uses no asyncio, no I/O and no clock.

The machine gets results and returns decisions. The same results in the same order give the same decisions, live and in
replay. A result for a token that no longer exists is ignored. Such a result came late or twice. token_moves.py moves
the tokens.
"""

from __future__ import annotations

from typing import Any

from perdure.errors import GraphFailed
from perdure.models.graphs.decisions import Decisions, TimerKey
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.rules_versions import RULES
from perdure.models.graphs.token_moves import TokenMoves
from perdure.models.graphs.tokens import located, shown


class Machine:
    """One run of a graph. A run that began with earlier rules keeps these rules: see rules_versions.py."""

    def __init__(self, plan: Plan, input: Any, rules: int = RULES, moves: TokenMoves | None = None) -> None:
        self._moves = TokenMoves(plan, input, rules) if moves is None else moves
        self.tokens = self._moves.tokens

    @property
    def ended(self) -> bool:
        return self._moves.end is not None

    def set_time(self, at: int) -> None:
        """Set the time of the next results, in microseconds."""
        self._moves.at = at

    def begin(self) -> Decisions:
        """Create the first token, at the graph's first node."""
        self._moves.begin()
        return self._decided()

    def completed(self, token_id: int, value: Any) -> Decisions:
        """Handle the result of a token's node."""
        token = self.tokens.take(token_id) if self._moves.end is None else None
        if token is not None:
            node = token.node
            try:
                self._moves.complete(token, value)
            except GraphFailed as error:
                self._moves.fail_run(located(error, token.trail, node))
        return self._decided()

    def failed(self, token_id: int, error: BaseException, about: dict[str, Any]) -> Decisions:
        """Handle the failure of a token's node. Expressions see `about` as `error`."""
        token = self.tokens.take(token_id) if self._moves.end is None else None
        if token is not None:
            node, branches = token.node, token.trail
            try:
                self._moves.fail(token, located(error, branches, node), {**about, **shown(branches)})
            except GraphFailed as trouble:
                trouble.__context__ = error
                self._moves.fail_run(located(trouble, branches, node))
        return self._decided()

    def due(self, key: TimerKey) -> Decisions:
        """Handle the timeout of a join."""
        found = self._moves.joins.due(key)
        if found is not None and self._moves.end is None:
            try:
                self._moves.time_out(*found)
            except GraphFailed as error:
                self._moves.fail_run(error)
        return self._decided()

    def terminate(self, token_id: int, error: GraphFailed | None = None) -> Decisions:
        """End the whole run, with its output or as a failure."""
        token = self.tokens.take(token_id) if self._moves.end is None else None
        if token is not None:
            try:
                if error is not None:
                    raise error
                self._moves.finish(token)
            except GraphFailed as trouble:
                self._moves.fail_run(located(trouble, token.trail, token.node))
        return self._decided()

    def give_up(self, error: GraphFailed) -> Decisions:
        """Fail the run at once."""
        if self._moves.end is None:
            self._moves.fail_run(error)
        return self._decided()

    @property
    def is_growing(self) -> bool:
        """Whether some branches have no tokens yet. If so, `grow` must be called before any result is handled."""
        moves = self._moves
        return bool(moves.pending) and moves.next_pending() is not None

    def grow(self) -> Decisions:
        """Create the next tokens of a fork."""
        pending = self._moves.next_pending()
        if pending is not None:
            token = pending.token
            try:
                self._moves.create_branches(pending)
            except GraphFailed as error:
                self._moves.fail_run(located(error, token.trail, token.node))
        return self._decided()

    def _decided(self) -> Decisions:
        moves, tokens, joins = self._moves, self.tokens, self._moves.joins
        if moves.end is None and moves.root.unfinished == 0:
            try:
                moves.finish(None)
            except GraphFailed as error:
                moves.fail_run(error)
        if moves.end is not None:
            return moves.end
        decided = Decisions(tokens.to_stop, joins.timers_to_drop, joins.timers_to_set, [*tokens.to_start.values()])
        tokens.to_stop, joins.timers_to_drop, joins.timers_to_set, tokens.to_start = [], [], [], {}
        return decided


__all__ = ["Machine"]
