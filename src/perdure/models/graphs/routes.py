"""Routes: the edges that a token takes from its node, and how often it may take them. This module is pure.

If no edge matches, token_moves.py ends the token or fails the run. This module makes the error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.errors import NoMatchingEdge
from perdure.models.graphs.plan import Edge, Node, Tiers
from perdure.models.graphs.tokens import Token


def matching(token: Token, tiers: Tiers, input: Any, at: int) -> list[Edge]:
    """Return the matching edges of the first tier that has a match. The list is empty if no edge matches. Raises
    ExpressionFailed.
    """
    view = None
    for tier in tiers:
        matches: list[Edge] = []
        for edge in tier:
            has_limit = edge.limit is not None or edge.limit_us is not None
            if has_limit and over_limit(token, edge, at) is not None:
                continue
            if edge.when is not None:
                view = view or token.view(input)
                if not edge.when.condition(view):
                    continue
            matches.append(edge)
        if matches:
            return matches
    return []


def over_limit(token: Token, edge: Edge, at: int) -> str | None:
    """Return the reason why a token may not take an edge again. Return None if it may."""
    if edge.limit is not None and token.laps.get(edge.number, 0) >= edge.limit:
        return f"the limit of {edge.limit} is reached"
    if edge.limit_us is not None and at - token.laps.get(edge.began, at) >= edge.limit_us:
        return f"the time of {edge.limit_us / 1_000_000:g} s is over"
    return None


def laps_after(token: Token, edge: Edge, at: int) -> Mapping[int, int]:
    """Return how often a token has taken each edge with a limit. This edge is counted as taken."""
    laps = {**token.laps, edge.number: token.laps.get(edge.number, 0) + 1}
    if edge.limit_us is not None:
        laps.setdefault(edge.began, at)
    return laps


def no_match(token: Token, node: Node, input: Any, at: int) -> NoMatchingEdge:
    """Return the error for a token that cannot leave its node."""
    view = token.view(input)
    why: list[str] = []
    for edge in (edge for tier in node.onward for edge in tier):
        if (over := over_limit(token, edge, at)) is not None:
            why.append(f"to {edge.target!r} {over}")
        elif edge.when is not None:
            why.append(f"to {edge.target!r} when {edge.when.source!r} ({edge.when.values(view)})")
    message = f'{node.place}: no edge matches: {"; ".join(why)}; give it otherwise="end", or an edge that does'
    return NoMatchingEdge(message, place=node.place)


__all__ = ["laps_after", "matching", "no_match", "over_limit"]
