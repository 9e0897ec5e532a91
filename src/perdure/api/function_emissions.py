"""Messages that functions and graphs emit: how their engine emits them and takes them back. This module never waits
until a hierarchy ends; models/bridges/ does that.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from perdure.api.emissions import emit_root, suppress_emission
from perdure.api.hierarchies import hierarchy_rows, request_cancel, roll_back_hierarchy, root_rows
from perdure.api.root_handle import failure_of
from perdure.kernel.status import FINISHED, Status
from perdure.models.bridges.function_emissions import Emitted, Undoing
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.message_events import EventType
from perdure.models.cooperation.nesting_depth import Levels
from perdure.models.cooperation.topics import Topic
from perdure.session import Session


class FunctionEmissions:
    """Emits messages for functions, and rolls their hierarchies back. `levels` returns the object that finds the
    nesting levels of runs. It may be called once the engine is open.
    """

    def __init__(self, session: Session, levels: Callable[[], Levels]) -> None:
        self._session = session
        self._levels = levels

    async def emit(self, topic: str, payload: str, message_id: str, run_id: str) -> Emitted:
        """Emit a message for a run.

        A second call with the same id returns the same hierarchy. Raises HierarchyTooDeep.
        """
        context = await self._levels().context_below(run_id, topic)
        message = msgspec.json.decode(payload)
        root = await emit_root(self._session, Topic(topic, object), message, id=message_id, context=context)
        return Emitted(root.id, topic, root.message_id, root.run_ids)

    async def withdraw(self, topic: str, message_id: str, reason: str) -> Emitted | None:
        """Cancel a hierarchy, even if other engines have its runs.

        If the message was not emitted before, it is suppressed: it will never be handled, even if it is emitted later.
        Returns None if the message has no runs, so that there is nothing to wait for.
        """
        root = await suppress_emission(self._session, Topic(topic, object), message_id)
        if not root.run_ids:
            return None
        await request_cancel(self._session, root.id, reason=reason, actor="api")
        return Emitted(root.id, topic, root.message_id, root.run_ids)

    async def undo(self, emitted: Emitted, reason: str) -> Undoing:
        """Request the rollback of everything that was committed in a hierarchy. If the rollback was requested before,
        nothing is requested again.
        """
        if await roll_back_hierarchy(self._session, emitted.id, reason=reason, actor="api"):
            return Undoing(emitted.run_ids, is_asked=True)
        found = await hierarchy_rows(self._session, emitted.id)
        own = [row for row in found.events if row.cooperation_lineage == (emitted.id,)]
        if any(row.type is EventType.ROLLBACK_EMITTED for row in own):
            return Undoing(emitted.run_ids, is_asked=True)
        active = [run_id for run_id, status in found.statuses.items() if status not in FINISHED]
        return Undoing(tuple(active), is_asked=False)

    async def failure(self, emitted: Emitted) -> Failure | None:
        """Return the reason why a hierarchy has failed, or None. Only runs that have ended are considered."""
        found = await root_rows(self._session, emitted.id)
        ends = (Status.ROLLED_BACK, Status.ROLLBACK_FAILED)
        failed = [run_id for run_id in emitted.run_ids if found.statuses.get(run_id) in ends]
        return await failure_of(self._session, emitted.id, failed) if failed else None


__all__ = ["FunctionEmissions"]
