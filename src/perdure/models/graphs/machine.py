"""Decides what happens next in a run of a graph. Pure: no asyncio, no I/O, no clock.

The machine gets results and returns decisions. The same results in the same order give the same decisions, live and in
replay. A result for a token that no longer exists (late, or twice) changes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.errors import ExpressionFailed, GraphFailed, JoinFailed, NoMatchingEdge
from perdure.models.graphs.cancellable_tokens import Standing
from perdure.models.graphs.context import Scope
from perdure.models.graphs.decisions import Decisions, TimerKey
from perdure.models.graphs.exclusive_nodes import Turns
from perdure.models.graphs.forks import BORN_AT_ONCE_MAX, Unborn, beyond, part_of, size_of
from perdure.models.graphs.plan import Edge, Join, Node, Plan, Tiers
from perdure.models.graphs.slots import Slots
from perdure.models.graphs.spec import END, TERMINATE
from perdure.models.graphs.tokens import (
    NO_LAPS,
    Fork,
    Meeting,
    Token,
    failed_branches,
    failures,
    items_of,
    located,
    shown,
)

RULES: Final = 3
LAPS_RULES: Final = 1  # From these rules on laps count through joins,
SLICES_RULES: Final = 1  # long routing is done in several activations,
ERRORS_RULES: Final = 1  # a token sees the last error on its way, not only until the next node has ended,
KEYS_RULES: Final = 1  # and idempotency keys name the node, its branches and the visit, and not the position.
PIECES_RULES: Final = 2  # From these on the tokens of a large fork are made, and nodes begun, in smaller pieces.
FORKS_RULES: Final = 3  # From these on branches see the context as it was when their fork was made,
OUTPUTS_RULES: Final = 3  # and a node whose `output` cannot be evaluated has failed.


class Machine:
    """One run of a graph. A run that began with earlier rules goes on with them, since its journal follows them."""

    def __init__(self, plan: Plan, input: Any, rules: int = RULES) -> None:
        self._plan = plan
        self._rules = rules
        self.in_a_row_max = plan.limits.in_a_row
        self.at = 0  # the time of the current result, in µs
        self.work = 0  # tokens that were created, moved or ended so far
        self._input = input
        self._ids = 0
        self._root = Fork(id=0, site="", total=1, scope=Scope(), outer=None, index=0, laps=NO_LAPS)
        self._tokens: dict[int, Token] = {}
        self._timed: dict[TimerKey, tuple[Fork, Meeting]] = {}
        self._run: dict[int, Token] = {}
        self._unborn: deque[Unborn] = deque()
        self._turns = Turns(plan) if plan.exclusive else None
        self._standing = Standing(plan.cancellable) if plan.cancellable else None
        self._decisions = Decisions([], [], [], [])

    @property
    def input(self) -> Any:
        return self._input

    @property
    def tokens(self) -> Mapping[int, Token]:
        """The live tokens, by id."""
        return self._tokens

    @property
    def ended(self) -> bool:
        return self._decisions.ended

    # Results.

    def begin(self) -> Decisions:
        token = self._token(self._root, 0, self._root.scope, NO_LAPS)
        self._enter(token, self._plan.start)
        return self._decided()

    def completed(self, token_id: int, value: Any) -> Decisions:
        """Handle the result of a token's node."""
        token = self._token_of(token_id)
        if token is not None:
            node = token.node
            try:
                self._complete(token, value)
            except GraphFailed as error:
                self._fail_run(located(error, token.trail, node))
        return self._decided()

    def failed(self, token_id: int, error: BaseException, about: dict[str, Any]) -> Decisions:
        """Handle the failure of a token's node. `about` is what expressions see as `error`."""
        token = self._token_of(token_id)
        if token is not None:
            node, branches = token.node, token.trail
            try:
                self._fail(token, located(error, branches, node), {**about, **shown(branches)})
            except GraphFailed as trouble:
                trouble.__context__ = error
                self._fail_run(located(trouble, branches, node))
        return self._decided()

    def due(self, key: TimerKey) -> Decisions:
        """Handle the timeout of a join."""
        found = self._timed.pop(key, None)
        if found is not None and not self.ended:
            fork, meeting = found
            meeting.has_timer = False
            try:
                self._time_out(fork, meeting)
            except GraphFailed as error:
                self._fail_run(error)
        return self._decided()

    def terminate(self, token_id: int, error: GraphFailed | None = None) -> Decisions:
        """End the whole run: with its output, or as a failure."""
        token = self._token_of(token_id)
        if token is not None:
            try:
                if error is not None:
                    raise error
                self._finish(token)
            except GraphFailed as trouble:
                self._fail_run(located(trouble, token.trail, token.node))
        return self._decided()

    def give_up(self, error: GraphFailed) -> Decisions:
        """Fail the run, whatever it does."""
        if not self.ended:
            self._fail_run(error)
        return self._decided()

    @property
    def is_growing(self) -> bool:
        """Whether branches have no tokens yet. Then `grow` must be called before any result is handled."""
        while self._unborn and not self._unborn[0]:
            self._unborn.popleft()
        return bool(self._unborn) and not self.ended

    def grow(self) -> Decisions:
        """Create the next tokens of a fork."""
        if self.is_growing:
            token = self._unborn[0].token
            try:
                self._bear(self._unborn[0])
            except GraphFailed as error:
                self._fail_run(located(error, token.trail, token.node))
        return self._decided()

    def _token_of(self, token_id: int) -> Token | None:
        """Return the token of a result, if it still waits for that result. The token gets another id, so that a
        repeated result is ignored."""
        token = None if self.ended else self._tokens.pop(token_id, None)
        if token is not None:
            del token.fork.tokens[token_id]
            self._ids += 1
            token.id = self._ids
            self._tokens[token.id] = token.fork.tokens[token.id] = token
            if self._turns is not None:
                self._let_run(self._turns.done(token))
        return token

    def _decided(self) -> Decisions:
        decided = self._decisions
        if decided.ended:
            return decided
        if self._root.unfinished == 0:
            try:
                self._finish(None)
            except GraphFailed as error:
                self._fail_run(error)
            return self._decisions
        decided.run = list(self._run.values())
        self._run = {}
        self._decisions = Decisions([], [], [], [])
        return decided

    # Ends of nodes.

    def _complete(self, token: Token, value: Any) -> None:
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
            self._fail(token, located(error, token.trail, node.name), {**about, **shown(token.trail)})
        else:
            self._go_on(token, node, written)

    def _go_on(self, token: Token, node: Node, written: Sequence[tuple[str, Any]]) -> None:
        for target, value in written:
            token.scope.write(target, value)
        if not node.onward:
            self._remove(token)
        elif not self._route(token, node.onward):
            if node.otherwise != "end":
                raise self._stuck(token, node)
            self._remove(token)

    def _fail(self, token: Token, error: BaseException, about: dict[str, Any]) -> None:
        node = self._plan.nodes[token.node]
        token.error = about
        if self._route(token, node.on_failure):
            return
        found = self._taken_by(token)
        if found is not None and (node.on_error == "branch_error" or self._tolerates(found[0])):
            fork, index = found
            self._fail_branch(fork, index, about, error)
            self._remove(token)
            self._look(fork)  # Other tokens of the branch may still run, but the branch no longer counts.
        else:
            self._fail_run(error)

    def _fail_branch(self, fork: Fork, index: int, about: dict[str, Any], error: BaseException) -> None:
        """Mark a branch as failed, whatever else of it has arrived or still arrives."""
        if index in fork.failed:
            return
        fork.failed[index] = (about, error)
        fork.failed_live += 1
        for target, meeting in list(fork.meetings.items()):
            if not meeting.fired and meeting.arrived.pop(index, None) is not None:
                meeting.still_live -= 1
                if not meeting.arrived:
                    self._drop_timer(fork, meeting)
                    del fork.meetings[target]

    def _taken_by(self, token: Token) -> tuple[Fork, int] | None:
        """Return the innermost fork whose join can take a failure, with the token's branch of it."""
        fork: Fork | None = token.fork
        index = token.index
        while fork is not None and fork.site not in self._plan.joins:
            index, fork = fork.index, fork.outer
        return None if fork is None else (fork, index)

    def _tolerates(self, fork: Fork) -> bool:
        return any(join.spec.tolerate is not None for join in self._plan.joins[fork.site])

    def _finish(self, token: Token | None) -> None:
        """End the run. Its output is what the mapping says, or what was written to `output`."""
        if token is None:
            token = Token(0, self._root, 0, self._root.scope, NO_LAPS)
        output = self._plan.output
        value = token.scope.whole("output") if output is None else output.evaluate(token.view(self._input))
        self._decisions = Decisions([], [], [], [], output=value, ended=True)

    def _fail_run(self, error: BaseException) -> None:
        self._decisions = Decisions([], [], [], [], failure=error, ended=True)

    # Routing.

    def _route(self, token: Token, tiers: Tiers) -> bool:
        """Fire the first tier that has a match; return whether there was one."""
        view = None
        for tier in tiers:
            matches: list[Edge] = []
            for edge in tier:
                if self._over_limit(token, edge) is not None:
                    continue
                if edge.when is not None:
                    view = view or token.view(self._input)
                    if not edge.when.condition(view):
                        continue
                matches.append(edge)
            if matches:
                self._fire(token, matches)
                return True
        return False

    def _over_limit(self, token: Token, edge: Edge) -> str | None:
        """Return why the token may not take the edge again; None if it may."""
        if edge.limit is not None and token.laps.get(edge.number, 0) >= edge.limit:
            return f"the limit of {edge.limit} is reached"
        if edge.limit_us is not None and self.at - token.laps.get(edge.began, self.at) >= edge.limit_us:
            return f"the time of {edge.limit_us / 1_000_000:g} s is over"
        return None

    def _stuck(self, token: Token, node: Node) -> NoMatchingEdge:
        view = token.view(self._input)
        why: list[str] = []
        for edge in (edge for tier in node.onward for edge in tier):
            if (over := self._over_limit(token, edge)) is not None:
                why.append(f"to {edge.target!r} {over}")
            elif edge.when is not None:
                why.append(f"to {edge.target!r} when {edge.when.source!r} ({edge.when.values(view)})")
        message = f'{node.place}: no edge matches: {"; ".join(why)}; give it otherwise="end", or an edge that does'
        return NoMatchingEdge(message, place=node.place)

    def _fire(self, token: Token, edges: Sequence[Edge]) -> None:
        for edge in edges:
            if edge.cancel:
                self._cancel_region(token, edge.cancel)
                if token.id not in self._tokens or self.ended:  # A join of its fork has ended the token.
                    return
            if edge.target == TERMINATE:
                self._finish(token)
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
            token.laps = {**token.laps, edge.number: token.laps.get(edge.number, 0) + 1}
            if edge.limit_us is not None and edge.began not in token.laps:
                token.laps = {**token.laps, edge.began: self.at}
        if edge.join is None or not self._arrive(token, edge.join):
            self._enter(token, edge.target)

    def _enter(self, token: Token, node: str) -> None:
        token.node = node
        if self._standing is not None:
            self._standing.move(token, node)
        token.in_a_row += 1
        self.work += 1
        if token.in_a_row > self.in_a_row_max:
            what = f"{token.in_a_row:,} nodes in a row without anything to wait for (does it go round?)"
            raise beyond(self._plan.nodes[token.node].place, what, "in_a_row", self.in_a_row_max)
        if self._turns is not None:
            may_run, following = self._turns.move(token, node)
            self._let_run(following)
            if not may_run:
                return
        self._run[token.id] = token

    def _let_run(self, token: Token | None) -> None:
        """Run the node of a token whose turn has come."""
        if token is not None:
            self._run[token.id] = token

    # Forks.

    def _fork(self, token: Token, edges: Sequence[Edge]) -> None:
        view = token.view(self._input)
        parts = [part_of(edge, view) for edge in edges]
        ways = [edge for edge, part in zip(edges, parts, strict=True) for _ in range(size_of(part))]
        limits, outer, place = self._plan.limits, token.fork, self._plan.nodes[token.node].place
        if len(ways) > limits.branches:
            raise beyond(place, f"{len(ways):,} branches", "branches", limits.branches)
        alive = len(self._tokens) - 1 + len(ways) + sum(map(len, self._unborn))  # The token that is forked ends.
        if alive > limits.tokens:
            raise beyond(place, f"{alive:,} tokens", "tokens", limits.tokens)
        if outer.depth + 1 > limits.nesting:
            raise beyond(place, f"{outer.depth + 1} forks inside each other", "nesting", limits.nesting)
        self._ids += 1
        fork = Fork(
            id=self._ids,
            site=token.node,
            total=len(ways),
            scope=token.scope,
            outer=outer,
            index=token.index,
            laps=token.laps,
        )
        if self._rules >= FORKS_RULES:
            fork.base = token.scope.frozen()
        fork.is_split = not any(edge.is_multiple for edge in edges)
        fork.items = items_of(parts)
        fork.in_a_row, fork.error = token.in_a_row, token.error
        fork.slots = Slots(ways) if any(edge.at_once is not None for edge in edges) else None
        outer.inner[fork.id] = fork
        outer.live[token.index] += 1
        is_large = self._rules >= PIECES_RULES and fork.total > BORN_AT_ONCE_MAX
        unborn = Unborn(fork, token, ways, BORN_AT_ONCE_MAX if is_large else fork.total)
        if is_large:
            self._unborn.append(unborn)
        self._bear(unborn)

    def _bear(self, unborn: Unborn) -> None:
        """Create the tokens of the next branches of a fork, and route them."""
        fork, origin, is_first = unborn.fork, unborn.token, unborn.at == 0
        born: list[Token] = []
        for index in unborn.take():
            scope = Scope(fork.base)
            if fork.is_split:
                fork.scopes.append(scope)
            new = self._token(fork, index, scope, origin.laps)
            new.node, new.output, new.error = origin.node, origin.output, origin.error
            new.in_a_row = origin.in_a_row
            born.append(new)
        if is_first:
            self._remove(origin)
        for new in born:
            if new.id not in self._tokens:  # An earlier branch may have been enough for a join.
                continue
            edge = unborn.ways[new.index]
            if fork.slots is None or fork.slots.admit(new):
                self._move(new, edge)
            else:
                new.node = edge.target
                if self._standing is not None:
                    self._standing.move(new, edge.target)
        if not unborn:
            self._look(fork)

    def _token(self, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> Token:
        self._ids += 1
        self.work += 1
        token = Token(self._ids, fork, index, scope, laps)
        self._tokens[token.id] = fork.tokens[token.id] = token
        return token

    # Ends of tokens.

    def _remove(self, token: Token) -> None:
        self.work += 1
        del self._tokens[token.id]
        del token.fork.tokens[token.id]
        self._run.pop(token.id, None)
        if self._standing is not None:
            self._standing.leave(token)
        if self._turns is not None:
            self._let_run(self._turns.leave(token))
        self._count(token.fork, token.laps)
        self._release(token.fork, token.index)

    def _release(self, fork: Fork, index: int) -> None:
        """Note that something which kept a branch alive has ended."""
        fork.live[index] -= 1
        if fork.live[index]:
            return
        fork.unfinished -= 1
        if index in fork.failed:
            fork.failed_live -= 1
        for meeting in fork.meetings.values():
            if index in meeting.arrived:
                meeting.still_live -= 1
        if fork.slots is not None and (following := fork.slots.leave(index)) is not None:
            self._move(*following)
        self._look(fork)

    def _look(self, fork: Fork) -> None:
        """Check whether joins of a fork can decide now, and whether the fork is over."""
        if fork.outer is None:
            return
        joins = self._plan.joins.get(fork.site, ())
        for join in joins:
            if fork.closed or self.ended:
                return
            self._decide(fork, join, is_first=join is joins[0], is_only=len(joins) == 1)
        if (
            not fork.closed
            and not self.ended
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
        self._count(fork.outer, fork.laps)
        self._release(fork.outer, fork.index)

    # Joins.

    def _arrive(self, token: Token, join: Join) -> bool:
        """Handle a token at a join. Returns False if it is in no branch of its fork, and passes straight through."""
        fork: Fork | None = token.fork
        index = token.index
        while fork is not None and fork.site != join.fork:
            index, fork = fork.index, fork.outer
        if fork is None:
            return False
        outputs = tuple(
            token.output if merge.source is None else merge.source.evaluate(token.view(self._input))
            for merge in join.merges
        )
        if index not in fork.failed:
            self._note_arrival(fork, join, index, outputs, token.in_a_row)
        self._count(fork, token.laps)
        inner: Fork | None = token.fork
        while inner is not None and inner is not fork:
            inner.has_leavers = True
            inner = inner.outer
        self._remove(token)
        self._look(fork)
        return True

    def _note_arrival(self, fork: Fork, join: Join, index: int, outputs: tuple[Any, ...], in_a_row: int) -> None:
        meeting = fork.meetings.get(join.target)
        if meeting is None:
            meeting = fork.meetings[join.target] = Meeting(join)
        if meeting.fired:
            if join.spec.on_early == "late_merge":
                for merge, output in zip(join.merges, outputs, strict=True):
                    merge.add_late(index, output, fork.scope)
            return
        if index not in meeting.arrived:
            meeting.still_live += 1
        meeting.arrived[index] = outputs
        meeting.in_a_row = in_a_row if meeting.in_a_row is None else min(in_a_row, meeting.in_a_row)
        if join.spec.timeout is not None and not meeting.has_timer:
            self._set_timer(fork, meeting, join.spec.timeout)

    def _decide(self, fork: Fork, join: Join, *, is_first: bool, is_only: bool) -> None:
        meeting = fork.meetings.get(join.target)
        if meeting is not None and meeting.fired:
            return
        arrived = 0 if meeting is None else len(meeting.arrived)
        # If no token is at any join, the first join decides, unless tokens went on to an outer fork's join.
        alone = is_first and not fork.meetings and not fork.has_leavers and fork.unfinished == 0
        enough = join.enough
        if enough is None:
            tolerated = join.tolerated(fork.total)
            if tolerated is not None and len(fork.failed) > tolerated:
                why = f"{len(fork.failed):,} of {fork.total:,} branches have failed, and it tolerates {tolerated:,}"
                self._fail_join(fork, join, f"{why}: {failures(fork)}")
            elif arrived and not fork.unfinished:
                self._meet(fork, join)
            elif alone and fork.failed:
                why = f"all {len(fork.failed):,} branches that were to arrive have failed"
                self._fail_join(fork, join, f"{why}: {failures(fork)}")
            elif alone and not fork.is_split:
                self._meet(fork, join)
        elif fork.total == 0:
            if is_first:
                self._meet(fork, join)
        elif arrived >= enough:
            self._meet(fork, join)
        elif arrived or alone or (is_only and not fork.has_leavers):
            coming = fork.unfinished - fork.failed_live - (0 if meeting is None else meeting.still_live)
            if arrived + coming < enough:
                why = f"it needs {enough} of {fork.total} branches, of which {arrived} arrived and {coming} can"
                self._fail_join(fork, join, f"{why}; failed: {failures(fork)}" if fork.failed else why)

    def _meet(self, fork: Fork, join: Join, *, on_early: str | None = None) -> None:
        """Let the join go on, once and with one token."""
        meeting = self._fired(fork, join)
        outputs = dict(meeting.arrived)
        if join.enough is None:
            missing = tuple(None for _ in join.merges)
            for index, (about, _) in fork.failed.items():
                outputs.setdefault(index, tuple({"error": about} for _ in missing))
        if fork.is_split:
            for index in range(fork.total) if fork.unfinished == 0 else sorted(meeting.arrived):
                fork.scope.adopt(fork.scopes[index])
        try:
            for place, merge in enumerate(join.merges):
                merge.apply({index: output[place] for index, output in outputs.items()}, fork.scope)
        except JoinFailed as error:
            self._fail_join(fork, join, "", error)
            return
        meeting.arrived = dict.fromkeys(meeting.arrived, ())  # Merged values need not be kept twice.
        assert fork.outer is not None
        fork.outer.live[fork.index] += 1
        token = self._token(fork.outer, fork.index, fork.scope, fork.laps)
        token.in_a_row = fork.in_a_row if meeting.in_a_row is None else meeting.in_a_row
        if self._rules >= ERRORS_RULES:
            token.error = fork.error
        self._enter(token, join.target)
        if fork.unfinished and (on_early or join.spec.on_early) == "cancel":
            self._cancel_within(fork)
            self._close(fork)

    def _fail_join(self, fork: Fork, join: Join, why: str, error: JoinFailed | None = None) -> None:
        """Fail a join that can never go on: the node behind it fails before it begins."""
        if error is None:
            error = JoinFailed(f"{join.place}: {why}", place=join.place, branches=failed_branches(fork))
            if fork.failed:
                error.__cause__ = fork.failed[min(fork.failed)][1]
        meeting = fork.meetings.get(join.target)
        if meeting is None or not meeting.fired:
            self._fired(fork, join)
        assert fork.outer is not None
        fork.outer.live[fork.index] += 1
        token = self._token(fork.outer, fork.index, fork.scope, fork.laps)
        token.node = join.target
        token.in_a_row = fork.in_a_row
        self._cancel_within(fork)
        self._close(fork)
        about = {"type": "JoinFailed", "message": str(error), "node": join.target, "failed": failed_branches(fork)}
        branches = token.trail
        self._fail(token, located(error, branches, join.target), {**about, **shown(branches)})

    def _fired(self, fork: Fork, join: Join) -> Meeting:
        """Mark a join as gone on. Raises NoMatchingEdge if no token arrived, and its loop would have no limit."""
        meeting = fork.meetings.setdefault(join.target, Meeting(join))
        if not meeting.arrived and (passes := join.passes) is not None and self._rules >= LAPS_RULES:
            laps = fork.laps.get(passes.number, 0)
            if laps + max(fork.laps.get(number, 0) for number in passes.edges) >= passes.limit:
                message = (
                    f"{join.place}: no branch arrives, and on the way to it the limit of {passes.limit} is reached"
                )
                raise NoMatchingEdge(message, place=join.place)
            self._count(fork, {**fork.laps, passes.number: laps + 1})
        meeting.fired = True
        self._drop_timer(fork, meeting)
        return meeting

    def _count(self, fork: Fork, laps: Mapping[int, int]) -> None:
        if self._rules >= LAPS_RULES:
            fork.count(laps)

    def _set_timer(self, fork: Fork, meeting: Meeting, seconds: float) -> None:
        key = (fork.id, meeting.join.target)
        meeting.has_timer = True
        self._timed[key] = (fork, meeting)
        self._decisions.timers.append((key, seconds))

    def _drop_timer(self, fork: Fork, meeting: Meeting) -> None:
        if meeting.has_timer:
            meeting.has_timer = False
            key = (fork.id, meeting.join.target)
            del self._timed[key]
            fresh = [one for one in self._decisions.timers if one[0] != key]
            if len(fresh) == len(self._decisions.timers):
                self._decisions.timers_dropped.append(key)
            self._decisions.timers = fresh

    def _time_out(self, fork: Fork, meeting: Meeting) -> None:
        join = meeting.join
        if join.spec.on_timeout == "proceed":
            self._meet(fork, join, on_early="cancel")
            return
        late = fork.total - len(meeting.arrived)
        why = f"{late} of {fork.total} branches did not arrive within {join.spec.timeout:g} s of the first"
        why += f"; failed: {failures(fork)}" if fork.failed else ""
        self._fail_join(fork, join, why)

    # Cancelling.

    def _cancel_within(self, fork: Fork) -> None:
        """End all tokens in a fork; nothing in it decides any more."""
        for token in fork.tokens.values():
            self._stop(token)
        for inner in fork.inner.values():
            inner.closed = True
            self._cancel_within(inner)
        for meeting in fork.meetings.values():
            self._drop_timer(fork, meeting)
            meeting.still_live = 0
        fork.tokens.clear()
        fork.inner.clear()
        fork.live = [0] * fork.total
        fork.unfinished = fork.failed_live = 0
        fork.slots = None

    def _cancel_region(self, token: Token, names: frozenset[str]) -> None:
        """End the tokens at these nodes in the branch that encloses the token's fork; with "*" the rest of the fork."""
        while self.is_growing:  # Branches that have no tokens yet may be included.
            self._bear(self._unborn[0])
        fork = token.fork
        if "*" in names:
            self._cancel_rest(token)
        for other in self._standing.within(fork, names) if self._standing is not None else ():
            if other is not token and other.node in names and other.id in self._tokens:
                if other.id not in self._run:
                    self._decisions.cancel.append(other.id)
                self._remove(other)

    def _cancel_rest(self, token: Token) -> None:
        fork = token.fork
        for other in fork.tokens.values():
            if other is not token:
                self._stop(other)
        for inner in fork.inner.values():
            inner.closed = True
            self._cancel_within(inner)
        fork.tokens = {token.id: token}
        fork.inner.clear()
        fork.live = [0] * fork.total
        fork.live[token.index] = fork.unfinished = 1
        fork.failed_live = int(token.index in fork.failed)
        fork.slots = None
        for meeting in fork.meetings.values():
            meeting.still_live = int(token.index in meeting.arrived)

    def _stop(self, token: Token) -> None:
        """Stop the node of a token, if it runs."""
        self.work += 1
        del self._tokens[token.id]
        if self._run.pop(token.id, None) is None:
            self._decisions.cancel.append(token.id)
        if self._standing is not None:
            self._standing.leave(token)
        if self._turns is not None:
            self._let_run(self._turns.leave(token))
