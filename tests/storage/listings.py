"""Filters of listings, and the indexes that may answer them: the same for every database."""

from __future__ import annotations

from msgspec import Struct

from perdure.ports import RunFilter

_INDEXES = {
    "by_parent": "runs_parent",
    "by_hold": "runs_held",
    "by_tag": "run_tags",
    "by_workflow": "runs_workflow",
    "by_status": "runs_status",
}


class Listing(Struct, frozen=True):
    wanted: RunFilter
    ways: tuple[str, ...]

    def __str__(self) -> str:
        given = [
            name for name in self.wanted.__struct_fields__ if getattr(self.wanted, name) not in (None, (), {}, 100)
        ]
        return "+".join(given) or "all"

    def index(self, way: str) -> str:
        return _INDEXES[way]


LISTINGS = [
    Listing(RunFilter(), ("by_status",)),
    Listing(RunFilter(after=(1, "r"), created_from=1, created_before=2), ("by_status",)),
    Listing(RunFilter(statuses=("succeeded",)), ("by_status",)),
    Listing(RunFilter(statuses=("running", "suspended", "failed"), after=(1, "r")), ("by_status",)),
    Listing(RunFilter(workflow="w"), ("by_workflow",)),
    Listing(RunFilter(workflow="w", statuses=("failed",), created_from=1), ("by_workflow",)),
    Listing(RunFilter(hold="paused"), ("by_hold",)),
    Listing(RunFilter(hold="paused", workflow="w"), ("by_hold", "by_workflow")),
    Listing(RunFilter(parent_id="p"), ("by_parent",)),
    Listing(RunFilter(parent_id="p", statuses=("failed",), tags={"k": "v"}), ("by_parent", "by_tag", "by_status")),
    Listing(RunFilter(tags={"k": "v"}, created_before=2), ("by_tag",)),
    Listing(RunFilter(tags={"k": "v", "l": "w"}, statuses=("failed",)), ("by_tag", "by_tag", "by_status")),
]
