"""Graphs: workflows as nodes and edges.

This module has the names that graphs need in addition to those in `perdure`.
"""

from perdure.models.bridges.graph_emissions import emit
from perdure.models.graphs.builder_functions import (
    NodeRef,
    action,
    all_of,
    any_of,
    append,
    artifact,
    assign,
    child,
    collect,
    http,
    human,
    keyed,
    last_wins,
    llm,
    m_of,
    mcp,
    merge_object,
    metric,
    reduce_with,
    remote,
    terminate,
    timer,
    wait,
)
from perdure.models.graphs.define import Graph
from perdure.models.graphs.kinds import Kind, add_kind
from perdure.models.graphs.network import Network
from perdure.models.graphs.records import Example, ModelProfile, PromptSpec
from perdure.models.graphs.secrets import Secrets
from perdure.models.graphs.spec import END, TERMINATE, GraphLimits
from perdure.models.graphs.stored_definitions import DefinitionView
from perdure.models.graphs.token_views import GraphEvent, GraphEvents, GraphToken, JoinTokens, NodeTokens, TokensView

__all__ = [
    "END",
    "TERMINATE",
    "DefinitionView",
    "Example",
    "Graph",
    "GraphEvent",
    "GraphEvents",
    "GraphLimits",
    "GraphToken",
    "JoinTokens",
    "Kind",
    "ModelProfile",
    "Network",
    "NodeRef",
    "NodeTokens",
    "PromptSpec",
    "Secrets",
    "TokensView",
    "action",
    "add_kind",
    "all_of",
    "any_of",
    "append",
    "artifact",
    "assign",
    "child",
    "collect",
    "emit",
    "http",
    "human",
    "keyed",
    "last_wins",
    "llm",
    "m_of",
    "mcp",
    "merge_object",
    "metric",
    "reduce_with",
    "remote",
    "terminate",
    "timer",
    "wait",
]
