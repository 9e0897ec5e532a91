"""What can be told of a run's tokens: how many stand where, each of them with its path and state, and what happened."""

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
    """How many tokens stand at a node, and how many have left it: with a result, with a failure, or cancelled."""

    standing: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0


class JoinTokens(Struct, frozen=True, kw_only=True):
    """A join that waits: where it leads, at which node its branches came apart, how many of them have arrived."""

    target: str
    fork: str
    arrived: int
    branches: int


class GraphToken(Struct, frozen=True, kw_only=True):
    """One token. `id` numbers the tokens of a run in the order in which they came to be; `parent` is the token that
    came apart into it, or (of one that goes on from a join) the one that had come apart before.

    `path` is "root", with the node and the branch's index for each fork of several branches that it is in:
    "root.plan.0.search.2". `iterations` counts, by edge with a limit, how often the token went along it. `since` is
    when its state began. `awaiting` is the number of branches that its join still waits for; `error` is how it failed;
    `reason` is why it was cancelled.
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
    """The tokens of a run of a graph, as of its last journal entry. Of a run that has ended none stands anywhere.

    `tokens` are those that live, and then those that have ended most recently, up to a bound, all by their ids;
    `tokens_total` says how many there were.
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
    """Something that happened in a run of a graph. `seq` numbers a run's events from 1 on, and never changes; `entry`
    is the number of the journal entry that it followed from, 0 for the start. `token` is the id of a token, `edge` an
    edge like "plan -> search"."""

    seq: int
    kind: EventKind
    at: datetime
    entry: int
    node: str | None = None
    token: int | None = None
    edge: str | None = None
    details: Mapping[str, Any] = {}


class GraphEvents(Struct, frozen=True, kw_only=True):
    """Some events of a run, in their order; `cursor` is what `after` must be to get the next ones, None: there are none
    yet."""

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
