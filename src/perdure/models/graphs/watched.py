"""A machine that records what happened to its tokens. Only replays for views use it, so live runs pay nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from perdure.models.graphs.context import Scope
from perdure.models.graphs.decisions import Decisions
from perdure.models.graphs.forks import Unborn
from perdure.models.graphs.kinds.plain import SetWork
from perdure.models.graphs.kinds.workflow import ChildWork
from perdure.models.graphs.machine import RULES, Machine
from perdure.models.graphs.plan import Edge, Join, Node, Plan, Tiers
from perdure.models.graphs.spec import END, TERMINATE
from perdure.models.graphs.token_views import EventKind, GraphEvent, GraphToken, JoinTokens, TokenState
from perdure.models.graphs.tokens import Fork, Meeting, Token, shown
from perdure.values.times import to_datetime

_OVER: Final = frozenset({"completed", "failed", "timed_out", "cancelled"})


class Record:
    """What is known of one token."""

    __slots__ = ("error", "id", "laps", "meeting", "node", "parent", "path", "place", "reason", "since", "state")

    def __init__(self, id: int, token: Token, parent: int | None, at: int) -> None:
        self.id = id
        self.parent = parent
        self.path = _path(token)
        self.place = (token.index, token.fork.total)
        self.node = token.node
        self.laps = token.laps
        self.state: TokenState = "pending"
        self.since = at
        self.meeting: tuple[Fork, str] | None = None  # the join at which it waits
        self.error: Mapping[str, Any] | None = None
        self.reason: str | None = None


def _path(token: Token) -> str:
    parts: list[str] = []
    fork, index = token.fork, token.index
    while fork.outer is not None:
        if fork.total > 1:
            parts.append(f".{fork.site}.{index}")
        fork, index = fork.outer, fork.index
    return "root" + "".join(reversed(parts))


class Watched(Machine):
    """Records where its tokens are and were, and what happened, in order."""

    def __init__(
        self, plan: Plan, input: Any, now: Callable[[], int], entry: Callable[[], int], rules: int = RULES
    ) -> None:
        """`now` returns the time of the current result, and `entry` the number of its journal entry."""
        super().__init__(plan, input, rules)
        self.events: list[GraphEvent] = []
        self.completions: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.cancellations: Counter[str] = Counter()
        self.records: list[Record] = []
        self._now = now
        self._entry = entry
        self._of: dict[Token, Record] = {}  # those that live
        self._begun: dict[int, Token] = {}  # tokens whose nodes run, by the ids they have while they do
        self._origins: dict[Fork, int] = {}  # the tokens that came apart
        self._arrived: dict[Fork, dict[str, list[Record]]] = {}  # who waits at a fork's joins, by where they lead
        self._parent: int | None = None  # of tokens that come to be now
        self._why: list[tuple[TokenState, str]] = []  # tokens that go now go for this
        self._arriving: Token | None = None
        self._current: Token | None = None  # whose result the machine is given now
        self._completing: Token | None = None  # whose node has a result that has not been written
        self._failing: Token | None = None
        self._acting: Token | None = None
        self._is_over = False
        self._staged_count = 0
        self._artifacts: dict[str, str] = {}  # the ids of those that events have reported, by name

    # Results.

    def begin(self) -> Decisions:
        self._note("run_started", node=self._plan.start)
        return super().begin()

    def completed(self, token_id: int, value: Any) -> Decisions:
        self._current = self._completing = self._begun.pop(token_id, None)
        return super().completed(token_id, value)

    def _go_on(self, token: Token, node: Node, written: Sequence[tuple[str, Any]]) -> None:
        self._completing = None
        self.completions[node.name] += 1
        self._note("node_completed", token)
        self._child("child_completed", token)
        own = node.work.targets if isinstance(node.work, SetWork) else ()
        if targets := [*own, *(target for target, _ in written)]:
            self._note("context_updated", token, targets=targets)
        self._staged(token)
        super()._go_on(token, node, written)

    def failed(self, token_id: int, error: BaseException, about: dict[str, Any]) -> Decisions:
        token = self._begun.pop(token_id, None)
        if token is not None:
            self.failures[token.node] += 1
            self._note("node_failed", token, error={**about, **shown(token.trail)})
            self._child("child_failed", token)
        self._current = token
        return super().failed(token_id, error, about)

    def terminate(self, token_id: int, error: Any = None) -> Decisions:
        token = self._begun.pop(token_id, None)
        if token is not None:
            (self.completions if error is None else self.failures)[token.node] += 1
            self._note("node_completed" if error is None else "node_failed", token)
        self._current = token
        return super().terminate(token_id, error)

    def _staged(self, token: Token) -> None:
        count = self._root.scope.find("staged", "count", 0)
        if count == self._staged_count:
            return
        self._staged_count = count
        for name, artifact_id in self._root.scope.whole("artifacts").items():
            if self._artifacts.get(name) != artifact_id:
                self._artifacts[name] = artifact_id
                self._note("artifact_staged", token, name=name, id=artifact_id)

    def _decided(self) -> Decisions:
        decided = super()._decided()
        for token_id in decided.cancel:
            if (token := self._begun.pop(token_id, None)) is not None:
                self.cancellations[token.node] += 1
        for token in decided.run:
            self._begun[token.id] = token
            is_child = isinstance(self._plan.nodes[token.node].work, ChildWork)
            self._become(token, "waiting_for_child" if is_child else "executing")
            self._note("node_started", token)
            self._child("child_started", token)
        self._check_end()
        self._current = None
        return decided

    def _child(self, kind: EventKind, token: Token) -> None:
        if isinstance(self._plan.nodes[token.node].work, ChildWork):
            self._note(kind, token)

    def _check_end(self) -> None:
        """End all tokens if the run is over."""
        if not self.ended or self._is_over:
            return
        self._is_over = True
        failure = self._decisions.failure
        if failure is not None:
            culprit = self._failing or self._current
            about = {"type": type(failure).__name__, "message": str(failure)}
            if culprit is not None and culprit in self._of:
                self._over(culprit, "failed", error={**about, "node": culprit.node, **shown(culprit.trail)})
            self.close("run_failed", **about)
        else:
            if self._current is not None:
                self._over(self._current, "completed")
            self.close("run_completed")

    def close_at(self, at: int, kind: EventKind, **details: Any) -> None:
        """Note that the run was ended from outside, at this time."""
        self._now = lambda: at
        self.close(kind, **details)

    def close(self, kind: EventKind, **details: Any) -> None:
        """Note that the run has ended, and end all its tokens."""
        self._is_over = True
        for token in self._begun.values():
            self.cancellations[token.node] += 1
        reason = "the run ended"
        for token in list(self._of):
            self._over(token, "cancelled", reason=reason)
        for record in [one for joins in self._arrived.values() for waiting in joins.values() for one in waiting]:
            self._end(record, "cancelled", reason=reason)
        self._arrived.clear()
        self._begun.clear()
        self._note(kind, **details)

    # What it does.

    def _token(self, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> Token:
        token = super()._token(fork, index, scope, laps)
        self._know(fork)
        record = Record(len(self.records) + 1, token, self._parent, self._now())
        self.records.append(record)
        self._of[token] = record
        index, total = record.place
        self._note("token_spawned", token, path=record.path, index=index, total=total, parent=record.parent)
        return token

    def _fire(self, token: Token, edges: Sequence[Edge]) -> None:
        for edge in edges:
            if edge.target in (END, TERMINATE):
                self._note("transition_taken", token, edge)
        cancels = [edge for edge in edges if edge.cancel]
        why = f"the edge {_named(cancels[0])} cancelled it" if cancels else ""
        acting, self._acting = self._acting, token
        with self._because("cancelled", why) if cancels else _nothing():
            super()._fire(token, edges)
        self._acting = acting

    def _fork(self, token: Token, edges: Sequence[Edge]) -> None:
        parent, self._parent = self._parent, self._of[token].id
        super()._fork(token, edges)
        self._parent = parent

    def _bear(self, unborn: Unborn) -> None:
        parent, self._parent = self._parent, self._origins.get(unborn.fork, self._parent)
        super()._bear(unborn)
        self._parent = parent

    def _move(self, token: Token, edge: Edge) -> None:
        self._note("transition_taken", token, edge)
        super()._move(token, edge)

    def _enter(self, token: Token, node: str) -> None:
        super()._enter(token, node)
        self._become(token, "pending")

    def _arrive(self, token: Token, join: Join) -> bool:
        arriving, self._arriving = self._arriving, token
        record = self._of[token]
        fork: Fork | None = token.fork
        while fork is not None and fork.site != join.fork:
            fork = fork.outer
        if fork is not None:
            record.meeting = (fork, join.target)
        has_arrived = super()._arrive(token, join)
        self._arriving = arriving
        if not has_arrived:
            record.meeting = None
        return has_arrived

    def _remove(self, token: Token) -> None:
        record = self._of[token]
        if token is self._arriving and record.meeting is not None:
            self._note("token_arrived", token, join=record.meeting[1])
            fork, target = record.meeting
            meeting = fork.meetings.get(target)
            if meeting is None or meeting.fired:
                record.meeting = None
                self._over(token, "completed")
            else:
                self._settle(token, record)
                record.state = "waiting_for_siblings"
                self._arrived.setdefault(fork, {}).setdefault(target, []).append(record)
        elif token is self._failing:
            self._over(token, "failed", error=token.error)
        elif token is not self._acting and self._why:
            state, reason = self._why[-1]
            if token.id in self._begun:
                self._note("node_cancelled", token)
            self._over(token, state, reason=reason)
        else:
            self._over(token, "completed")
        super()._remove(token)

    def _stop(self, token: Token) -> None:
        state, reason = self._why[-1] if self._why else ("cancelled", "it was cancelled")
        if token.id in self._begun:
            self._note("node_cancelled", token)
            self._child("child_cancelled", token)
        self._over(token, state, reason=reason)
        super()._stop(token)

    def _fail(self, token: Token, error: BaseException, about: dict[str, Any]) -> None:
        if self._completing is token:  # The node has a result, but its `output` cannot be evaluated.
            self._completing = None
            self.failures[token.node] += 1
            self._note("node_failed", token, error=about)
            self._child("child_completed", token)
            self._staged(token)
        failing, self._failing = self._failing, token
        super()._fail(token, error, about)
        self._check_end()
        self._failing = failing

    def _route(self, token: Token, tiers: Tiers) -> bool:
        # A token that goes on along an error edge has not failed.
        failing, self._failing = self._failing, None
        has_matched = super()._route(token, tiers)
        self._failing = failing
        return has_matched

    # Forks and joins.

    def _meet(self, fork: Fork, join: Join, *, on_early: str | None = None) -> None:
        for record in self._arrived.get(fork, {}).pop(join.target, ()):
            self._end(record, "completed")
            self._note_of("token_merged", record, join=join.target)
        self._note("join_completed", node=join.target, fork=fork.site)
        if join.merges:
            self._note("context_updated", node=join.target, targets=[merge.spec.target for merge in join.merges])
        parent, self._parent = self._parent, self._origins.get(fork)
        why: tuple[TokenState, str] = ("cancelled", f"the join at {join.target!r} went on without it")
        with self._because(*why, unless_set=True):
            super()._meet(fork, join, on_early=on_early)
        self._parent = parent

    def _fail_join(self, fork: Fork, join: Join, why: str, error: Any = None) -> None:
        state: TokenState = self._why[-1][0] if self._why and self._why[-1][0] == "timed_out" else "cancelled"
        for record in self._arrived.get(fork, {}).pop(join.target, ()):
            self._end(record, state, reason=f"the join at {join.target!r} failed")
        self._note("join_failed", node=join.target, fork=fork.site, why=why or str(error))
        parent, self._parent = self._parent, self._origins.get(fork)
        with self._because(state, f"the join at {join.target!r} failed"):
            super()._fail_join(fork, join, why, error)
        self._parent = parent

    def _time_out(self, fork: Fork, meeting: Meeting) -> None:
        with self._because("timed_out", f"it did not arrive at {meeting.join.target!r} in time"):
            super()._time_out(fork, meeting)

    def _look(self, fork: Fork) -> None:
        self._know(fork)
        super()._look(fork)

    def _know(self, fork: Fork) -> None:
        """Remember which token was forked: tokens behind the fork's joins have it as their parent."""
        if fork.outer is not None and self._parent is not None:
            self._origins.setdefault(fork, self._parent)

    def _close(self, fork: Fork) -> None:
        for waiting in self._arrived.pop(fork, {}).values():
            for record in waiting:
                record.meeting = None
                self._end(record, "completed")
        super()._close(fork)

    # Notes.

    @contextmanager
    def _because(self, state: TokenState, reason: str, *, unless_set: bool = False) -> Generator[None]:
        if unless_set and self._why and self._why[-1][0] == "timed_out":
            yield
            return
        self._why.append((state, reason))
        try:
            yield
        finally:
            self._why.pop()

    def _settle(self, token: Token, record: Record) -> None:
        """Note that a token has ended, with its last state."""
        del self._of[token]
        record.node, record.laps, record.since = token.node, token.laps, self._now()

    def _become(self, token: Token, state: TokenState) -> None:
        if (record := self._of.get(token)) is not None:
            record.state, record.since = state, self._now()
            record.node, record.laps = token.node, token.laps

    def _over(self, token: Token, state: TokenState, **more: Any) -> None:
        record = self._of.get(token)
        if record is not None:
            self._settle(token, record)
            self._end(record, state, **more)

    def _end(self, record: Record, state: TokenState, **more: Any) -> None:
        record.state, record.since = state, self._now()
        for name, value in more.items():
            setattr(record, name, value)
        if not (state == "completed" and record.meeting is not None):  # Tokens that wait at a join are handled there.
            self._note_of(f"token_{state}", record, **more)  # type: ignore[arg-type]

    def _note(self, kind: EventKind, token: Token | None = None, edge: Edge | None = None, **details: Any) -> None:
        node = details.pop("node", None) if token is None else token.node
        record = None if token is None else self._of.get(token)
        self._event(kind, node, None if record is None else record.id, None if edge is None else _named(edge), details)

    def _note_of(self, kind: EventKind, record: Record, **details: Any) -> None:
        self._event(kind, record.node, record.id, None, details)

    def _event(
        self, kind: EventKind, node: str | None, token: int | None, edge: str | None, details: Mapping[str, Any]
    ) -> None:
        self.events.append(
            GraphEvent(
                seq=len(self.events) + 1,
                kind=kind,
                at=to_datetime(self._now()),
                entry=self._entry(),
                node=node or None,
                token=token,
                edge=edge,
                details=details,
            )
        )

    # What it tells.

    def standing(self) -> Counter[str]:
        """Return how many tokens are at each node: those whose node runs, and those that wait for their turn."""
        queued = (token.node for token, record in self._of.items() if record.state == "pending")
        return Counter(token.node for token in self._begun.values()) + Counter(queued)

    def waiting(self) -> Iterator[JoinTokens]:
        """Return the joins that have arrivals and have not gone on."""
        forks: list[Fork] = [self._root]
        while forks:
            fork = forks.pop()
            forks += reversed(fork.inner.values())
            for meeting in fork.meetings.values():
                if not meeting.fired:
                    yield JoinTokens(
                        target=meeting.join.target, fork=fork.site, arrived=len(meeting.arrived), branches=fork.total
                    )

    def listed(self, limit: int) -> list[GraphToken]:
        """Return the tokens by id: all active ones, and the most recently ended ones."""
        for token, record in self._of.items():
            record.node = token.node
        chosen = self.records
        if len(chosen) > limit:
            living = [record for record in chosen if record.state not in _OVER]
            ended = [record for record in chosen if record.state in _OVER]
            chosen = [*ended[len(ended) - max(0, limit - len(living)) :], *living[-limit:]]
            chosen.sort(key=lambda record: record.id)
        edges = {edge.number: edge for edge in self._edges()}
        return [self._view(record, edges) for record in chosen]

    def _edges(self) -> Iterator[Edge]:
        for node in self._plan.nodes.values():
            for tier in (*node.onward, *node.on_failure):
                yield from tier

    def _view(self, record: Record, edges: Mapping[int, Edge]) -> GraphToken:
        awaiting = None
        if record.state == "waiting_for_siblings" and record.meeting is not None:
            fork, target = record.meeting
            arrived = len(fork.meetings[target].arrived) if target in fork.meetings else 0
            enough = next((j.enough for j in self._plan.joins.get(fork.site, ()) if j.target == target), None)
            awaiting = max(0, (fork.total if enough is None else enough) - arrived)
        return GraphToken(
            id=record.id,
            node=record.node,
            parent=record.parent,
            path=record.path,
            branch_index=record.place[0],
            branch_total=record.place[1],
            state=record.state,
            iterations={_named(edges[number]): count for number, count in record.laps.items() if number in edges},
            since=to_datetime(record.since),
            awaiting=awaiting,
            error=record.error,
            reason=record.reason,
        )


@contextmanager
def _nothing() -> Generator[None]:
    yield


def _named(edge: Edge) -> str:
    return f"{edge.source} -> {edge.target}"


__all__ = ["Watched"]
