"""How durable functions take part in structured cooperation: they emit a message and wait for all that follows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol, TypeVar

from msgspec import Struct

from perdure.errors import ScopeFailed
from perdure.kernel.status import Status
from perdure.models.cooperation.define import Topic
from perdure.models.cooperation.failures import Failure
from perdure.models.functions.children import run_of
from perdure.models.functions.compensation import compensate_and_wait
from perdure.models.functions.context import current_run, current_step, resource
from perdure.models.functions.define import step
from perdure.models.functions.waits import first
from perdure.values.arguments import checked

M = TypeVar("M")

_REASON: Final = "the function that emitted it rolls back"


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


class EngineAccess(Protocol):
    """What an engine does for functions that emit messages (see api/function_emissions.py)."""

    async def emit(self, topic: str, payload: str, message_id: str, run_id: str) -> Emitted: ...

    async def withdraw(self, topic: str, message_id: str, reason: str) -> Emitted | None: ...

    async def undo(self, emitted: Emitted, reason: str) -> Undoing: ...

    async def failure(self, emitted: Emitted) -> Failure | None: ...


class EmissionAccess:
    """Gives the steps below their engine. It is among the engine's resources."""

    def __init__(self, engine: EngineAccess) -> None:
        self.engine = engine


@step(name="perdure.emit")
async def emit_message(topic: str, payload: str, message_id: str) -> Emitted:
    """In every attempt, and after every crash, it is the same message."""
    me = current_step()
    return await me.resource(EmissionAccess).engine.emit(topic, payload, message_id, me.run_id)


@step(name="perdure.undo_emission")
async def undo_emission(topic: str, message_id: str) -> Emitted | None:
    """Have a message that is only on its way suppressed, or ask its hierarchy to give up. None if there is nothing to
    wait for, since nobody handles the message. In journals of earlier versions the result is None too: this step waited
    itself."""
    return await resource(EmissionAccess).engine.withdraw(topic, message_id, _REASON)


@step(name="perdure.undo_committed")
async def undo_committed(emitted: Emitted) -> Undoing:
    """Ask for what a hierarchy has committed to be undone."""
    return await resource(EmissionAccess).engine.undo(emitted, _REASON)


async def _undone(emitted: Emitted | None) -> None:
    """Wait until a hierarchy that was asked to give up is undone: one that is at work gives up, one that has committed
    is undone then. This is workflow code: it holds no slot, and a crash is none of its doing."""
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
    """Wait for the ends of runs; their statuses by their ids."""
    return {run_id: (await first(run_of(run_id))).status for run_id in run_ids}


@step(name="perdure.failure_of_emission")
async def failure_of(emitted: Emitted) -> Failure | None:
    """Why a hierarchy that has ended has failed; None if it has not."""
    return await resource(EmissionAccess).engine.failure(emitted)


@checked
async def emit(topic: Topic[M], message: M) -> None:
    """In a workflow function: emit a message, and wait durably for all who handle it, and for all that they emit.

    Raises ScopeFailed if one of them failed: then all that followed is undone. If the function fails afterwards, or is
    cancelled, the hierarchy is rolled back among its compensations, in the order in which they were registered. Raises
    HierarchyTooDeep if the handlers would be more than the engine's `hierarchy_levels_max` levels down, counted through
    the operations that started the function, and those above it.
    """
    payload, message_id = topic.write(message), str(current_run().uuid4())
    # First, since it may be cancelled while the message is being emitted.
    await compensate_and_wait(undo_emission(topic.name, message_id), _undone)
    emitted = await emit_message(topic.name, payload, message_id)
    statuses = await _statuses(emitted.run_ids)
    if any(status in (Status.ROLLED_BACK, Status.ROLLBACK_FAILED) for status in statuses.values()):
        failure = await failure_of(emitted)
        if failure is not None:
            raise failure.error()


__all__ = ["emit"]
