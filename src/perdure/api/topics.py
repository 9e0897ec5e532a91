"""`engine.topics`: the handlers of topics, and the runs of handlers that are people or other systems."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.api.hierarchies import AT_WORK, cancel_token, read_rows, root_rows, run_rows, stamped, submitted
from perdure.api.records import Records
from perdure.api.root_handle import RootHandle
from perdure.coordinator.call_spans import whole_calls
from perdure.coordinator.turns import in_turns
from perdure.errors import Misuse, RunNotFound
from perdure.kernel import ops
from perdure.kernel.operation_notices import JOIN
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.models.cooperation.context import CancellationToken
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.live_run import ChildReport
from perdure.models.cooperation.message_events import State
from perdure.models.cooperation.missing_handlers import complete, complete_rollback, dismiss, fail
from perdure.models.cooperation.moves import OperationRun, Writes
from perdure.models.cooperation.return_values import ReturnValue
from perdure.models.cooperation.row_codec import RowCodec, StoredScopes
from perdure.models.cooperation.topics import Topic
from perdure.ports import RunFilter
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.values.checks import checked_remark, checked_text
from perdure.values.json import to_text

HANDLER_RECORD: Final = "perdure.handler"  # the kind of the records of registered and retired handlers
_PAGE: Final = 64
_NOT_BEGUN: Final = (Status.CREATED, Status.RUNNING)  # in these statuses, a run's first step may not have begun


@whole_calls()
@checked(constructor=False)
class Topics:
    """Topics, their handlers, and the runs of handlers that are people or other systems."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records = Records(session)

    async def handlers(self) -> dict[str, list[str]]:
        """Return the names of the registered handlers, by topic."""
        self._session.check_open()
        handlers = self._session.handlers
        await handlers.load(again=True)
        return {topic: sorted(known.registered) for topic, known in sorted(handlers.topics.items()) if known.registered}

    async def register(self, topic: Topic[Any] | str, name: str, *, actor: str = "api") -> None:
        """Register a handler that is not code of an engine, such as a person or another system.

        From then on, messages of the topic wait for this handler; see `complete`. Engines register their own operations
        by themselves.

        When this returns, emitters that wait for handlers of the topic know of the new handler. If the process dies
        before this returns, the emitters are notified later: when an engine with operations is opened, when an engine
        finds this process dead, or when you call this again. A record is kept of the registration, with the `actor`.
        The record is written first, so a crash may leave a record of a handler that is not registered yet.
        """
        session = self._session
        session.check_open()
        pair = (_topic_name(topic), checked_text(name, "a handler's name"))
        await self._note(*pair, actor, registered=True)
        await session.handlers.register([pair], session.clock.now())
        await announce_handlers(session)

    async def retire(self, topic: Topic[Any] | str, name: str, *, release: bool = False, actor: str = "api") -> bool:
        """Retire a handler: messages that are emitted from now on do not wait for it.

        Messages that wait for it already keep waiting. With `release` these messages stop waiting: the handler's runs
        that have not begun are cancelled.

        Returns False if the topic has no handler of this name. An engine that has the handler registers it again when
        it is opened. If the process dies before this returns, some runs may not be released; then call this again. A
        record is kept of the retirement, with the `actor`. The record is written first, so a crash may leave a record
        of a handler that is not retired yet.
        """
        session = self._session
        session.check_open()
        pair = (_topic_name(topic), checked_text(name, "a handler's name"))
        await session.handlers.load(again=True)
        if (known := session.handlers.topics.get(pair[0])) is not None and name in known.registered:
            await self._note(*pair, actor, registered=False)
        done = await session.handlers.retire([pair], session.clock.now())
        if release:
            # A run with the status `running` may be held before its first step.
            async for found in _operation_runs(session, name, *_NOT_BEGUN):
                await self._release(found, pair[0], actor)
        return done

    async def _note(self, topic: str, name: str, actor: str, *, registered: bool) -> None:
        note = {"topic": topic, "name": name, "registered": registered}
        await self._records.put(HANDLER_RECORD, f"{topic}/{name}", note, actor=actor)

    async def _release(self, found: StoredScopes, topic: str, actor: str) -> None:
        """Cancel the runs that no engine has taken, so that they never begin."""
        messages = {message.id: message.topic for message in found.messages}
        hierarchy = await in_turns(found.hierarchy_in_pieces())
        for run in found.runs.values():
            if found.statuses[run.id] not in _NOT_BEGUN or messages.get(run.message_id) != topic:
                continue
            view = hierarchy.view(run, self._session.clock.now())
            if view.events:
                continue
            writes = Writes(rows=dismiss(view))
            report = ChildReport(run.id, State.DISMISSED)
            with suppress(Misuse):  # An engine has taken the run in the meantime.
                await self._settle(view, writes, Status.CANCELLED, report, actor)

    async def cancel_token(self, token: CancellationToken, *, reason: str = "", actor: str = "api") -> bool:
        """Cancel a cancellation token for good, even if no run has it yet.

        Each run that has the token, in any hierarchy, rolls back at its next step boundary. Runs of messages that are
        emitted with the token later roll back before their first step. Returns False if the token was cancelled before;
        then the first reason counts.

        Once this has returned, no engine begins a further step of these runs. If this process dies before the call
        returns, a cancellation that is already stored still takes effect: another engine notifies the runs. Raises
        InvalidArguments.
        """
        return await cancel_token(self._session, token, reason=reason, actor=actor)

    # Roots.

    async def root(self, id: str) -> RootHandle:
        """Return the handle of the root emission with this id. Raises RunNotFound."""
        found = await root_rows(self._session, checked_text(id, "a root's id"))
        emitted = next((row for row in found.events if row.cooperation_lineage == (id,)), None)
        if emitted is None:
            raise RunNotFound(id)
        run_ids = tuple(run.id for run in found.runs.values() if run.lineage[:-1] == (id,))
        return RootHandle(self._session, id, emitted.message_id, run_ids)

    # Handlers that are people or other systems.

    async def message(self, id: str) -> Any:
        """Return the message that a handler's run handles. Raises RunNotFound. Raises Misuse if the run is not a
        handler's."""
        found = await run_rows(self._session, id)
        message_id = found.runs[id].message_id
        return msgspec.json.decode(next(one.payload for one in found.messages if one.id == message_id))

    async def complete(self, id: str, values: Mapping[str, Any] | None = None, *, actor: str = "api") -> None:
        """Complete the run of a handler that is a person or another system. `values` are the handler's return values,
        by name.

        Raises RunNotFound, RunFinished, UnstorableValue. Raises Misuse if the run is not a handler's, if an engine has
        taken the run, or if its emitter rolls back.
        """
        checked_remark("", actor)
        payload_max = self._session.limits.payload_bytes_max
        view = await self._view(id)
        returned = tuple(
            ReturnValue(
                lineage=view.lineage,
                handler=view.handler,
                variable=checked_text(name, "the name of a value"),
                value=to_text(value, f"the value {name!r}", payload_max),
            )
            for name, value in (values or {}).items()
        )
        writes = complete(view, returned)
        report = ChildReport(id, State.COMMITTED, None, returned)
        await self._settle(view, writes, Status.SUCCEEDED, report, actor)

    async def fail(self, id: str, reason: str, *, type: str = "Refused", actor: str = "api") -> None:
        """Fail the run of a handler that is a person or another system.

        Call this only if no work of the handler needs to be undone. Raises the same errors as `complete`.
        """
        checked_remark(reason, actor)
        checked_text(type, "the type of a failure")
        view = await self._view(id)
        failure = Failure(type=type, message=reason, source=view.source)
        report = ChildReport(id, State.ROLLED_BACK, failure)
        await self._settle(view, fail(view, failure), Status.ROLLED_BACK, report, actor)

    async def complete_rollback(self, id: str, *, actor: str = "api") -> None:
        """Complete the rollback of a handler that is a person or another system.

        Call this once the handler's work is undone, as the emitter has requested. Raises RunNotFound, Misuse.
        """
        view = await self._view(id)
        request = view.rollback_request
        report = ChildReport(id, State.ROLLED_BACK, None if request is None else request.exception)
        await self._settle(view, complete_rollback(view), Status.ROLLED_BACK, report, actor, Status.ROLLING_BACK)

    async def _view(self, id: str) -> OperationRun:
        found = await run_rows(self._session, id)
        hierarchy = await in_turns(found.hierarchy_in_pieces())
        return await in_turns(hierarchy.view_in_pieces(found.runs[id], self._session.clock.now()))

    async def _settle(
        self,
        view: OperationRun,
        writes: Writes,
        status: Status,
        report: ChildReport,
        actor: str,
        was: Status = Status.CREATED,
    ) -> None:
        session = self._session
        now = session.clock.now()
        codec = RowCodec(session.codec)
        added = stamped(session, writes.rows, now)
        added.values += [codec.value(value) for value in writes.values]
        failure = None if report.failure is None else codec.outcome_failure(report.failure)
        op = ops.Settle(
            run_id=view.lineage[-1],
            at=now,
            actor=actor,
            status=status,
            was=was,
            added=added,
            outcome=Outcome(output=session.codec.encode("null") if failure is None else None, failure=failure),
            answer=session.operation_runner.notifications.write_report(report),
            parent_id=view.lineage[-2] if len(view.lineage) > 2 else "",
        )
        if not await submitted(session, op):
            raise Misuse(f"an engine has taken run {op.run_id!r} in the meantime", run_id=op.run_id)


