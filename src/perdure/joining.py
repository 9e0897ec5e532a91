"""How durable functions take part in structured cooperation: they emit a message and wait for all that follows."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import msgspec
from msgspec import Struct

from perdure.arguments import checked
from perdure.errors import ScopeFailed
from perdure.kernel.records import Outcome, Run
from perdure.kernel.status import Status
from perdure.models.cooperation.define import Topic
from perdure.models.cooperation.failures import Failure
from perdure.models.functions.children import run_of
from perdure.models.functions.compensation import compensate
from perdure.models.functions.context import current_run, resource
from perdure.models.functions.define import step
from perdure.models.functions.waiting import first

M = TypeVar("M")


class Root(Protocol):
    """The handle of a root emission."""

    @property
    def id(self) -> str: ...

    @property
    def message_id(self) -> str: ...

    @property
    def run_ids(self) -> tuple[str, ...]: ...

    async def finished(self) -> None: ...


class Cooperator:
    """What the steps below ask of their engine: it is among the engine's resources."""

    def __init__(self, engine: EngineAccess) -> None:
        self.engine = engine


class EngineAccess(Protocol):
    async def emit(self, topic: Topic[Any], message: Any, *, id: str | None = None) -> Root: ...

    async def hold_back(self, topic: Topic[Any], id: str) -> Root: ...

    async def cancel(self, id: str, *, reason: str = "", actor: str = "api") -> bool: ...

    async def roll_back(self, id: str, *, reason: str = "", actor: str = "api") -> bool: ...

    async def outcome(self, run_id: str) -> tuple[Run, Outcome]: ...


class Emitted(Struct, frozen=True):
    """A root emission, as the function that emitted it knows it."""

    id: str
    topic: str
    message_id: str
    run_ids: tuple[str, ...]


@step(name="perdure.emit")
async def emit_message(topic: str, payload: str, message_id: str) -> Emitted:
    """In every attempt, and after every crash, it is the same message."""
    engine = resource(Cooperator).engine
    handle = await engine.emit(Topic(topic, object), msgspec.json.decode(payload), id=message_id)
    return Emitted(handle.id, topic, handle.message_id, handle.run_ids)


@step(name="perdure.undo_emission")
async def undo_emission(topic: str, message_id: str) -> None:
    """Have a hierarchy rolled back, wherever it is: one that is at work gives up, one that has committed is undone, and
    a message that is only on its way is held back."""
    engine = resource(Cooperator).engine
    emitted = await engine.hold_back(Topic(topic, object), message_id)
    if not emitted.run_ids:
        return
    await engine.cancel(emitted.id, reason="the function that emitted it rolls back")
    ended = [(await engine.outcome(run_id))[0] for run_id in emitted.run_ids]
    if any(run.status is Status.SUCCEEDED for run in ended):
        await engine.roll_back(emitted.id, reason="the function that emitted it rolls back")
        ended = [(await engine.outcome(run_id))[0] for run_id in emitted.run_ids]
    if failed := [run.id for run in ended if run.status is Status.ROLLBACK_FAILED]:
        raise ScopeFailed(f"what followed from message {emitted.message_id!r} could not be undone by {failed}")


@step(name="perdure.failure_of_emission")
async def failure_of(emitted: Emitted) -> Failure | None:
    """Why a hierarchy has failed; None if it has not."""
    # It was emitted, so this only finds it.
    handle = await resource(Cooperator).engine.hold_back(Topic(emitted.topic, object), emitted.message_id)
    try:
        await handle.finished()
    except ScopeFailed as error:
        found: Failure = error.failure
        return found
    return None


@checked
async def emit(topic: Topic[M], message: M) -> None:
    """In a workflow function: emit a message, and wait durably for all who handle it, and for all that they emit.

    Raises ScopeFailed if one of them failed: then all that followed is undone. If the function fails afterwards, or is
    cancelled, the hierarchy is rolled back among its compensations, in the order in which they were registered.
    """
    payload, message_id = topic.write(message), str(current_run().uuid4())
    # First, since it may be cancelled while the message is being emitted.
    await compensate(undo_emission(topic.name, message_id))
    emitted = await emit_message(topic.name, payload, message_id)
    statuses = [(await first(run_of(run_id))).status for run_id in emitted.run_ids]
    if any(status in (Status.ROLLED_BACK, Status.ROLLBACK_FAILED) for status in statuses):
        failure = await failure_of(emitted)
        if failure is not None:
            raise failure.error()


__all__ = ["Cooperator", "Emitted", "emit"]
