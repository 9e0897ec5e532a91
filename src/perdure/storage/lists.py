"""Lists of runs: which index is used for a filter.

With the right index, the cost of a page depends on the size of the page, and not on the number of runs.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from perdure.kernel.status import Status
from perdure.ports import RunFilter

# If a filter has several conditions, the condition that the fewest runs meet is used to find runs. To compare the
# conditions, runs are counted for each condition, up to this number.
COUNTED_MAX = 1_000

_STATUS = re.compile(r":status\b")
_FIRST = -(2**63)
_LAST = 2**63 - 1


class Way(Struct, frozen=True):
    """A way to find the runs that meet a condition of a filter, newest first. It has the name of a query and its
    variables.

    If it has statuses, one query is made for each status, and the results are merged.
    """

    query: str
    variables: Mapping[str, str]
    statuses: tuple[str, ...] = ()


def ways(wanted: RunFilter) -> list[Way]:
    """Return all ways to answer a filter. There is at least one. Ways that usually find few runs come first."""
    found: list[Way] = []
    if wanted.parent_id is not None:
        found.append(Way("by_parent", {}))
    if wanted.hold is not None:
        found.append(Way("by_hold", {}))
    found += [Way("by_tag", {"tag_key": key, "tag_value": value}) for key, value in wanted.tags.items()]
    statuses = tuple(dict.fromkeys(wanted.statuses or Status))
    variables = {f"status_{number}": str(status) for number, status in enumerate(statuses)}
    if wanted.workflow is not None:
        found.append(Way("by_workflow", variables, statuses))
    elif wanted.statuses or not found:
        found.append(Way("by_status", variables, statuses))
    return found


def narrowest(found: Sequence[Way], counts: Sequence[int]) -> Way:
    return min(zip(counts, range(len(found)), found, strict=True))[2]


def for_each_status(part: str, statuses: int) -> str:
    """Repeat a part of a statement once for each status."""
    return " union all ".join(_STATUS.sub(f":status_{number}", part) for number in range(max(1, statuses)))


def cursor(wanted: RunFilter) -> tuple[int, int, str]:
    """Return the time at which the listing ends (inclusive) and the place where it starts (exclusive).

    With `created_before`, the place has an empty id, because no id sorts before it.
    """
    starts = [(_LAST, "\U0010ffff")]
    if wanted.created_before is not None:
        starts.append((wanted.created_before, ""))
    if wanted.after is not None:
        starts.append(wanted.after)
    return (_FIRST if wanted.created_from is None else wanted.created_from, *min(starts))
