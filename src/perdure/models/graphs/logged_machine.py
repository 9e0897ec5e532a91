"""A machine that logs what happens to its tokens. Only replays for views use it, so live runs do not pay for it.

Each class here is a part of the machine that also writes to the log: the tokens, the moves of tokens, and the machine
itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from perdure.models.graphs.context import Scope
from perdure.models.graphs.decisions import Decisions
from perdure.models.graphs.forks import PendingBranches
from perdure.models.graphs.kinds.plain import SetWork
from perdure.models.graphs.live_tokens import LiveTokens
from perdure.models.graphs.machine import Machine
from perdure.models.graphs.plan import Edge, Join, Node, Plan, Tiers
from perdure.models.graphs.rules_versions import RULES
from perdure.models.graphs.spec import END, TERMINATE
from perdure.models.graphs.token_log import TokenLog, edge_name
from perdure.models.graphs.token_moves import TokenMoves
from perdure.models.graphs.token_views import TokenState
from perdure.models.graphs.tokens import Fork, Meeting, Token, shown


class WatchedTokens(LiveTokens):
    """Logs how tokens begin, move and end. The moves set these fields, which say what is going on."""

    def __init__(self, plan: Plan, log: TokenLog) -> None:
        super().__init__(plan)
        self.parent: int | None = None  # the token that is being forked
        self.arriving: Token | None = None  # the token that is reaching a join
        self.failing: Token | None = None  # the token whose node has failed and that has no error edge to follow
        self.acting: Token | None = None  # the token whose edges are firing
        self._log = log
        self._origins: dict[Fork, int] = {}

    def create(self, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> Token:
        token = super().create(fork, index, scope, laps)
        self.know(fork)
        self._log.created(token, self.parent)
        return token

    def know(self, fork: Fork) -> None:
        """Remember which token was forked. It is the parent of the tokens behind the fork's joins."""
        if fork.outer is not None and self.parent is not None:
            self._origins.setdefault(fork, self.parent)

    def origin(self, fork: Fork) -> int | None:
        """Return the id of the token that was forked."""
        return self._origins.get(fork)

    def enter(self, token: Token, node: str) -> None:
        super().enter(token, node)
        self._log.become(token, "pending")

    def remove(self, token: Token) -> None:
        log, why = self._log, self._log.why
        meeting = log.live[token].meeting
        if token is self.arriving and meeting is not None:
            self._log_arrival(token, *meeting)
        elif token is self.failing:
            log.over(token, "failed", error=token.error)
        elif token is not self.acting and why is not None:
            state, reason = why
            if token.id in log.running:
                log.note("node_cancelled", token)
            log.over(token, state, reason=reason)
        else:
            log.over(token, "completed")
        super().remove(token)

    def _log_arrival(self, token: Token, fork: Fork, target: str) -> None:
        self._log.note("token_arrived", token, join=target)
        meeting = fork.meetings.get(target)
        if meeting is None or meeting.fired:
            self._log.live[token].meeting = None
            self._log.over(token, "completed")
        else:
            self._log.wait(token, fork, target)

    def stop(self, token: Token) -> None:
        state, reason = self._log.why or ("cancelled", "it was cancelled")
        if token.id in self._log.running:
            self._log.note("node_cancelled", token)
            self._log.note_child("child_cancelled", token)
        self._log.over(token, state, reason=reason)
        super().stop(token)


