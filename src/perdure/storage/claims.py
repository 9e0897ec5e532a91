"""What engines know better about runs that they claim than whoever started them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perdure.kernel.records import Run
from perdure.ports import Offer


def better_models(runs: Iterable[Run], offers: Sequence[Offer]) -> dict[str, str]:
    """The models of runs that were started by name alone, which says nothing about it, by their ids: only the code
    knows that they are graphs. A claim writes it with the owner, so whoever sees the one sees the other."""
    models = {(one.workflow, one.version): one.model for one in offers if one.model != "function"}
    if not models:
        return {}
    found = {run.id: models.get((run.workflow, run.workflow_version), "") for run in runs if run.model == "function"}
    return {run_id: model for run_id, model in found.items() if model}
