"""Messages that durable functions emit. With them, functions take part in structured cooperation. A function emits a
message, and waits until the whole hierarchy that the message begins has ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from perdure.errors import ScopeFailed
from perdure.kernel.status import Status
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.topics import Topic
from perdure.models.functions.children import run_of
from perdure.models.functions.compensation import compensate_and_wait
from perdure.models.functions.context import current_run, current_step, resource
from perdure.models.functions.define import step
from perdure.models.functions.waits import first
from perdure.values.arguments import checked

M = TypeVar("M")

_REASON: Final = "the function that emitted it rolls back"


class Emitted(Struct, frozen=True):
    """A root emission, from the point of view of the function that emitted it. `run_ids` are the runs that handle the
    message.
    """

    id: str
    topic: str
    message_id: str
    run_ids: tuple[str, ...]


class Undoing(Struct, frozen=True):
    """The runs to wait for when a committed hierarchy must be undone.

    If `is_asked` is False, the rollback was not requested yet. In this case a part of the hierarchy is already being
    undone. The rollback can be requested only after these runs have ended.
    """

    run_ids: tuple[str, ...]
    is_asked: bool


class EngineAccess(Protocol):
    """The engine's methods for functions that emit messages (see api/function_emissions.py)."""

    async def emit(self, topic: str, payload: str, message_id: str, run_id: str) -> Emitted: ...

    async def withdraw(self, topic: str, message_id: str, reason: str) -> Emitted | None: ...

    async def undo(self, emitted: Emitted, reason: str) -> Undoing: ...

    async def failure(self, emitted: Emitted) -> Failure | None: ...


class EmissionAccess:
    """Gives the steps in this module access to their engine. It is one of the engine's resources."""

    def __init__(self, engine: EngineAccess) -> None:
        self.engine = engine


@step(name="perdure.emit")
async def emit_message(topic: str, payload: str, message_id: str) -> Emitted:
    """Emit a message. Every attempt emits the same message, even after a crash."""
    me = current_step()
    return await me.resource(EmissionAccess).engine.emit(topic, payload, message_id, me.run_id)


@step(name="perdure.undo_emission")
async def undo_emission(topic: str, message_id: str) -> Emitted | None:
    """Suppress a message that is not emitted yet. If it was emitted, ask its hierarchy to give up.

    Returns None if no operation handles the message, so that there is nothing to wait for. In journals of earlier
    versions of Perdure, the result is always None, because there this step itself waited.
    """
    return await resource(EmissionAccess).engine.withdraw(topic, message_id, _REASON)


@step(name="perdure.undo_committed")
async def undo_committed(emitted: Emitted) -> Undoing:
    """Request that the engine undoes a committed hierarchy."""
    return await resource(EmissionAccess).engine.undo(emitted, _REASON)


async def _undone(emitted: Emitted | None) -> None:
    """Wait until a hierarchy that was asked to give up is undone.

    First, the part of the hierarchy that has not ended gives up. After that, the part that has committed is undone.
    This is workflow code. It waits durably, and holds no slot while it waits.
    """
    if emitted is None:
        return
    statuses = await _statuses(emitted.run_ids)
    while Status.SUCCEEDED in statuses.values():
        undoing = await undo_committed(emitted)
        ended = await _statuses(undoing.run_ids)
        if undoing.is_asked:
            statuses |= ended
        if undoing.is_asked or not undoing.run_ids:
            break
    if failed := [run_id for run_id, status in statuses.items() if status == Status.ROLLBACK_FAILED]:
        raise ScopeFailed(f"what followed from message {emitted.message_id!r} could not be undone by {failed}")


async def _statuses(run_ids: Iterable[str]) -> dict[str, str]:
    """Wait until runs have ended, and return their statuses by run id."""
    return {run_id: (await first(run_of(run_id))).status for run_id in run_ids}


@step(name="perdure.failure_of_emission")
async def failure_of(emitted: Emitted) -> Failure | None:
    """Return the failure of a hierarchy that has ended. Return None if it did not fail."""
    return await resource(EmissionAccess).engine.failure(emitted)


@checked
async def emit(topic: Topic[M], message: M) -> None:
    """Emit a message from a workflow function, and wait durably until the whole hierarchy below the message has ended.

    Raises ScopeFailed if a handler has failed. In that case the whole hierarchy is undone. If the function fails later
    or is cancelled, the hierarchy is rolled back. This rollback is one of the function's compensations, and happens in
    their order. Raises HierarchyTooDeep if the handlers would be more than `hierarchy_levels_max` levels down. If an
    operation started the function, that operation and the levels above it count too.
    """
    payload, message_id = topic.write(message), str(current_run().uuid4())
    # The compensation is registered before the message is emitted, because the run may be cancelled during the
    # emission.
    await compensate_and_wait(undo_emission(topic.name, message_id), _undone)
    emitted = await emit_message(topic.name, payload, message_id)
    statuses = await _statuses(emitted.run_ids)
    if any(status in (Status.ROLLED_BACK, Status.ROLLBACK_FAILED) for status in statuses.values()):
        failure = await failure_of(emitted)
        if failure is not None:
            raise failure.error()


__all__ = ["emit"]
