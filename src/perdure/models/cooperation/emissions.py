"""Emissions as rows. One commit writes the message, its EMITTED row, and a run for every expected handler.

`emit` is pure: it takes emissions, and returns rows and new runs. handler_runs.py makes the runs in memory, and the ops
that create them. An emission on the global scope has a root of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import EngineBug
from perdure.kernel.lineages import Lineage, depth_of, extended
from perdure.kernel.pieces import Pieces, parts
from perdure.models.cooperation.context import Context, token_names
from perdure.models.cooperation.deadlines import for_compensation
from perdure.models.cooperation.message_events import SLEEP_TOPIC, EventType, Message, MessageEvent
from perdure.models.cooperation.moves import NewRun, OperationRun, Writes
from perdure.models.cooperation.scope import Emission
from perdure.models.cooperation.strategies import Handlers, Registry, Strategy


class Emitting(Struct, frozen=True, kw_only=True):
    """The data that are needed to write emissions: the known handlers of each topic, new ids for runs, and the time."""

    handlers: Mapping[str, Handlers]
    ids: Iterator[str]
    now: int = 0


class Origin(Struct, frozen=True, kw_only=True):
    """The step that emits, and the number of its first row."""

    run: OperationRun
    step: str
    seq: int
    rolling_back: bool


def emit_in_pieces(
    emissions: Sequence[Emission], *, strategy: Strategy, emitting: Emitting, origin: Origin
) -> Pieces[Writes]:
    """Do what `emit` does, in pieces, because a step may emit many messages."""
    messages: list[Message] = []
    rows: list[MessageEvent] = []
    runs: list[NewRun] = []
    lineage = origin.run.lineage
    for start, part in parts(emissions):
        if start:
            yield
        emitted = emit(part, strategy=strategy, emitting=emitting, origin=origin)
        messages += emitted.messages
        rows += emitted.rows
        runs += emitted.runs
        own = sum(row.cooperation_lineage == lineage for row in emitted.rows)
        origin = replace(origin, seq=origin.seq + own)
    return Writes(messages=tuple(messages), rows=tuple(rows), runs=tuple(runs))


def emit(
    emissions: Sequence[Emission],
    *,
    strategy: Strategy | None = None,
    emitting: Emitting,
    origin: Origin | None = None,
) -> Writes:
    """Return the rows, messages and new runs of emissions. The strategy chooses which handlers are expected.

    If there is no origin, or if a step emits on the global scope, all registered handlers are expected.
    """
    messages: list[Message] = []
    rows: list[MessageEvent] = []
    runs: list[NewRun] = []
    seq = origin.seq if origin else 1
    for emission in emissions:
        context = emission.context
        inherited: tuple[str, ...] = ()
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
                context = for_compensation(context, depth_of(lineage))
            else:
                inherited = token_names(origin.run.origin.context)
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
                    lineage=extended(lineage, emission.message_id),
                    handler=emission.call.workflow,
                    message_id=emission.message_id,
                    is_call=True,
                    call=emission.call,
                )
            )
        elif emission.topic != SLEEP_TOPIC:
            known = emitting.handlers.get(emission.topic, Handlers())
            tokens = given_tokens(context, inherited)
            runs += [
                NewRun(
                    lineage=extended(lineage, next(emitting.ids)),
                    handler=handler,
                    message_id=emission.message_id,
                    tokens=tokens,
                )
                for handler in sorted(chooser.expected(emission.topic, known))
            ]
    return Writes(messages=tuple(messages), rows=tuple(rows), runs=tuple(runs))


def given_tokens(context: Context | None, inherited: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of the tokens that a message got from its emission, without the tokens that it inherits from its
    emitter.
    """
    return tuple(name for name in token_names(context) if name not in inherited)
