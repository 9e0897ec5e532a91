"""The argument `within` of lists: the runs that a list is limited to."""

from __future__ import annotations

from perdure.errors import InvalidArguments
from perdure.ports import Within
from perdure.values.arguments import shown
from perdure.values.checks import checked_texts


def checked_within(within: object) -> Within | None:
    """Check the argument, and return it. Raises InvalidArguments."""
    if within is None:
        return None
    if not isinstance(within, Within):
        raise InvalidArguments(f"within must be a Within(workflows=…, tags=…), not {shown(within)}")
    checked_texts(within.workflows, "a workflow's name")
    for pair in within.tags:
        checked_texts(pair, "a tag")
    return within


__all__ = ["checked_within"]
