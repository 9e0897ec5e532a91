"""Emissions as rows: the message, its EMITTED, and a run for every handler that is expected, all in one commit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from perdure.errors import EngineBug
from perdure.models.cooperation.context import for_compensation
from perdure.models.cooperation.events import SLEEP_TOPIC, EventType, Lineage, Message, MessageEvent
from perdure.models.cooperation.moves import NewRun, OperationRun, Writes
from perdure.models.cooperation.scope import Emission
from perdure.models.cooperation.strategies import Handlers, Registry, Strategy


class Emitting(Struct, frozen=True, kw_only=True):
    """What is needed to write emissions: what is known of each topic's handlers, fresh ids for runs, and the time."""

    handlers: Mapping[str, Handlers]
    ids: Iterator[str]
    now: int = 0


class Origin(Struct, frozen=True, kw_only=True):
    """The step that emits, and the number of its first row."""

    run: OperationRun
    step: str
    seq: int
    rolling_back: bool


def emit(
    emissions: tuple[Emission, ...],
    *,
    strategy: Strategy | None = None,
    emitting: Emitting,
    origin: Origin | None = None,
) -> Writes:
    """Without an origin, and for what a step emits on the global scope, all registered handlers are expected."""
    messages: list[Message] = []
    rows: list[MessageEvent] = []
    runs: list[NewRun] = []
    seq = origin.seq if origin else 1
    for emission in emissions:
        context = emission.context
        if emission.root is not None or origin is None:
            if emission.root is None:
                raise EngineBug("an emission from outside has no root")
            lineage: Lineage = (emission.root,)
            number = 1
            chooser: Strategy = Registry()
        else:
            lineage, number, chooser = origin.run.lineage, seq, strategy or Registry()
            seq += 1
            if origin.rolling_back:
                context = for_compensation(context, len(lineage))
        messages.append(
            Message(id=emission.message_id, topic=emission.topic, payload=emission.payload, created_at=emitting.now)
        )
        rows.append(
            MessageEvent(
                seq=number,
                message_id=emission.message_id,
                type=EventType.EMITTED,
                coroutine_name=origin.run.handler if origin else None,
                coroutine_identifier=origin.run.lineage[-1] if origin else None,
                step=origin.step if origin else None,
                cooperation_lineage=lineage,
                created_at=emitting.now,
                context=context,
            )
        )
        if emission.call is not None:
            runs.append(
                NewRun(
                    lineage=(*lineage, emission.message_id),
                    handler=emission.call.workflow,
                    message_id=emission.message_id,
                    is_call=True,
                    call=emission.call,
                )
            )
        elif emission.topic != SLEEP_TOPIC:
            known = emitting.handlers.get(emission.topic, Handlers())
            runs += [
                NewRun(lineage=(*lineage, next(emitting.ids)), handler=handler, message_id=emission.message_id)
                for handler in sorted(chooser.expected(emission.topic, known))
            ]
    return Writes(messages=tuple(messages), rows=tuple(rows), runs=tuple(runs))
