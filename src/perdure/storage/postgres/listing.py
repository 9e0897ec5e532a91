"""Listing runs: which query answers a filter without reading the whole table."""

from __future__ import annotations

from typing import Any

from perdure.kernel.status import ACTIVE, FINISHED, Status
from perdure.ports import RunFilter

_UNSUCCESSFUL = FINISHED - {Status.SUCCEEDED}
_FIRST = -(2**63)
_LAST = 2**63 - 1


def listing(wanted: RunFilter) -> tuple[str, dict[str, Any]]:
    """The name of the query for a filter, and its variables. What finds few runs comes first, the order of creation
    last."""
    before_at, before_id = _cursor(wanted)
    variables: dict[str, Any] = {
        "workflow": wanted.workflow,
        "statuses": [str(status) for status in wanted.statuses] or None,
        "hold": wanted.hold,
        "parent_id": wanted.parent_id,
        "tag_keys": list(wanted.tags),
        "tag_values": list(wanted.tags.values()),
        "created_from": _FIRST if wanted.created_from is None else wanted.created_from,
        "before_at": before_at,
        "before_id": before_id,
        "limit": max(0, wanted.limit),
    }
    if wanted.tags:
        variables["tag_key"], variables["tag_value"] = next(iter(wanted.tags.items()))
    return _way(wanted), variables


def _way(wanted: RunFilter) -> str:
    if wanted.parent_id is not None:
        return "list_by_parent"
    if wanted.hold is not None:
        return "list_held"
    if wanted.tags:
        return "list_by_tag"
    if wanted.statuses and ACTIVE.issuperset(wanted.statuses):
        return "list_active"
    if wanted.statuses and _UNSUCCESSFUL.issuperset(wanted.statuses):
        return "list_unsuccessful"
    return "list_all"


def _cursor(wanted: RunFilter) -> tuple[int, str]:
    """Where the listing starts, exclusively: no id sorts before the empty one."""
    starts = [(_LAST, "\U0010ffff")]
    if wanted.created_before is not None:
        starts.append((wanted.created_before, ""))
    if wanted.after is not None:
        starts.append(wanted.after)
    return min(starts)
