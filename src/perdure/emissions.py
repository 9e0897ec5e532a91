"""What functions and graphs ask of their engine about the messages that they emit. Nothing here waits for a hierarchy:
the functions do that, see joining.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import msgspec
from msgspec import Struct

from perdure.emitting import RootHandle, Source, failure_of
from perdure.kernel.status import FINISHED, Status
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.define import Topic
from perdure.models.cooperation.events import EventType
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.levels import Levels
from perdure.models.cooperation.rows import StoredScopes


class Emitted(Struct, frozen=True):
    """A root emission, as the function that emitted it knows it."""

    id: str
    topic: str
    message_id: str
    run_ids: tuple[str, ...]


class Undoing(Struct, frozen=True):
    """The runs to wait for once what a hierarchy has committed is to be undone. Unless `is_asked`, it cannot be asked
    for before these have ended: a part of the hierarchy is being undone by itself."""

    run_ids: tuple[str, ...]
    is_asked: bool


class _Engine(Source, Protocol):
    async def emit(
        self, topic: Topic[Any], message: Any, *, id: str | None = None, context: Context = EMPTY
    ) -> RootHandle: ...

    async def hold_back(self, topic: Topic[Any], id: str) -> RootHandle: ...

    async def request_cancel(self, id: str, *, reason: str = "", actor: str = "api") -> list[str]: ...

    async def scopes(self, id: str) -> StoredScopes: ...


class Cooperator:
    """Emits for functions, and has their hierarchies undone. It is among the engine's resources."""

    def __init__(self, engine: _Engine, levels: Callable[[], Levels]) -> None:
        self._engine = engine
        self._levels = levels

    async def emit(self, topic: str, payload: str, message_id: str, run_id: str) -> Emitted:
        """Emit a message for a run; with the same id, again, this gives the same hierarchy. Raises HierarchyTooDeep."""
        context = await self._levels().context_below(run_id, topic)
        message = msgspec.json.decode(payload)
        handle = await self._engine.emit(Topic(topic, object), message, id=message_id, context=context)
        return Emitted(handle.id, topic, handle.message_id, handle.run_ids)

    async def withdraw(self, topic: str, message_id: str, reason: str) -> Emitted | None:
        """Ask a hierarchy to give up, wherever it is. A message that is only on its way is suppressed: nobody handles
        it, whenever it comes. None if there is nothing to wait for."""
        handle = await self._engine.hold_back(Topic(topic, object), message_id)
        if not handle.run_ids:
            return None
        await self._engine.request_cancel(handle.id, reason=reason)
        return Emitted(handle.id, topic, handle.message_id, handle.run_ids)

    async def undo(self, emitted: Emitted, reason: str) -> Undoing:
        """Ask for what has committed of a hierarchy to be undone, unless somebody has."""
        if await self._engine.roll_back(emitted.id, reason=reason):
            return Undoing(emitted.run_ids, is_asked=True)
        found = await self._engine.scopes(emitted.id)
        own = [row for row in found.events if row.cooperation_lineage == (emitted.id,)]
        if any(row.type is EventType.ROLLBACK_EMITTED for row in own):
            return Undoing(emitted.run_ids, is_asked=True)
        active = [run_id for run_id, status in found.statuses.items() if status not in FINISHED]
        return Undoing(tuple(active), is_asked=False)

    async def failure(self, emitted: Emitted) -> Failure | None:
        """Why a hierarchy has failed, as far as its runs have ended; None if it has not."""
        found = await self._engine.root_scopes(emitted.id)
        ends = (Status.ROLLED_BACK, Status.ROLLBACK_FAILED)
        failed = [run_id for run_id in emitted.run_ids if found.statuses.get(run_id) in ends]
        return await failure_of(self._engine, emitted.id, failed) if failed else None


__all__ = ["Cooperator", "Emitted", "Undoing"]
