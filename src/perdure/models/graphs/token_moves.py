"""The moves of tokens through a graph: what happens when a node ends, a token is forked, or a token arrives at a join.
This module is pure.

Each of these moves can cause any other move, so they are methods of one class. The rules for the moves are in other
modules: routes.py, forks.py, joins.py, cancellation.py, live_tokens.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any

from perdure.errors import ExpressionFailed, JoinFailed
from perdure.models.graphs.cancellation import Cancellation
from perdure.models.graphs.context import Scope
from perdure.models.graphs.decisions import Decisions
from perdure.models.graphs.forks import (
    BRANCHES_AT_ONCE_MAX,
    PendingBranches,
    forked,
    part_of,
    ways_of,
)
from perdure.models.graphs.joins import GOES_ON, Joins, late, merge, verdict
from perdure.models.graphs.limits import check_limits
from perdure.models.graphs.live_tokens import LiveTokens
from perdure.models.graphs.plan import Edge, Join, Node, Plan, Tiers
from perdure.models.graphs.routes import laps_after, matching, no_match
from perdure.models.graphs.rules_versions import ERRORS_RULES, FORKS_RULES, LAPS_RULES, OUTPUTS_RULES, PIECES_RULES
from perdure.models.graphs.spec import END, TERMINATE
from perdure.models.graphs.tokens import NO_LAPS, Fork, Meeting, Token, failed_branches, located, shown


class TokenMoves:
    """Moves the tokens of one run. `end` is set once the run has ended. After that nothing more happens."""

    def __init__(self, plan: Plan, input: Any, rules: int, tokens: LiveTokens | None = None) -> None:
        self.at = 0  # the time of the current result, in microseconds
        self.end: Decisions | None = None
        self.root = Fork(id=0, site="", total=1, scope=Scope(), outer=None, index=0, laps=NO_LAPS)
        self.tokens = LiveTokens(plan) if tokens is None else tokens
        self.joins = Joins(rules, plan.limits.merged_bytes)
        self.pending: deque[PendingBranches] = deque()
        self._cancellation = Cancellation(self.tokens, self.joins)
        self._plan = plan
        self._input = input
        self._rules = rules
        self._counts_laps = rules >= LAPS_RULES

    def begin(self) -> None:
        """Create the first token."""
        token = self.tokens.create(self.root, 0, self.root.scope, NO_LAPS)
        self.tokens.enter(token, self._plan.start)

    # Ends of the run.

    def finish(self, token: Token | None) -> None:
        """End the run. Its output is the value of the output mapping. Without a mapping, the output is the object at
        `output`.
        """
        if token is None:
            token = Token(0, self.root, 0, self.root.scope, NO_LAPS)
        output = self._plan.output
        value = token.scope.whole("output") if output is None else output.evaluate(token.view(self._input))
        self.end = Decisions([], [], [], [], output=value, ended=True)

    def fail_run(self, error: BaseException) -> None:
        self.end = Decisions([], [], [], [], failure=error, ended=True)

    # Ends of nodes.

    def complete(self, token: Token, value: Any) -> None:
        """Write the result of a token's node to the context, and move the token on."""
        node = self._plan.nodes[token.node]
        token.output = value
        if self._rules < ERRORS_RULES:
            token.error = None
        token.scope.put("nodes", node.name, value)
        written: list[tuple[str, Any]] = []
        try:
            if node.writes:
                view = token.view(self._input)
                written = [(target, source.evaluate(view)) for target, source in node.writes]
        except ExpressionFailed as error:
            if self._rules < OUTPUTS_RULES:
                raise
            about = {"type": "ExpressionFailed", "message": str(error), "node": node.name}
            self.fail(token, located(error, token.trail, node.name), {**about, **shown(token.trail)})
        else:
            self._go_on(token, node, written)

    def _go_on(self, token: Token, node: Node, written: Sequence[tuple[str, Any]]) -> None:
        for target, value in written:
            token.scope.write(target, value)
        if not node.onward:
            self._remove(token)
        elif not self._route(token, node.onward):
            if node.otherwise != "end":
                raise no_match(token, node, self._input, self.at)
            self._remove(token)

    def fail(self, token: Token, error: BaseException, about: dict[str, Any]) -> None:
        """Move a token whose node has failed. It follows an error edge, or goes to a join that tolerates the failure.
        Otherwise the run fails.
        """
        node = self._plan.nodes[token.node]
        token.error = about
        if self._route(token, node.on_failure):
            return
        fork, index = token.fork.enclosing(token.index, self._plan.joins)
        if fork is not None and (node.on_error == "branch_error" or self._tolerates(fork)):
            self.joins.fail_branch(fork, index, about, error)
            self._remove(token)
            self._look(fork)  # Other tokens of the branch may still run, but the branch counts as failed.
        else:
            self.fail_run(error)

    def _tolerates(self, fork: Fork) -> bool:
        return any(join.spec.tolerate is not None for join in self._plan.joins[fork.site])

    # Routes.

    def _route(self, token: Token, tiers: Tiers) -> bool:
        """Fire the first tier that has a match. Return whether a tier had a match."""
        if edges := matching(token, tiers, self._input, self.at):
            self._fire(token, edges)
            return True
        return False

    def _fire(self, token: Token, edges: Sequence[Edge]) -> None:
        for edge in edges:
            if edge.cancel:
                self._cancel_region(token, edge.cancel)
                if token.id not in self.tokens.by_id or self.end is not None:  # A join of its fork has ended the token.
                    return
            if edge.target == TERMINATE:
                self.finish(token)
                return
        ways = [edge for edge in edges if edge.target != END]
        if not ways:
            self._remove(token)
        elif len(ways) > 1 or ways[0].is_multiple:
            self._fork(token, ways)
        else:
            self._move(token, ways[0])

    def _move(self, token: Token, edge: Edge) -> None:
        if edge.limit is not None or edge.limit_us is not None:
            token.laps = laps_after(token, edge, self.at)
        if edge.join is None or not self._arrive(token, edge.join):
            self.tokens.enter(token, edge.target)

    def _cancel_region(self, token: Token, names: frozenset[str]) -> None:
        """End the tokens at these nodes in the branch that contains the token's fork. "*" ends all other tokens of the
        fork.
        """
        # The branches without tokens may be affected, so create their tokens first.
        while (pending := self.next_pending()) is not None:
            self.create_branches(pending)
        if "*" in names:
            self._cancellation.others(token)
        for other in self.tokens.at_nodes(token.fork, names):
            if other is not token and other.node in names and other.id in self.tokens.by_id:
                self.tokens.stop_node(other)
                self._remove(other)

    # Forks.

    def _fork(self, token: Token, edges: Sequence[Edge]) -> None:
        view = token.view(self._input)
        parts = [part_of(edge, view) for edge in edges]
        ways = ways_of(edges, parts)
        alive = len(self.tokens.by_id) - 1 + len(ways) + sum(map(len, self.pending))  # The forked token itself ends.
        place, nesting = self._plan.nodes[token.node].place, token.fork.depth + 1
        check_limits(place, self._plan.limits, branches=len(ways), tokens=alive, nesting=nesting)
        fork = forked(token, self.tokens.new_id(), edges, parts, ways)
        if self._rules >= FORKS_RULES:
            fork.base = token.scope.frozen()
        is_large = self._rules >= PIECES_RULES and fork.total > BRANCHES_AT_ONCE_MAX
        pending = PendingBranches(fork, token, ways, BRANCHES_AT_ONCE_MAX if is_large else fork.total)
        if is_large:
            self.pending.append(pending)
        self.create_branches(pending)

    def next_pending(self) -> PendingBranches | None:
        """Return the next branches that have no tokens yet, or None."""
        while self.pending and not self.pending[0]:
            self.pending.popleft()
        return self.pending[0] if self.pending and self.end is None else None

    def create_branches(self, pending: PendingBranches) -> None:
        """Create the tokens of the next branches of a fork, and route them."""
        fork, origin, is_first = pending.fork, pending.token, pending.at == 0
        created: list[Token] = []
        for index in pending.take():
            scope = Scope(fork.base)
            if fork.is_split:
                fork.scopes.append(scope)
            new = self.tokens.create(fork, index, scope, origin.laps)
            new.node, new.output, new.error = origin.node, origin.output, origin.error
            new.in_a_row = origin.in_a_row
            created.append(new)
        if is_first:
            self._remove(origin)
        for new in created:
            if new.id not in self.tokens.by_id:  # A join may already have enough branches, and have ended this token.
                continue
            edge = pending.ways[new.index]
            if fork.slots is None or fork.slots.admit(new):
                self._move(new, edge)
            else:
                self.tokens.hold(new, edge.target)
        if not pending:
            self._look(fork)

    # Ends of tokens and forks.

    def _remove(self, token: Token) -> None:
        self.tokens.remove(token)
        if self._counts_laps:
            token.fork.count(token.laps)
        self._release(token.fork, token.index)

    def _release(self, fork: Fork, index: int) -> None:
        """Note that a token or a fork that kept a branch alive has ended."""
        if not fork.release(index):
            return
        if fork.slots is not None and (following := fork.slots.leave(index)) is not None:
            self._move(*following)
        self._look(fork)

    def _look(self, fork: Fork) -> None:
        """Check whether joins of a fork can decide now, and whether the fork has ended."""
        if fork.outer is None:
            return
        joins = self._plan.joins.get(fork.site, ())
        for join in joins:
            if fork.closed or self.end is not None:
                return
            found = verdict(fork, join, is_first=join is joins[0], is_only=len(joins) == 1)
            if found is GOES_ON:
                self._meet(fork, join)
            elif found.why_never is not None:
                self._fail_join(fork, join, found.why_never)
        if (
            not fork.closed
            and self.end is None
            and fork.unfinished == 0
            and all(meeting.fired for meeting in fork.meetings.values())
        ):
            self._close(fork)

    def _close(self, fork: Fork) -> None:
        assert fork.outer is not None
        fork.closed = True
        if fork.is_split and not fork.meetings:
            for scope in fork.scopes:
                fork.scope.adopt(scope)
        del fork.outer.inner[fork.id]
        if self._counts_laps:
            fork.outer.count(fork.laps)
        self._release(fork.outer, fork.index)

    # Joins.

    def _arrive(self, token: Token, join: Join) -> bool:
        """Handle a token at a join. Returns False if the token is in no branch of the join's fork. Then it passes
        straight through.
        """
        fork, index = token.fork.enclosing(token.index, (join.fork,))
        if fork is None:
            return False
        outputs = tuple(
            token.output if merge.source is None else merge.source.evaluate(token.view(self._input))
            for merge in join.merges
        )
        if index not in fork.failed:
            self.joins.arrive(fork, join, index, outputs, token.in_a_row)
        if self._counts_laps:
            fork.count(token.laps)
        inner: Fork | None = token.fork
        while inner is not None and inner is not fork:
            inner.has_leavers = True
            inner = inner.outer
        self._remove(token)
        self._look(fork)
        return True

    def _meet(self, fork: Fork, join: Join, *, on_early: str | None = None) -> None:
        """Let the join go on. This happens once, with one token."""
        meeting = self.joins.fire(fork, join)
        try:
            merge(fork, join, meeting, self.joins.sizes)
        except JoinFailed as error:
            self._fail_join(fork, join, "", error)
            return
        token = self._token_behind(fork)
        token.in_a_row = fork.in_a_row if meeting.in_a_row is None else meeting.in_a_row
        if self._rules >= ERRORS_RULES:
            token.error = fork.error
        self.tokens.enter(token, join.target)
        if fork.unfinished and (on_early or join.spec.on_early) == "cancel":
            self._cancellation.within(fork)
            self._close(fork)

    def _token_behind(self, fork: Fork) -> Token:
        """Return the token that goes on behind a join. It is in the branch in which the fork was made."""
        assert fork.outer is not None
        fork.outer.live[fork.index] += 1
        return self.tokens.create(fork.outer, fork.index, fork.scope, fork.laps)

    def _fail_join(self, fork: Fork, join: Join, why: str, error: JoinFailed | None = None) -> None:
        """Fail a join that can never go on. The node behind the join fails before it begins."""
        if error is None:
            error = JoinFailed(f"{join.place}: {why}", place=join.place, branches=failed_branches(fork))
            if fork.failed:
                error.__cause__ = fork.failed[min(fork.failed)][1]
        meeting = fork.meetings.get(join.target)
        if meeting is None or not meeting.fired:
            self.joins.fire(fork, join)
        token = self._token_behind(fork)
        token.node = join.target
        token.in_a_row = fork.in_a_row
        self._cancellation.within(fork)
        self._close(fork)
        about = {"type": "JoinFailed", "message": str(error), "node": join.target, "failed": failed_branches(fork)}
        branches = token.trail
        self.fail(token, located(error, branches, join.target), {**about, **shown(branches)})

    def time_out(self, fork: Fork, meeting: Meeting) -> None:
        """Handle the timeout of a waiting join. The join goes on with the branches that have arrived, or fails."""
        if meeting.join.spec.on_timeout == "proceed":
            self._meet(fork, meeting.join, on_early="cancel")
        else:
            self._fail_join(fork, meeting.join, late(fork, meeting))


__all__ = ["TokenMoves"]
