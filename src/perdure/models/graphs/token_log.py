"""The log of a run's tokens: where each token is and was, and the events in order. Views of a run are made from this
log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from perdure.models.graphs.kinds.workflow import ChildWork
from perdure.models.graphs.plan import Edge, Plan
from perdure.models.graphs.token_views import EventKind, GraphEvent, GraphToken, JoinTokens, TokenState
from perdure.models.graphs.tokens import Fork, Token
from perdure.values.times import to_datetime

_OVER: Final = frozenset({"completed", "failed", "timed_out", "cancelled"})


class Record:
    """The record of one token."""

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
        self.meeting: tuple[Fork, str] | None = None  # the join at which the token waits
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


class TokenLog:
    """The records and events of one run. For each node, it counts how often the node has completed, failed and been
    cancelled.
    """

    def __init__(self, plan: Plan, now: Callable[[], int], entry: Callable[[], int]) -> None:
        """`now` returns the time of the current result. `entry` returns the number of its journal entry."""
        self.events: list[GraphEvent] = []
        self.records: list[Record] = []
        self.completions: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.cancellations: Counter[str] = Counter()
        self.live: dict[Token, Record] = {}
        # tokens whose nodes run, by the id that they have during the run of the node
        self.running: dict[int, Token] = {}
        # tokens that wait at a fork's joins, by the node behind the join
        self.waiting: dict[Fork, dict[str, list[Record]]] = {}
        self.is_over = False
        self._plan = plan
        self._now = now
        self._entry = entry
        self._why: list[tuple[TokenState, str]] = []
        self._artifacts: dict[str, str] = {}  # the ids of the artifacts that events have reported, by name

    # Events.

    def note(self, kind: EventKind, token: Token | None = None, edge: Edge | None = None, **details: Any) -> None:
        """Note an event of a token at its node, or at the node in `details`."""
        node = details.pop("node", None) if token is None else token.node
        record = None if token is None else self.live.get(token)
        self._event(
            kind, node, None if record is None else record.id, None if edge is None else edge_name(edge), details
        )

    def note_of(self, kind: EventKind, record: Record, **details: Any) -> None:
        """Note an event of a token that may have ended."""
        self._event(kind, record.node, record.id, None, details)

    def note_child(self, kind: EventKind, token: Token) -> None:
        """Note an event of the child run of a token's node, if the node has a child."""
        if self.has_child(token):
            self.note(kind, token)

    def note_artifacts(self, token: Token, staged: Mapping[str, str]) -> None:
        """Note the artifacts that were not noted before, by name and id."""
        for name, artifact_id in staged.items():
            if self._artifacts.get(name) != artifact_id:
                self._artifacts[name] = artifact_id
                self.note("artifact_staged", token, name=name, id=artifact_id)

    def has_child(self, token: Token) -> bool:
        return isinstance(self._plan.nodes[token.node].work, ChildWork)

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

    # Tokens.

    def created(self, token: Token, parent: int | None) -> None:
        """Add a new token."""
        record = Record(len(self.records) + 1, token, parent, self._now())
        self.records.append(record)
        self.live[token] = record
        index, total = record.place
        self.note("token_spawned", token, path=record.path, index=index, total=total, parent=parent)

    def become(self, token: Token, state: TokenState) -> None:
        """Note the state of a live token."""
        if (record := self.live.get(token)) is not None:
            record.state, record.since = state, self._now()
            record.node, record.laps = token.node, token.laps

    def wait(self, token: Token, fork: Fork, target: str) -> None:
        """Note that a token has ended at a join that waits for other branches."""
        record = self._settle(token)
        record.state = "waiting_for_siblings"
        self.waiting.setdefault(fork, {}).setdefault(target, []).append(record)

    def over(self, token: Token, state: TokenState, **more: Any) -> None:
        """If a token is live, note that it has ended. `more` has the token's error, or the reason for its end."""
        if token in self.live:
            self.end(self._settle(token), state, **more)

    def end(self, record: Record, state: TokenState, **more: Any) -> None:
        """Note the end of a token that is no longer live."""
        record.state, record.since = state, self._now()
        for name, value in more.items():
            setattr(record, name, value)
        # Tokens that wait at a join are removed when the join goes on.
        if not (state == "completed" and record.meeting is not None):
            self.note_of(f"token_{state}", record, **more)  # type: ignore[arg-type]

    def _settle(self, token: Token) -> Record:
        record = self.live.pop(token)
        record.node, record.laps, record.since = token.node, token.laps, self._now()
        return record

    # Reasons.

    @property
    def why(self) -> tuple[TokenState, str] | None:
        """The state and the reason of the tokens that are being ended."""
        return self._why[-1] if self._why else None

    @property
    def is_timing_out(self) -> bool:
        return bool(self._why) and self._why[-1][0] == "timed_out"

    @contextmanager
    def because(self, state: TokenState, reason: str) -> Generator[None]:
        """Set the state and the reason of the tokens that are ended inside this block."""
        self._why.append((state, reason))
        try:
            yield
        finally:
            self._why.pop()

    # The end of the run.

    def close_at(self, at: int, kind: EventKind, **details: Any) -> None:
        """Note that the run was ended from outside at this time."""
        self._now = lambda: at
        self.close(kind, **details)

    def close(self, kind: EventKind, **details: Any) -> None:
        """Note that the run has ended, and end all its tokens."""
        self.is_over = True
        for token in self.running.values():
            self.cancellations[token.node] += 1
        reason = "the run ended"
        for token in list(self.live):
            self.over(token, "cancelled", reason=reason)
        for record in [one for joins in self.waiting.values() for waiting in joins.values() for one in waiting]:
            self.end(record, "cancelled", reason=reason)
        self.waiting.clear()
        self.running.clear()
        self.note(kind, **details)

    # Views.

    def standing(self) -> Counter[str]:
        """Return how many tokens are at each node. This counts tokens whose node runs, and tokens that wait for their
        turn.
        """
        queued = (token.node for token, record in self.live.items() if record.state == "pending")
        return Counter(token.node for token in self.running.values()) + Counter(queued)

    def listed(self, limit: int) -> list[GraphToken]:
        """Return tokens by id: all active tokens, and the tokens that ended last."""
        for token, record in self.live.items():
            record.node = token.node
        chosen = self.records
        if len(chosen) > limit:
            living = [record for record in chosen if record.state not in _OVER]
            ended = [record for record in chosen if record.state in _OVER]
            chosen = [*ended[len(ended) - max(0, limit - len(living)) :], *living[-limit:]]
            chosen.sort(key=lambda record: record.id)
        tiers = [tier for node in self._plan.nodes.values() for tier in (*node.onward, *node.on_failure)]
        edges = {edge.number: edge for tier in tiers for edge in tier}
        return [self._view(record, edges) for record in chosen]

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
            iterations={edge_name(edges[number]): count for number, count in record.laps.items() if number in edges},
            since=to_datetime(record.since),
            awaiting=awaiting,
            error=record.error,
            reason=record.reason,
        )


def waiting_joins(root: Fork) -> Iterator[JoinTokens]:
    """Yield the joins of a run that have arrivals and have not gone on. `root` is the run's outermost fork."""
    forks: list[Fork] = [root]
    while forks:
        fork = forks.pop()
        forks += reversed(fork.inner.values())
        for meeting in fork.meetings.values():
            if not meeting.fired:
                yield JoinTokens(
                    target=meeting.join.target, fork=fork.site, arrived=len(meeting.arrived), branches=fork.total
                )


def edge_name(edge: Edge) -> str:
    return f"{edge.source} -> {edge.target}"


__all__ = ["Record", "TokenLog", "edge_name", "waiting_joins"]
