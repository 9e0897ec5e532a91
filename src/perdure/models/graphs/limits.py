"""The limits of a graph's run: the numbers of branches and tokens, and the nesting of forks.

The numbers are `GraphLimits` in spec.py. live_tokens.py counts the nodes in a row, and sizes.py the merged bytes.
"""

from __future__ import annotations

from perdure.errors import LimitExceeded
from perdure.models.graphs.spec import GraphLimits


def beyond(place: str, what: str, which: str, limit: int) -> LimitExceeded:
    """Return the error for a run that exceeds a limit of its graph."""
    message = (
        f"{place}: there would be {what}, and the graph's limit of {which} is {limit:,}; raise it with "
        f"Graph(…, limits=GraphLimits({which}=…)), or with limits: {{{which}: …}} in a text"
    )
    return LimitExceeded(message, place=place)


def check_limits(place: str, limits: GraphLimits, *, branches: int, tokens: int, nesting: int) -> None:
    """Check that another fork does not make a run too large. Raises LimitExceeded."""
    if branches > limits.branches:
        raise beyond(place, f"{branches:,} branches", "branches", limits.branches)
    if tokens > limits.tokens:
        raise beyond(place, f"{tokens:,} tokens", "tokens", limits.tokens)
    if nesting > limits.nesting:
        raise beyond(place, f"{nesting} forks inside each other", "nesting", limits.nesting)


__all__ = ["beyond", "check_limits"]
