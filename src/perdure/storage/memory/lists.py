"""The filters of lists: whether a run, an artifact or a task belongs to a list."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.kernel.runs import Run
from perdure.ports import RunFilter, StoredRun, Within


def is_within(run_id: str, within: Within | None, runs: Mapping[str, StoredRun]) -> bool:
    if within is None:
        return True
    found = runs.get(run_id)
    return found is not None and within.covers(found.run.workflow, found.run.tags)


def matches(run: Run, wanted: RunFilter) -> bool:
    return (
        wanted.workflow in (None, run.workflow)
        and (not wanted.statuses or run.status in wanted.statuses)
        and wanted.hold in (None, run.hold.kind if run.hold else "")
        and wanted.parent_id in (None, run.parent_id)
        and wanted.tags.items() <= run.tags.items()
        and (wanted.created_from is None or run.created_at >= wanted.created_from)
        and (wanted.created_before is None or run.created_at < wanted.created_before)
        and (wanted.after is None or (run.created_at, run.id) < wanted.after)
    )
