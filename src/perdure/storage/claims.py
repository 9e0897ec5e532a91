"""Which runs fit the code that an engine has, and what an engine that claims a run knows better about it than whoever
started it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perdure.kernel.cooperation import read_origin
from perdure.kernel.records import Run
from perdure.ports import Offer


def fits(run: Run, offer: Offer, topic_of: Callable[[str], str], is_begun: Callable[[str], bool]) -> bool:
    """Whether a run is of the code that is offered: of the same kind, name and version.

    The version of an operation is its topic. Earlier versions of Perdure stored runs of operations without it: for
    these, the topic of the run's message decides. A run has begun if it has a row of its own with the number 1. The SQL
    stores have these conditions in their queries.
    """
    if offer.begun is not None and offer.begun != is_begun(run.id):
        return False
    if run.workflow != offer.workflow or run.known_model not in models_of(offer):
        return False
    is_unnamed = run.model == "operation" and not run.workflow_version
    version = topic_of(read_origin(run.origin)[0]) if is_unnamed else run.workflow_version
    return version == offer.version


def models_of(offer: Offer) -> tuple[str, str]:
    """Which models runs of the offered code may have, as `Run.known_model` tells it: that of the code, or one that only
    the code knows. Operations are always known to be operations."""
    return (offer.model, "operation" if offer.model == "operation" else "")


def versions_of(offer: Offer) -> tuple[str, ...]:
    """What runs of the offered code may have as their version: those of operations may have none, see `fits`."""
    return (offer.version, "") if offer.model == "operation" else (offer.version,)


def better_models(runs: Iterable[Run], offers: Sequence[Offer]) -> dict[str, str]:
    """The models of claimed runs that are stored with another one, by their ids: those that were started by name alone,
    and those that have continued as something else. A claim writes it with the owner, so whoever sees the one sees the
    other."""
    models = {(one.workflow, one.version): one.model for one in offers if one.model != "operation"}
    found = {run.id: (run.model, models.get((run.workflow, run.workflow_version))) for run in runs}
    return {run_id: model for run_id, (was, model) in found.items() if model and was != "operation" and model != was}