class WatchedFlow(TokenMoves):
    """Logs the events of a run's tokens: transitions, forks, joins, failures."""

    def __init__(self, plan: Plan, input: Any, rules: int, log: TokenLog) -> None:
        self._watched = WatchedTokens(plan, log)
        super().__init__(plan, input, rules, self._watched)
        self.current: Token | None = None  # the token whose result the machine is handling
        self.completing: Token | None = None  # the token whose node has a result that is not written to the context yet
        self._log = log
        self._staged_count = 0

    # Ends of nodes.

    def _go_on(self, token: Token, node: Node, written: Sequence[tuple[str, Any]]) -> None:
        self.completing = None
        self._log.completions[node.name] += 1
        self._log.note("node_completed", token)
        self._log.note_child("child_completed", token)
        own = node.work.targets if isinstance(node.work, SetWork) else ()
        if targets := [*own, *(target for target, _ in written)]:
            self._log.note("context_updated", token, targets=targets)
        self._log_artifacts(token)
        super()._go_on(token, node, written)

    def fail(self, token: Token, error: BaseException, about: dict[str, Any]) -> None:
        if self.completing is token:  # The node has a result, but its `output` could not be evaluated.
            self.completing = None
            self._log.failures[token.node] += 1
            self._log.note("node_failed", token, error=about)
            self._log.note_child("child_completed", token)
            self._log_artifacts(token)
        failing, self._watched.failing = self._watched.failing, token
        super().fail(token, error, about)
        self.log_end()
        self._watched.failing = failing

    def _log_artifacts(self, token: Token) -> None:
        count = self.root.scope.find("staged", "count", 0)
        if count != self._staged_count:
            self._staged_count = count
            self._log.note_artifacts(token, self.root.scope.whole("artifacts"))

    def log_end(self) -> None:
        """If the run has ended, log its end, and end all its tokens."""
        if self.end is None or self._log.is_over:
            return
        failure = self.end.failure
        if failure is None:
            if self.current is not None:
                self._log.over(self.current, "completed")
            self._log.close("run_completed")
            return
        culprit = self._watched.failing or self.current
        about = {"type": type(failure).__name__, "message": str(failure)}
        if culprit is not None:
            self._log.over(culprit, "failed", error={**about, "node": culprit.node, **shown(culprit.trail)})
        self._log.close("run_failed", **about)

    # Routes.

    def _route(self, token: Token, tiers: Tiers) -> bool:
        # A token that goes on along an error edge has not failed.
        failing, self._watched.failing = self._watched.failing, None
        has_matched = super()._route(token, tiers)
        self._watched.failing = failing
        return has_matched

    def _fire(self, token: Token, edges: Sequence[Edge]) -> None:
        for edge in edges:
            if edge.target in (END, TERMINATE):
                self._log.note("transition_taken", token, edge)
        cancels = [edge for edge in edges if edge.cancel]
        acting, self._watched.acting = self._watched.acting, token
        why = f"the edge {edge_name(cancels[0])} cancelled it" if cancels else ""
        with self._log.because("cancelled", why) if cancels else nullcontext():
            super()._fire(token, edges)
        self._watched.acting = acting

    def _move(self, token: Token, edge: Edge) -> None:
        self._log.note("transition_taken", token, edge)
        super()._move(token, edge)

    # Forks.

    def _fork(self, token: Token, edges: Sequence[Edge]) -> None:
        parent, self._watched.parent = self._watched.parent, self._log.live[token].id
        super()._fork(token, edges)
        self._watched.parent = parent

    def create_branches(self, pending: PendingBranches) -> None:
        parent = self._watched.parent
        if (origin := self._watched.origin(pending.fork)) is not None:
            self._watched.parent = origin
        super().create_branches(pending)
        self._watched.parent = parent

    def _look(self, fork: Fork) -> None:
        self._watched.know(fork)
        super()._look(fork)

    def _close(self, fork: Fork) -> None:
        for waiting in self._log.waiting.pop(fork, {}).values():
            for record in waiting:
                record.meeting = None
                self._log.end(record, "completed")
        super()._close(fork)

    # Joins.

    def _arrive(self, token: Token, join: Join) -> bool:
        arriving, self._watched.arriving = self._watched.arriving, token
        record = self._log.live[token]
        fork, _ = token.fork.enclosing(token.index, (join.fork,))
        if fork is not None:
            record.meeting = (fork, join.target)
        has_arrived = super()._arrive(token, join)
        self._watched.arriving = arriving
        if not has_arrived:
            record.meeting = None
        return has_arrived

    def _meet(self, fork: Fork, join: Join, *, on_early: str | None = None) -> None:
        for record in self._log.waiting.get(fork, {}).pop(join.target, ()):
            self._log.end(record, "completed")
            self._log.note_of("token_merged", record, join=join.target)
        self._log.note("join_completed", node=join.target, fork=fork.site)
        if join.merges:
            self._log.note("context_updated", node=join.target, targets=[merge.spec.target for merge in join.merges])
        parent, self._watched.parent = self._watched.parent, self._watched.origin(fork)
        why = f"the join at {join.target!r} went on without it"
        with nullcontext() if self._log.is_timing_out else self._log.because("cancelled", why):
            super()._meet(fork, join, on_early=on_early)
        self._watched.parent = parent

    def _fail_join(self, fork: Fork, join: Join, why: str, error: Any = None) -> None:
        state: TokenState = "timed_out" if self._log.is_timing_out else "cancelled"
        reason = f"the join at {join.target!r} failed"
        for record in self._log.waiting.get(fork, {}).pop(join.target, ()):
            self._log.end(record, state, reason=reason)
        self._log.note("join_failed", node=join.target, fork=fork.site, why=why or str(error))
        parent, self._watched.parent = self._watched.parent, self._watched.origin(fork)
        with self._log.because(state, reason):
            super()._fail_join(fork, join, why, error)
        self._watched.parent = parent

    def time_out(self, fork: Fork, meeting: Meeting) -> None:
        with self._log.because("timed_out", f"it did not arrive at {meeting.join.target!r} in time"):
            super().time_out(fork, meeting)


class WatchedMachine(Machine):
    """Logs the results of nodes, and the starts and stops of nodes."""

    def __init__(self, plan: Plan, input: Any, log: TokenLog, rules: int = RULES) -> None:
        self._watched = WatchedFlow(plan, input, rules, log)
        super().__init__(plan, input, rules, self._watched)
        self.log = log
        self._start = plan.start

    @property
    def root(self) -> Fork:
        """The outermost fork, which contains all other forks."""
        return self._watched.root

    def begin(self) -> Decisions:
        self.log.note("run_started", node=self._start)
        return super().begin()

    def completed(self, token_id: int, value: Any) -> Decisions:
        self._watched.current = self._watched.completing = self.log.running.pop(token_id, None)
        return super().completed(token_id, value)

    def failed(self, token_id: int, error: BaseException, about: dict[str, Any]) -> Decisions:
        token = self.log.running.pop(token_id, None)
        if token is not None:
            self.log.failures[token.node] += 1
            self.log.note("node_failed", token, error={**about, **shown(token.trail)})
            self.log.note_child("child_failed", token)
        self._watched.current = token
        return super().failed(token_id, error, about)

    def terminate(self, token_id: int, error: Any = None) -> Decisions:
        token = self.log.running.pop(token_id, None)
        if token is not None:
            (self.log.completions if error is None else self.log.failures)[token.node] += 1
            self.log.note("node_completed" if error is None else "node_failed", token)
        self._watched.current = token
        return super().terminate(token_id, error)

    def _decided(self) -> Decisions:
        decided = super()._decided()
        log = self.log
        for token_id in decided.cancel:
            if (token := log.running.pop(token_id, None)) is not None:
                log.cancellations[token.node] += 1
        for token in decided.run:
            log.running[token.id] = token
            log.become(token, "waiting_for_child" if log.has_child(token) else "executing")
            log.note("node_started", token)
            log.note_child("child_started", token)
        self._watched.log_end()
        self._watched.current = None
        return decided


__all__ = ["WatchedMachine"]
