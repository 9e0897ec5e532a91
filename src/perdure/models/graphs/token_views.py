"""Views of a run's tokens: the number of tokens at each node, each token with its path and state, and the events."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

from msgspec import Struct

TokenState = Literal[
    "pending",
    "executing",
    "waiting_for_child",
    "waiting_for_siblings",
    "completed",
    "failed",
    "timed_out",
    "cancelled",
]
EventKind = Literal[
    "run_started",
    "run_completed",
    "run_failed",
    "run_cancelled",
    "node_started",
    "node_completed",
    "node_failed",
    "node_cancelled",
    "child_started",
    "child_completed",
    "child_failed",
    "child_cancelled",
    "transition_taken",
    "token_spawned",
    "token_arrived",
    "token_merged",
    "token_completed",
    "token_failed",
    "token_timed_out",
    "token_cancelled",
    "join_completed",
    "join_failed",
    "context_updated",
    "artifact_staged",
]


class NodeTokens(Struct, frozen=True, kw_only=True):
    """The number of tokens at a node, and the numbers of tokens that have left it with a result, with a failure, or
    cancelled.
    """

    standing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class JoinTokens(Struct, frozen=True, kw_only=True):
    """A waiting join: the node behind it, the node of its fork, and the number of branches that have arrived."""

    target: str
    fork: str
    arrived: int
    branches: int


class GraphToken(Struct, frozen=True, kw_only=True):
    """One token.

    `id` numbers the tokens of a run in the order of their creation. `parent` is the token that was forked. For a token
    behind a join, it is the token whose fork the join has closed.

    `path` begins with "root". For each fork of several branches around the token, it has the fork's node and the
    branch's index: "root.plan.0.search.2". `iterations` counts how often the token took each edge with a limit. `since`
    is the time when the token's state began. `awaiting` is the number of branches for which the token's join still
    waits. `error` is the token's failure. `reason` says why the token was cancelled.
    """

    id: int
    node: str
    parent: int | None
    path: str
    branch_index: int
    branch_total: int
    state: TokenState
    iterations: Mapping[str, int]
    since: datetime
    awaiting: int | None = None
    error: Mapping[str, Any] | None = None
    reason: str | None = None


class TokensView(Struct, frozen=True, kw_only=True):
    """The tokens of a graph's run after its last journal entry. If the run has ended, no token is at any node.

    `tokens` has the active tokens and, up to a bound, the tokens that ended last. They are ordered by id.
    `tokens_total` is the number of all tokens of the run.
    """

    run_id: str
    workflow: str
    version: str
    status: str
    nodes: Mapping[str, NodeTokens]
    joins: Sequence[JoinTokens]
    tokens: Sequence[GraphToken] = ()
    tokens_total: int = 0


class GraphEvent(Struct, frozen=True, kw_only=True):
    """An event of a graph's run.

    `seq` numbers the events of a run from 1 on. The number of an event never changes. `entry` is the number of the
    journal entry that caused the event. It is 0 for the start. `token` is the id of a token. `edge` is an edge such as
    "plan -> search".
    """

    seq: int
    kind: EventKind
    at: datetime
    entry: int
    node: str | None = None
    token: int | None = None
    edge: str | None = None
    details: Mapping[str, Any] = {}


class GraphEvents(Struct, frozen=True, kw_only=True):
    """Some events of a run, in order. Pass `cursor` as `after` to get the next events. It is None if there are no
    further events yet.
    """

    run_id: str
    events: Sequence[GraphEvent]
    cursor: int | None


__all__ = [
    "EventKind",
    "GraphEvent",
    "GraphEvents",
    "GraphToken",
    "JoinTokens",
    "NodeTokens",
    "TokenState",
    "TokensView",
]
