"""The handle of a message that was emitted from outside, and of the hierarchy of runs that the message began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from perdure.api.hierarchies import cancel_hierarchy, roll_back_hierarchy, root_rows, with_causes
from perdure.api.histories import RUNS_MAX, hierarchy_of, tree_of
from perdure.api.outcomes import outcome_of
from perdure.coordinator.call_spans import whole_calls
from perdure.coordinator.turns import in_turns
from perdure.kernel.status import Status
from perdure.models.cooperation.child_failures import child_failure
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import failure_in
from perdure.models.cooperation.return_values import read_value
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.views import HierarchyView, RunTree

V = TypeVar("V")


@whole_calls(but=("finished",))
@checked(constructor=False)
class RootHandle:
    """A root emission.

    Its `id` is the first id in the lineage of every run of the hierarchy. `run_ids` are the ids of the runs that handle
    the message itself.
    """

    def __init__(self, session: Session, id: str, message_id: str, run_ids: tuple[str, ...]) -> None:
        self.id = id
        self.message_id = message_id
        self.run_ids = run_ids
        self._session = session

    def __repr__(self) -> str:
        return f"<root {self.id!r}>"

    async def finished(self) -> None:
        """Wait until all handlers of the message, and of all messages further down in the hierarchy, have ended.

        Raises ScopeFailed if a handler has failed. Then the whole hierarchy was rolled back, or the failure says which
        part could not be rolled back.
        """
        ended = [await outcome_of(self._session, run_id) for run_id in self.run_ids]
        failed = [run for run, _ in ended if run.status in (Status.ROLLED_BACK, Status.ROLLBACK_FAILED)]
        if failed:
            raise (await failure_of(self._session, self.id, [run.id for run in failed])).error()

    async def returned(self, name: str, type: type[V], *, handler: str | None = None) -> list[V]:
        """Return the values that the handlers of this message have returned under a name.

        Each handler that has committed, and has returned a value under this name, contributes one value. With
        `handler`, only the values of that operation are returned. Raises UnstorableValue if a value does not fit the
        type.
        """
        found = await root_rows(self._session, self.id)
        values = {value.lineage[-1]: value for value in found.values if value.variable == name}
        return [
            read_value(values[run_id], type)
            for run_id in self.run_ids
            if run_id in values
            and found.statuses.get(run_id) == Status.SUCCEEDED
            and handler in (None, values[run_id].handler)
        ]

    async def cancel(self, reason: str = "", *, actor: str = "api") -> bool:
        """Cancel the hierarchy: each of its runs that has not ended rolls back at its next step boundary.

        Returns False if the hierarchy has ended, or was cancelled before. Once this has returned True, no further step
        begins, except rollbacks.
        """
        return await cancel_hierarchy(self._session, self.id, reason=reason, actor=actor)

    async def roll_back(self, reason: str = "", *, actor: str = "api") -> bool:
        """Roll back a hierarchy that has ended: everything that was committed in it is undone, newest first.

        Returns False, and does nothing, if one of its runs has not ended, or if no work needs to be undone.
        """
        return await roll_back_hierarchy(self._session, self.id, reason=reason, actor=actor)

    async def tree(self, *, runs_max: int = RUNS_MAX) -> RunTree:
        """Return all runs of the hierarchy: as data, as text (`.text()`), or as a Mermaid flowchart (`.mermaid()`).
        Raises RunNotFound, and Misuse if there are more than `runs_max` runs.
        """
        return await tree_of(self._session, self.id, runs_max)

    async def hierarchy(self, *, runs_max: int = RUNS_MAX) -> HierarchyView:
        """Return the tree of the hierarchy, and the events of each message, oldest first. Raises the same errors as
        `tree`.
        """
        return await hierarchy_of(self._session, self.id, runs_max)


async def failure_of(session: Session, root: str, run_ids: Sequence[str]) -> Failure:
    """Return the reason why a hierarchy has failed. `run_ids` are the failed runs that handle the root's message."""
    runs = await root_rows(session, root)
    hierarchy = await in_turns(runs.hierarchy_in_pieces())
    found: list[tuple[Failure, bool]] = []
    for run in runs.runs.values():
        rows = hierarchy.own(run.lineage)
        if run.id in run_ids:
            failure = failure_in(rows) or Failure(type="unknown", message="it gave no reason")
            failure = await with_causes(session, failure)
            found.append((failure, any(row.type == "ROLLBACK_FAILED" for row in rows)))
    return found[0][0] if len(found) == 1 else child_failure("emit", "outside", found)


__all__ = ["RootHandle", "failure_of"]