async def announce_handlers(session: Session) -> None:
    """Notify waiting emitters of handlers that they may not know yet, including handlers of other engines."""
    unannounced = session.handlers.unannounced
    if not unannounced:
        return
    topics = {topic for topic, _, _ in unannounced}
    # A running emitter may be about to wait again, with an earlier state of the registry.
    async for found in _operation_runs(session, None, *AT_WORK):
        emitted = {message.id for message in found.messages if message.topic in topics}
        waiting = {row.cooperation_lineage[-1] for row in found.events if row.message_id in emitted}
        now = session.clock.now()
        for run in found.runs.values():
            if run.id in waiting and not run.is_call and found.statuses[run.id] in AT_WORK:
                await submitted(session, ops.Notify(run_id=run.id, at=now, kind=JOIN))
    await session.handlers.announced(unannounced, session.clock.now())


async def _operation_runs(session: Session, handler: str | None, *statuses: Status) -> AsyncIterator[StoredScopes]:
    """Return the runs of operations that are in one of these statuses, page by page."""
    after: tuple[int, str] | None = None
    wanted = RunFilter(workflow=handler, statuses=statuses, limit=_PAGE)
    while page := await session.caller_store.list(replace(wanted, after=after)):
        after = (page[-1].created_at, page[-1].id)
        if ids := [run.id for run in page if run.model == "operation"]:
            yield await read_rows(session, await session.caller_store.scopes(ids))


def _topic_name(topic: Topic[Any] | str) -> str:
    return Topic(topic, object).name if isinstance(topic, str) else topic.name  # Topic checks the name.


__all__ = ["HANDLER_RECORD", "Topics", "announce_handlers"]
