"""Claims: which runs fit the code that an engine offers, and which model a claim writes into a run.

If a run is stored with another model than its code has, the claim corrects the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from perdure.kernel.lineages import read_origin
from perdure.kernel.runs import Run
from perdure.ports import Offer


def fits(run: Run, offer: Offer, topic_of: Callable[[str], str], is_begun: Callable[[str], bool]) -> bool:
    """Return whether a run belongs to the offered code. The model, the name and the version must be equal.

    For an operation, the version is its topic. Earlier versions of Perdure stored runs of operations without the topic.
    For these runs, the topic of the run's message decides. A run has begun if it has a first row of its own.
    The SQL stores use these conditions in their queries.
    """
    if offer.begun is not None and offer.begun != is_begun(run.id):
        return False
    if run.workflow != offer.workflow or run.known_model not in models_of(offer):
        return False
    is_unnamed = run.model == "operation" and not run.workflow_version
    version = topic_of(read_origin(run.origin)[0]) if is_unnamed else run.workflow_version
    return version == offer.version


def models_of(offer: Offer) -> tuple[str, str]:
    """Return the values that `Run.known_model` can have for runs of the offered code.

    These are the model of the code, and the empty text if only the code knows the model. The model of an operation's
    run is always known.
    """
    return (offer.model, "operation" if offer.model == "operation" else "")


def versions_of(offer: Offer) -> tuple[str, ...]:
    """Return the versions that runs of the offered code can have. Runs of operations may have no version: see
    `fits`.
    """
    return (offer.version, "") if offer.model == "operation" else (offer.version,)


def better_models(runs: Iterable[Run], offers: Sequence[Offer]) -> dict[str, str]:
    """Return the correct models of claimed runs that are stored with another model, by run id.

    These are runs that were started only by name, and runs that have continued as another model. A claim writes the
    model together with the owner. So a reader that sees the new owner also sees the new model.
    """
    models = {(one.workflow, one.version): one.model for one in offers if one.model != "operation"}
    found = {run.id: (run.model, models.get((run.workflow, run.workflow_version))) for run in runs}
    return {run_id: model for run_id, (was, model) in found.items() if model and was != "operation" and model != was}
