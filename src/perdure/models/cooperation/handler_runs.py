"""Runs of handlers. The commit that emits a message creates a run for each expected handler.

No part of the engine polls for messages without a run. If the emitting engine has the code of a handler, the same
commit writes SEEN together with EMITTED, and the run begins at once. Otherwise an engine that has the code claims the
run. emissions.py and handler_registry.py determine the expected handlers. missing_handlers.py creates runs for handlers
that register late.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec

from perdure.errors import PerdureError
from perdure.kernel import ops
from perdure.kernel.cooperation import APART_TAG, without_token_tags
from perdure.kernel.lineages import origin_of
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.rules.operations import CALLED
from perdure.kernel.status import Status
from perdure.models.cooperation.children import Child
from perdure.models.cooperation.context import CancellationToken, begun
from perdure.models.cooperation.deadlines import deadline_in
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.emissions import Emitting, emit
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.live_run import Draft, LiveOperation
from perdure.models.cooperation.message_events import EventType, Message, MessageEvent, State
from perdure.models.cooperation.moves import NewRun, Writes
from perdure.models.cooperation.scope import Call, Emission
from perdure.models.cooperation.strategies import Strategy
from perdure.models.cooperation.versions import Operations
from perdure.ports import Codec, Ids

GIVEN: Final = "given"  # the value of a token's tag in runs that got the token from their emission


_USUAL: Final = Strategy()


class Emitter:
    """Makes the runs of emissions. They are made in memory if the engine has the code, and as ops for the commit that
    emits.
    """

    def __init__(
        self, *, operations: Operations, registry: HandlerRegistry, codec: Codec, ids: Ids, now: Callable[[], int]
    ) -> None:
        self._operations = operations
        self._registry = registry
        self._codec = codec
        self._ids = ids
        self._now = now

    def emitted(self, emission: Emission, *, handled: bool = True, begins: bool = True) -> Draft:
        """Return the draft of a message that is emitted from outside. Without `handled`, the message has no runs.
        Without `begins`, no engine takes the runs with this commit.
        """
        draft = Draft(Status.CREATED)
        now = self._now()
        draft.registry_version = self._registry.version
        handlers = self._registry.topics if handled else {}
        writes = emit((emission,), emitting=Emitting(handlers=handlers, ids=self.fresh_ids(now), now=now))
        draft.rows += writes.rows
        if begins:
            at_once(self.take_in(draft, writes, now, None))
        else:
            draft.messages, draft.runs = writes.messages, writes.runs
        return draft

    def fresh_ids(self, now: int) -> Iterator[str]:
        while True:
            yield self._ids(now)

    def take_in(self, draft: Draft, writes: Writes, now: int, live: LiveOperation | None) -> Pieces[None]:
        """Add everything except rows to a draft: the messages, a run for each handler of a message, and the values."""
        draft.values += writes.values
        if not writes.messages:
            return
        draft.messages += writes.messages
        origins = {row.message_id: row for row in writes.rows if row.type is EventType.EMITTED}
        messages = {message.id: message for message in writes.messages}
        begun: list[LiveOperation] = []
        for start, part in parts(writes.runs):
            if start:
                yield
            children: list[Child] = []
            for run in part:
                origin = origins[run.message_id]
                began = None if run.is_call else self._begun(draft, run, origin, messages[run.message_id], now)
                if began is not None:
                    begun.append(began)
                if live is not None and origin.cooperation_lineage == live.lineage:
                    is_begun = began is not None or run.is_call
                    children.append(new_child(run, State.ACTIVE if is_begun else State.CREATED))
            if live is not None:
                live.children.draft(children)
        draft.runs += writes.runs
        draft.began += tuple(begun)

    def _begun(
        self, draft: Draft, run: NewRun, origin: MessageEvent, message: Message, now: int
    ) -> LiveOperation | None:
        """Return a new run in memory if this engine has its code. Otherwise return None. If this engine has the code,
        the commit writes SEEN together with EMITTED.
        """
        operation = self._operations.get((message.topic, run.handler))
        if operation is None:
            return None
        seen = MessageEvent(
            seq=1,
            message_id=run.message_id,
            type=EventType.SEEN,
            coroutine_name=run.handler,
            coroutine_identifier=run.id,
            cooperation_lineage=run.lineage,
            created_at=now,
            context=begun(origin.context),
        )
        try:
            began = LiveOperation(
                operation=operation, lineage=run.lineage, claim=1, origin=origin, payload=message.payload, events=[seen]
            )
        except PerdureError:
            return None  # The message does not fit this operation's type. The error is reported when the run is read.
        draft.rows.append(seen)
        self.see(draft, operation)
        return began

    def see(self, draft: Draft, operation: Operation[Any]) -> None:
        pair = (operation.topic.name, operation.name)
        if not self._registry.is_seen(*pair) and pair not in draft.seen:
            draft.seen += (pair,)

    def starts(
        self, draft: Draft, tags: Mapping[str, str], now: int, strategy: Strategy = _USUAL
    ) -> Pieces[tuple[ops.Start, ...]]:
        """Return the ops that create the new runs of a draft. The ops for called functions and graphs come first."""
        tags = without_token_tags(tags)
        here = {began.id: began.operation for began in draft.began}
        topics = {message.id: message.topic for message in draft.messages} | draft.late
        origins = {row.message_id: row for row in draft.rows if row.type is EventType.EMITTED}
        calls: list[ops.Start] = []
        found: list[ops.Start] = []
        for start, part in parts(draft.runs):
            if start:
                yield
            for run in part:
                if run.call is not None:
                    calls.append(self._call(origins[run.message_id], run, run.call, tags, strategy, now))
                    continue
                topic = topics[run.message_id]
                operation = here.get(run.id)
                if operation is None and run.message_id in draft.late:
                    operation = self._operations.get((topic, run.handler))
                found.append(self._new_run(run, topic, operation, tags, now))
        return (*calls, *found)

    def _new_run(
        self, run: NewRun, topic: str, operation: Operation[Any] | None, tags: Mapping[str, str], now: int
    ) -> ops.Start:
        """Return the op that creates a run. `operation` is the code of the run, or None if this engine does not have
        it.
        """
        return ops.Start(
            run_id=run.id,
            at=now,
            workflow=run.handler,
            workflow_version=topic if operation is None else operation.stored_version,
            model="operation",
            input=self._codec.encode(msgspec.json.encode({"topic": topic, "message": run.message_id}).decode()),
            tags=tags if not run.tokens else {**tags, **_tags_of(run)},
            parent_id=run.lineage[-2],
            bond="awaited",
            origin=origin_of(run.message_id, run.lineage),
            fresh=True,
            admit=operation is not None,
        )

    def members(self, draft: Draft, now: int) -> Pieces[tuple[ops.NotifyMembers, ...]]:
        """Return notifications for the tokens of those new runs that no engine takes with this commit.

        These tokens may have been cancelled before. In that case the runs must end, even if the service that would
        handle them is down.
        """
        here = {began.id for began in draft.began}
        names: dict[str, None] = {}
        for start, part in parts(draft.runs):
            if start:
                yield
            names |= dict.fromkeys(name for run in part if run.tokens and run.id not in here for name in run.tokens)
        return tuple(ops.NotifyMembers(run_id=CancellationToken(name).scope, at=now, token=name) for name in names)

    def _call(
        self, origin: MessageEvent, run: NewRun, call: Call, tags: Mapping[str, str], strategy: Strategy, now: int
    ) -> ops.Start:
        if type(strategy).heeds is not Strategy.heeds:
            tags = {**tags, APART_TAG: "true"}  # Only the caller of this run knows which reasons to give up count.
        return ops.Start(
            run_id=run.id,
            at=now,
            workflow=call.workflow,
            workflow_version=call.version,
            model=call.model,
            input=self._codec.encode(call.input),
            tags=tags,
            deadline=deadline_in(origin.context, rolling_back=False),
            parent_id=run.lineage[-2],
            bond=CALLED,
            origin=origin_of(run.message_id, run.lineage),
            fresh=True,
        )


def _tags_of(run: NewRun) -> dict[str, str]:
    """Return the tags by which a run is found when one of its own tokens is cancelled."""
    return {CancellationToken(name).tag: GIVEN for name in run.tokens}


def origins_of(live: LiveOperation, draft: Draft) -> Pieces[Mapping[str, MessageEvent]]:
    """Return the EMITTED rows that a run has written or is about to write, by message."""
    known = yield from live.emissions()
    found: dict[str, MessageEvent] = {}
    for start, part in parts(draft.rows):
        if start:
            yield
        found |= {row.message_id: row for row in part if row.type is EventType.EMITTED}
    return ChainMap(found, known)


def new_child(run: NewRun, state: State) -> Child:
    return Child(message_id=run.message_id, handler=run.handler, lineage=run.lineage, state=state, is_call=run.is_call)
