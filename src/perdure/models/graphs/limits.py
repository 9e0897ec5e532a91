"""The error of a run that exceeds a limit of its graph."""

from __future__ import annotations

from perdure.errors import LimitExceeded


def beyond(place: str, what: str, which: str, limit: int) -> LimitExceeded:
    """Return the error of a run that exceeds one of its graph's limits."""
    message = (
        f"{place}: there would be {what}, and the graph's limit of {which} is {limit:,}; raise it with "
        f"Graph(…, limits=GraphLimits({which}=…)), or with limits: {{{which}: …}} in a text"
    )
    return LimitExceeded(message, place=place)


__all__ = ["beyond"]
