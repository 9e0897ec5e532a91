"""Views of a run's tokens: their number at each node, each token with its path and state, and the events."""

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
    """How many tokens are at a node, and how many have left it: with a result, with a failure, or cancelled."""

    standing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class JoinTokens(Struct, frozen=True, kw_only=True):
    """A waiting join: the node behind it, the node of its fork, how many branches have arrived."""

    target: str
    fork: str
    arrived: int
    branches: int


class GraphToken(Struct, frozen=True, kw_only=True):
    """One token.

    `id` numbers the tokens of a run in the order of their creation. `parent` is the token that was forked into it or,
    for a token behind a join, the token that had been forked.

    `path` is "root", with the node and the branch's index for each fork of several branches that it is in:
    "root.plan.0.search.2". `iterations` counts how often the token took each edge with a limit. `since` is when its
    state began. `awaiting` is the number of branches that its join still waits for. `error` is its failure. `reason` is
    why it was cancelled.
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
    """The tokens of a graph's run, as of its last journal entry. If the run has ended, no token is at any node.

    `tokens` has the active tokens, and the most recently ended ones up to a bound, ordered by id. `tokens_total` is how
    many there were.
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

    `seq` numbers a run's events from 1 on, and never changes. `entry` is the number of the journal entry that caused
    it, 0 for the start. `token` is the id of a token, `edge` an edge like "plan -> search".
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
    """Some events of a run, in order. Pass `cursor` as `after` to get the next ones; None if there are none yet."""

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
