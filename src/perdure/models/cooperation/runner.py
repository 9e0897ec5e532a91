"""The runner applies the machine's moves to a run in memory, and collects the writes of one commit in a draft.

A draft has the outcome of code that has run, and all following moves that need no code. notifications.py makes the
notifications to other runs. handler_runs.py makes the runs that an emission begins.

A step may have many thousands of children. Everything about them is written in one commit. So a draft is made in
pieces. Other runs go on between the pieces. The run's state must not change until the draft is complete.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from perdure.errors import PerdureError
from perdure.kernel import ops
from perdure.kernel.cooperation import Cooperation, MessageEventRow, MessageRow, ReturnValueRow
from perdure.kernel.operation_notices import NEWS
from perdure.kernel.pieces import Pieces, parts
from perdure.kernel.runs import Outcome
from perdure.kernel.status import Status
from perdure.models.cooperation.context import token_names
from perdure.models.cooperation.emissions import Emitting, given_tokens
from perdure.models.cooperation.failures import Failure
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.handler_runs import Emitter, new_child, origins_of
from perdure.models.cooperation.live_run import ChildReport, Code, Draft, LiveOperation, wakes_of
from perdure.models.cooperation.machine import after_in_pieces, next_move
from perdure.models.cooperation.message_events import EventType, MessageEvent, State
from perdure.models.cooperation.missing_handlers import late_run, may_be_joined
from perdure.models.cooperation.moves import (
    Awaits,
    BeginRollback,
    Block,
    Dismiss,
    Finish,
    Handle,
    Invoke,
    Move,
    NewRun,
    Note,
    Nothing,
    Refuse,
    Take,
    Undo,
    UndoChildren,
    Wait,
)
from perdure.models.cooperation.moves import Outcome as StepOutcome
from perdure.models.cooperation.notifications import Notifications
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.versions import Operations
from perdure.ports import Codec, Ids

_UUID_CHARS: Final = 36
_IDS_IN_A_ROW: Final = 16**3

_STATUSES: Final = {
    State.COMMITTED: Status.SUCCEEDED,
    State.ROLLED_BACK: Status.ROLLED_BACK,
    State.ROLLBACK_FAILED: Status.ROLLBACK_FAILED,
}


class Blocked(PerdureError):
    """Raised if the code does not fit the rows. Then the run cannot go on."""

    reason: str


class OperationRunner:
    """Applies the machine's moves to runs in memory, and collects the writes of one commit. It keeps no runs itself."""

    def __init__(
        self,
        *,
        operations: Operations,
        registry: HandlerRegistry,
        rows: RowCodec,
        codec: Codec,
        ids: Ids,
        now: Callable[[], int],
    ) -> None:
        self._registry = registry
        self._rows = rows
        self._codec = codec
        self._ids = ids
        self.emitter = Emitter(operations=operations, registry=registry, codec=codec, ids=ids, now=now)
        self.notifications = Notifications(rows=rows, codec=codec, ids=ids)

    # The next moves.

    def go_on(self, live: LiveOperation, draft: Draft, now: int) -> Pieces[Draft]:
        """Add all moves that need no code, up to a move that runs code, waits or ends the run. Raises Blocked."""
        if draft.messages:
            live.wakes |= wakes_of(draft.messages)
        try:
            folding = live.folding or (yield from live.folded_in_pieces())
            while True:
                move = next_move(live.plan, live.view(now), folding.progress())
                if move.rows:
                    yield from self._add(live, draft, move.rows)
                if (yield from self._is_over(live, draft, move, now)):
                    return draft
        except Mismatch as error:
            raise Blocked(f"the code does not fit the rows: {error}", reason=str(error)) from error

    @staticmethod
    def _add(live: LiveOperation, draft: Draft, rows: tuple[MessageEvent, ...]) -> Pieces[None]:
        folding = live.folded()
        draft.rows += rows
        for start, part in parts(rows):
            if start:
                yield
            for row in part:
                if row.cooperation_lineage == live.lineage:
                    draft.own.append(row)
                    folding.add(row)

    def _is_over(self, live: LiveOperation, draft: Draft, move: Move, now: int) -> Pieces[bool]:
        """Add one move to the draft. Return whether this move is the last of the commit."""
        match move:  # The most frequent moves come first.
            case Invoke() | Handle() | Undo():
                if draft.status is not Status.ROLLING_BACK:
                    draft.status = Status.RUNNING
                draft.code = move
                return True
            case Finish():
                yield from self._finish(live, draft, move.state, move.failure, now)
                return True
            case Wait():
                draft.notices += tuple(self.notifications.stop_called(live, draft, now))
                yield from self._join(live, draft, now)
                self._suspend(draft, move.until, move.awaits)
                return True
            case Take():
                draft.status = Status.RUNNING
                self.emitter.see(draft, live.operation)
            case Refuse():
                yield from self._finish(live, draft, State.ROLLED_BACK, move.failure, now)
                return True
            case BeginRollback():
                draft.status = Status.ROLLING_BACK
            case Note():
                pass
            case UndoChildren():
                draft.notices += yield from self.notifications.undo_children(live, draft, move, now)
            case Dismiss():
                draft.notices += yield from self.notifications.dismiss_children(live, draft, move, now)
                self._suspend(draft, None, "missing")
                return True
            case Block():
                raise Blocked(f"the code does not fit the rows: {move.reason}", reason=move.reason)
            case Nothing():
                return True
            case _:
                raise AssertionError(move)
        return False

    @staticmethod
    def _suspend(draft: Draft, until: int | None, awaits: Awaits) -> None:
        if draft.status is not Status.ROLLING_BACK:
            draft.status = Status.SUSPENDED
        draft.until, draft.awaits = until, awaits

    def _finish(
        self, live: LiveOperation, draft: Draft, state: State, failure: Failure | None, now: int
    ) -> Pieces[None]:
        draft.state = state
        draft.failure = failure
        draft.status = _STATUSES[state]
        if state is State.ROLLBACK_FAILED:
            draft.notices += yield from self.notifications.abandon_children(live, draft, failure, now)
        if len(live.lineage) > 2:
            own = tuple(value for value in (*live.values.values(), *draft.values) if value.lineage == live.lineage)
            values = own if state is State.COMMITTED else ()
            about = self.notifications.write_report(ChildReport(live.id, state, failure, values))
            draft.notices += (ops.Notify(run_id=live.lineage[-2], at=now, kind=NEWS, about=about, child=live.id),)

    # The outcome of code.

    def land(self, live: LiveOperation, code: Code, outcome: StepOutcome, draft: Draft, now: int) -> Pieces[Draft]:
        """Add the outcome of code, and all moves after it that need no code. Raises Blocked."""
        draft.registry_version = self._registry.version
        emitting = Emitting(handlers=self._registry.topics, ids=self.emitter.fresh_ids(now), now=now)
        if live.folding is None:
            yield from live.folded_in_pieces()
        writes = yield from after_in_pieces(live.plan, live.view(now), code, outcome, emitting, live.progress)
        yield from self._add(live, draft, writes.rows)
        yield from self.emitter.take_in(draft, writes, now, live)
        last = writes.rows[-1]
        if last.type is EventType.ROLLING_BACK:
            draft.status = Status.ROLLING_BACK
        elif last.type is EventType.ROLLBACK_FAILED:
            yield from self._finish(live, draft, State.ROLLBACK_FAILED, last.exception, now)
            return draft
        return (yield from self.go_on(live, draft, now))

    def _join(self, live: LiveOperation, draft: Draft, now: int) -> Pieces[None]:
        """Add runs for handlers that registered after the run had emitted its messages, if the run still waits for
        handlers.
        """
        progress = live.progress
        window = progress.window
        if window is None or draft.messages:
            return  # New emissions of this draft already use the current registry.
        draft.registry_version, topics = self._registry.version, self._registry.topics
        if live.joined is not None and live.joined[0] is window and live.joined[1] == draft.registry_version:
            return
        live.joined = (window, draft.registry_version)
        view = live.view(now)
        if not may_be_joined(live.plan, view, progress):
            return
        runs: list[NewRun] = []
        for start, part in parts(window.emitted):
            if start:
                yield
            for message_id in part:
                topic = live.topics.get(message_id, "")
                if topic not in topics:
                    continue
                for handler in sorted(live.plan.strategy.joins(topic, topics[topic])):
                    if not live.children.has(message_id, handler):
                        runs.append(late_run(view, message_id, handler, self._ids(now)))
                        draft.late[message_id] = topic
        if runs:
            draft.runs += yield from self._with_tokens(live, draft, runs)
            live.children.draft(new_child(run, State.CREATED) for run in runs)

    @staticmethod
    def _with_tokens(live: LiveOperation, draft: Draft, runs: Sequence[NewRun]) -> Pieces[tuple[NewRun, ...]]:
        """Return late runs with the tokens that their messages got when they were emitted."""
        origins = yield from origins_of(live, draft)
        inherited = token_names(live.origin.context)
        found: list[NewRun] = []
        for start, part in parts(runs):
            if start:
                yield
            found += [replace(run, tokens=given_tokens(origins[run.message_id].context, inherited)) for run in part]
        return tuple(found)

    # The draft as parts of an op.

    def added(self, draft: Draft, now: int) -> Pieces[Cooperation]:
        """Return the rows to store. If the rows contain emissions or late runs, they also have the version of the
        handler registry that was used.
        """
        messages: list[MessageRow] = []
        for start, part in parts(draft.messages) if draft.messages else ():
            if start:
                yield
            messages += [self._rows.message(message, now) for message in part]
        events: list[MessageEventRow] = []
        for start, rows in parts(draft.rows):
            if start:
                yield
            events += self._events(rows, now, start, events[-1].id if start else "")
        values: list[ReturnValueRow] = []
        for start, returned in parts(draft.values) if draft.values else ():
            if start:
                yield
            values += [self._rows.value(value) for value in returned]
        return Cooperation(
            messages=messages,
            events=events,
            values=values,
            seen=list(draft.seen),
            registry_version=draft.registry_version if draft.messages or draft.late else None,
        )

    def _events(self, rows: Sequence[MessageEvent], now: int, start: int, last: str) -> list[MessageEventRow]:
        """Return rows with ids. Rows of one commit have consecutive ids, because making a new id takes longer.

        `start` is the number of earlier rows in the commit, and `last` is the id of the last of them.
        """
        if len(rows) == 1 and not start:
            return [self._rows.event(rows[0], self._ids(now))]
        found: list[MessageEventRow] = []
        for number, row in enumerate(rows, start):
            first = self._ids(now) if number % _IDS_IN_A_ROW == 0 else last
            last = f"{first[:-3]}{number % _IDS_IN_A_ROW:03x}" if len(first) == _UUID_CHARS else self._ids(now)
            found.append(self._rows.event(row, last))
        return found

    def outcome(self, draft: Draft) -> Outcome | None:
        """Return the outcome of a run that ends, or None for a run that goes on."""
        if draft.state is None:
            return None
        if draft.state is State.COMMITTED:
            return Outcome(output=self._codec.encode("null"))
        failure = draft.failure or Failure(type="unknown", message="it gave no reason")
        return Outcome(failure=self._rows.outcome_failure(failure))
