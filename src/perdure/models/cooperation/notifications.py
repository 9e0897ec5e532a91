"""Notifications that a run sends to other runs, as ops. They say: undo, never begin, stop, or give up. This module also
makes the reports that a run sends to its parent.

Each notification is part of the sender's commit. A notification to a run that has not begun contains the rows that end
that run. So no engine needs the handler's code to end the run.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec.structs import replace

from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation
from perdure.kernel.operation_notices import ASK, STOP, UNDO
from perdure.kernel.pieces import Pieces, parts
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.models.cooperation.cancellation import heeded
from perdure.models.cooperation.causes import KnownFailures
from perdure.models.cooperation.children import Child
from perdure.models.cooperation.deadlines import deadline_in
from perdure.models.cooperation.failures import (
    DEADLINE_MISSED,
    DISMISSED,
    Failure,
    as_stored,
    gave_up,
    parent_said_so,
    placed,
)
from perdure.models.cooperation.handler_runs import origins_of
from perdure.models.cooperation.live_run import ChildReport, Draft, LiveOperation
from perdure.models.cooperation.machine import refusal
from perdure.models.cooperation.message_events import EventType, MessageEvent, State
from perdure.models.cooperation.missing_handlers import dismiss
from perdure.models.cooperation.moves import Ask, Dismiss, OperationRun, UndoChildren
from perdure.models.cooperation.row_codec import RowCodec
from perdure.ports import Codec, Ids

_decode_report: Final = msgspec.json.Decoder(ChildReport).decode
_decode_ask: Final = msgspec.json.Decoder(Ask).decode

_REFUSED_AT: Final = 2  # the number of the row that says why a run never began


class Notifications:
    """Makes the notifications that one run sends to others. It remembers only failures that were stored recently."""

    def __init__(self, *, rows: RowCodec, codec: Codec, ids: Ids) -> None:
        self.rows = rows
        self._codec = codec
        self._ids = ids
        self.failures = KnownFailures()

    def undo_children(
        self, live: LiveOperation, draft: Draft, move: UndoChildren, now: int
    ) -> Pieces[tuple[ops.Notify, ...]]:
        """Return the notifications that undo the children of a step instance. Children that have not begun will never
        begin.
        """
        requests = {row.message_id: row for row in draft.rows if row.type is EventType.ROLLBACK_EMITTED}
        origins = yield from origins_of(live, draft)
        found: list[ops.Notify] = []
        cause = next((row.exception for row in requests.values()), None)
        call_failure = self.rows.outcome_failure(parent_said_so(cause, live.source))
        for start, part in parts(move.messages):
            if start:
                yield
            for child in live.children.of(part):
                if child.state in (State.ROLLED_BACK, State.ROLLBACK_FAILED, State.DISMISSED):
                    continue
                view = _view_of(child, origins[child.message_id], requests[child.message_id], now)
                found.append(self.undo(child, view, now, call_failure))
        return tuple(found)

    def undo(self, child: Child, view: OperationRun, now: int, call_failure: str) -> ops.Notify:
        """Return the notification that a run must undo its work.

        If the run has not begun, the notification contains the rows of a run that never begins. If the run has called
        functions and graphs that have not ended, they end with `call_failure`.
        """
        run_id, parent_id = child.lineage[-1], child.lineage[-2]
        request = view.rollback_request
        if child.state is not State.CREATED and not child.is_call:
            by = None if request is None else deadline_in(request.context, rolling_back=True)
            return ops.Notify(
                run_id=run_id, at=now, kind=UNDO, parent_id=parent_id, undone_by=by or 0, call_failure=call_failure
            )
        failure = parent_said_so(None if request is None else request.exception, view.source)
        if request is not None and request.coroutine_name is None and request.exception is not None:
            failure = request.exception
        if child.is_call:
            stored = self.rows.outcome_failure(failure)
            return ops.Notify(run_id=run_id, at=now, kind=UNDO, failure=stored, parent_id=parent_id)
        return self._refuse(child, view, failure, UNDO, now)

    def _refuse(self, child: Child, view: OperationRun, failure: Failure, kind: str, now: int) -> ops.Notify:
        """Return the notification that a run must never begin."""
        failure = placed(failure, child.id, _REFUSED_AT)
        return ops.Notify(
            run_id=child.id,
            at=now,
            kind=kind,
            refusal=self.refused(view, failure, now),
            failure=self.rows.outcome_failure(failure),
            answer=self.write_report(ChildReport(child.id, State.ROLLED_BACK, failure)),
            parent_id=child.lineage[-2],
        )

    def abandon_children(
        self, live: LiveOperation, draft: Draft, failure: Failure | None, now: int
    ) -> Pieces[tuple[ops.Notify, ...]]:
        """Return notifications that keep children from beginning if no engine has taken them. The emitter of these
        children ends without a rollback that would reach them. If an engine takes a child in the meantime, the child
        finds out by itself.
        """
        missing = [child for child in live.children if child.state is State.CREATED and not child.is_call]
        if not missing:
            return ()
        origins = yield from origins_of(live, draft)
        found: list[ops.Notify] = []
        for start, part in parts(missing):
            if start:
                yield
            for child in part:
                view = _view_of(child, origins[child.message_id], None, now)
                found.append(self._refuse(child, view, parent_said_so(failure, view.source), ASK, now))
        return tuple(found)

    def stop_called(self, live: LiveOperation, draft: Draft, now: int) -> list[ops.Notify]:
        """Return the notifications that stop the functions and graphs that a run has called. They are sent if the run
        gives up and waits for these functions and graphs. They are sent only once. The handlers of the run's messages
        find out by themselves.
        """
        view, progress = live.view(now), live.progress
        found = heeded(live.plan, view, progress.context, rolling_back=progress.rollback is not None)
        window = progress.window
        if not found or window is None or live.stopped is window:
            return []
        outstanding = live.children.outstanding(window)
        called = [one for one in (*outstanding.busy, *outstanding.missing) if one.is_call]
        failure = self.rows.outcome_failure(gave_up(found, view.source))
        draft.stopped = window
        notices = [ops.Notify(run_id=one.id, at=now, kind=STOP, failure=failure, parent_id=live.id) for one in called]
        if any(reason.type == DEADLINE_MISSED for reason in found):
            # A cancellation reaches the children without this notification. Children notice a deadline themselves,
            # unless they are held.
            by = None if progress.rollback is None else deadline_in(progress.context, rolling_back=True)
            busy = [one for one in outstanding.busy if not one.is_call]
            notices += [ops.Notify(run_id=one.id, at=now, kind=ASK, undone_by=by or 0) for one in busy]
        return notices

    def dismiss_children(
        self, live: LiveOperation, draft: Draft, move: Dismiss, now: int
    ) -> Pieces[tuple[ops.Settle, ...]]:
        """Return the ops that keep children from beginning if no engine has taken them. Each child is notified once,
        and replies with a report.
        """
        window = live.progress.window
        if live.dismissed is window:
            return ()
        draft.dismissed = window
        origins = yield from origins_of(live, draft)
        found: list[ops.Settle] = []
        for start, part in parts([*move.children]):
            if start:
                yield
            for child in part:
                view = _view_of(child, origins[child.message_id], None, now)
                found.append(self._dismissal(live, child, view, now))
        return tuple(found)

    def refused(self, view: OperationRun, failure: Failure, now: int) -> Cooperation:
        """Return the rows of a run that never begins, in the form in which they are stored."""
        rows = refusal(view, failure)
        stamped = [replace(row, id=self._ids(now), created_at=now) for row in rows]
        return Cooperation(events=[self.rows.event(row) for row in stamped])

    def _dismissal(self, live: LiveOperation, child: Child, view: OperationRun, now: int) -> ops.Settle:
        rows = dismiss(view)
        stamped = [replace(row, id=self._ids(now), created_at=now) for row in rows]
        failure = rows[0].exception or Failure(type=DISMISSED, message="")
        return ops.Settle(
            run_id=child.lineage[-1],
            at=now,
            status=Status.CANCELLED,
            added=Cooperation(events=[self.rows.event(row) for row in stamped]),
            outcome=Outcome(failure=self.rows.outcome_failure(failure)),
            answer=self.write_report(ChildReport(child.lineage[-1], State.DISMISSED)),
            otherwise=self.write_report(ChildReport(child.lineage[-1], State.ACTIVE)),
            parent_id=live.id,
        )

    def write_report(self, report: ChildReport) -> str:
        """Return a report as text. The text has a reference to the failure, because the child's row stores the whole
        failure.
        """
        if report.failure is not None:
            report = replace(report, failure=as_stored(report.failure))
        return self._codec.encode(msgspec.json.encode(report).decode())

    def read_report(self, about: str) -> ChildReport:
        """Return a report. If this process knows the failure, it is whole. Otherwise it is a reference."""
        report = _decode_report(self._codec.decode(about))
        return report if report.failure is None else replace(report, failure=self.failures.known(report.failure))

    def write_ask(self, ask: Ask) -> str:
        return self._codec.encode(msgspec.json.encode(replace(ask, failure=as_stored(ask.failure))).decode())

    def read_ask(self, about: str) -> Ask:
        return _decode_ask(self._codec.decode(about))


def _view_of(child: Child, origin: MessageEvent, request: MessageEvent | None, now: int) -> OperationRun:
    """Return a child that has not begun, in the form that the machine uses."""
    return OperationRun(lineage=child.lineage, handler=child.handler, origin=origin, rollback_request=request, now=now)


def asking(
    notifications: Notifications,
    view: OperationRun,
    status: str,
    failure: Failure,
    depth: int,
    now: int,
    actor: str,
) -> ops.Notify:
    """Return the notification that makes a run give up because of a `failure`.

    `depth` is the number of ids in the lineage to which the request was made. A run that no engine has taken never
    begins.
    """
    run_id = view.lineage[-1]
    about = notifications.write_ask(Ask(kind="cancel", depth=depth, failure=failure))
    failure = gave_up((failure,), view.source)
    if status != Status.CREATED:
        call_failure = notifications.rows.outcome_failure(failure)
        return ops.Notify(run_id=run_id, at=now, actor=actor, kind=ASK, about=about, call_failure=call_failure)
    return ops.Notify(
        run_id=run_id,
        at=now,
        actor=actor,
        kind=ASK,
        about=about,
        refusal=notifications.refused(replace(view, rollback_request=None), failure, now),
        failure=notifications.rows.outcome_failure(failure),
        answer=notifications.write_report(ChildReport(run_id, State.ROLLED_BACK, failure)),
        parent_id=view.lineage[-2],
    )
