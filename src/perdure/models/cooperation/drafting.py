"""What a run is about to write: its moves that need no code one after the other, as one commit; what code came to; and
emissions, with a run for every handler that is expected."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.errors import PerdureError
from perdure.kernel import ops
from perdure.kernel.cooperating import CALLED
from perdure.kernel.cooperation import Cooperation, MessageEventRow, origin_of
from perdure.kernel.records import Outcome
from perdure.kernel.status import Status
from perdure.models.cooperation.book import Book
from perdure.models.cooperation.context import EMPTY, HAPPY_DEADLINE
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.emitting import Emitting, emit
from perdure.models.cooperation.events import EventType, Message, MessageEvent, State
from perdure.models.cooperation.failures import DISMISSED, Failure, gave_up, parent_said_so
from perdure.models.cooperation.live import Code, Draft, LiveOperation, News, wakes_of
from perdure.models.cooperation.moves import (
    BeginRollback,
    Block,
    Child,
    Dismiss,
    Finish,
    Handle,
    Invoke,
    Move,
    NewRun,
    Note,
    Nothing,
    OperationRun,
    Refuse,
    Take,
    TellChildren,
    Undo,
    Wait,
    Writes,
)
from perdure.models.cooperation.moves import Outcome as StepOutcome
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.requests import dismiss, join
from perdure.models.cooperation.rows import RowCodec, outcome_failure
from perdure.models.cooperation.rules import after, heeded, next_move, refusal
from perdure.models.cooperation.scope import Call, Emission
from perdure.ports import Codec, Ids

_decode_news: Final = msgspec.json.Decoder(News).decode

_UUID_CHARS: Final = 36
_IDS_IN_A_ROW: Final = 16**3

_STATUSES: Final = {
    State.COMMITTED: Status.SUCCEEDED,
    State.ROLLED_BACK: Status.ROLLED_BACK,
    State.ROLLBACK_FAILED: Status.ROLLBACK_FAILED,
}


class Blocked(PerdureError):
    """The code does not fit the rows."""

    reason: str


class Drafting:
    """Applies the rules. Nothing is remembered here."""

    def __init__(
        self,
        *,
        operations: Mapping[str, Operation[Any]],
        book: Book,
        rows: RowCodec,
        codec: Codec,
        ids: Ids,
        now: Callable[[], int],
    ) -> None:
        self._operations = operations
        self._book = book
        self._rows = rows
        self._codec = codec
        self._ids = ids
        self._now = now

    # What comes next.

    def go_on(self, live: LiveOperation, draft: Draft) -> Draft:
        """All that comes next and needs no code; then the code, or what is waited for. Raises Blocked."""
        if draft.messages:
            live.wakes |= wakes_of(draft.messages)
        try:
            folding = live.folded()
            while True:
                now = self._now()
                move = next_move(live.plan, live.view(now, draft.children), folding.progress())
                if move.rows:
                    self._add(live, draft, move.rows)
                if self._is_over(live, draft, move, now):
                    return draft
        except Mismatch as error:
            raise Blocked(f"the code does not fit the rows: {error}", reason=str(error)) from error

    @staticmethod
    def _add(live: LiveOperation, draft: Draft, rows: tuple[MessageEvent, ...]) -> None:
        folding = live.folded()
        draft.rows += rows
        for row in rows:
            if row.cooperation_lineage == live.lineage:
                draft.own.append(row)
                folding.add(row)

    def _is_over(self, live: LiveOperation, draft: Draft, move: Move, now: int) -> bool:
        """Take in one move; whether it is the last of this commit."""
        match move:  # Those first that come most often.
            case Invoke() | Handle() | Undo():
                if draft.status is not Status.ROLLING_BACK:
                    draft.status = Status.RUNNING
                draft.code = move
                return True
            case Finish():
                self._finish(live, draft, move.state, move.failure)
                return True
            case Wait():
                draft.tells += tuple(self._stopping(live, draft, move, now))
                self._join(live, draft, now)
                self._suspend(draft, move.until)
                return True
            case Take():
                draft.status = Status.RUNNING
                self._see(draft, live.operation)
            case Refuse():
                self._finish(live, draft, State.ROLLED_BACK, move.failure)
                return True
            case BeginRollback():
                draft.status = Status.ROLLING_BACK
            case Note():
                pass
            case TellChildren():
                draft.tells += tuple(self._undoing(live, draft, move, now))
            case Dismiss():
                draft.tells += tuple(self._dismissal(live, draft, child, now) for child in move.children)
                self._suspend(draft, None)
                return True
            case Block():
                raise Blocked(f"the code does not fit the rows: {move.reason}", reason=move.reason)
            case Nothing():
                return True
            case _:
                raise AssertionError(move)
        return False

    @staticmethod
    def _suspend(draft: Draft, until: int | None) -> None:
        if draft.status is not Status.ROLLING_BACK:
            draft.status = Status.SUSPENDED
        draft.until = until

    def _finish(self, live: LiveOperation, draft: Draft, state: State, failure: Failure | None) -> None:
        draft.state = state
        draft.failure = failure
        draft.status = _STATUSES[state]
        if len(live.lineage) > 2:
            own = tuple(value for value in (*live.values, *draft.values) if value.lineage == live.lineage)
            values = own if state is State.COMMITTED else ()
            about = self.write_news(News(live.id, state, failure, values))
            draft.tells += (ops.Tell(run_id=live.lineage[-2], at=self._now(), kind="news", about=about),)

    # What code came to.

    def land(self, live: LiveOperation, code: Code, outcome: StepOutcome, draft: Draft) -> Draft:
        """What code came to, and all that comes next and needs none. Raises Blocked."""
        now = self._now()
        emitting = Emitting(handlers=self._book.topics, ids=self._fresh_ids(), now=now)
        writes = after(live.plan, live.view(now), code, outcome, emitting, live.progress)
        self._add(live, draft, writes.rows)
        self._take_in(draft, writes, now, live)
        last = writes.rows[-1]
        if last.type is EventType.ROLLING_BACK:
            draft.status = Status.ROLLING_BACK
        elif last.type is EventType.ROLLBACK_FAILED:
            self._finish(live, draft, State.ROLLBACK_FAILED, last.exception)
            return draft
        return self.go_on(live, draft)

    def emitted(self, emission: Emission, *, handled: bool = True) -> Draft:
        """A message from outside, perhaps one that nobody is to handle."""
        draft = Draft(Status.CREATED)
        now = self._now()
        handlers = self._book.topics if handled else {}
        writes = emit((emission,), emitting=Emitting(handlers=handlers, ids=self._fresh_ids(), now=now))
        draft.rows += writes.rows
        self._take_in(draft, writes, now, None)
        return draft

    def _fresh_ids(self) -> Iterator[str]:
        while True:
            yield self._ids(self._now())

    def _take_in(self, draft: Draft, writes: Writes, now: int, live: LiveOperation | None) -> None:
        """What is written beside rows: messages, with a run for each handler, and values."""
        draft.values += writes.values
        if not writes.messages:
            return
        draft.messages += writes.messages
        origins = {row.message_id: row for row in writes.rows if row.type is EventType.EMITTED}
        messages = {message.id: message for message in writes.messages}
        children: list[Child] = []
        begun: list[LiveOperation] = []
        for run in writes.runs:
            origin = origins[run.message_id]
            began = None if run.is_call else self._begun(draft, run, origin, messages[run.message_id], now)
            if began is not None:
                begun.append(began)
            if live is not None and origin.cooperation_lineage == live.lineage:
                child = Child(
                    message_id=run.message_id,
                    handler=run.handler,
                    lineage=run.lineage,
                    state=State.CREATED if began is None and not run.is_call else State.ACTIVE,
                    is_call=run.is_call,
                )
                children.append(child)
        draft.runs += writes.runs
        draft.began += tuple(begun)
        draft.children += tuple(children)

    def _begun(
        self, draft: Draft, run: NewRun, origin: MessageEvent, message: Message, now: int
    ) -> LiveOperation | None:
        """Take a new run at once, if its code is here: SEEN is written with EMITTED."""
        operation = self._operations.get(run.handler)
        if operation is None or operation.topic.name != message.topic:
            return None
        seen = MessageEvent(
            seq=1,
            message_id=run.message_id,
            type=EventType.SEEN,
            coroutine_name=run.handler,
            coroutine_identifier=run.id,
            cooperation_lineage=run.lineage,
            created_at=now,
            context=origin.context,
        )
        try:
            began = LiveOperation(
                operation=operation, lineage=run.lineage, claim=1, origin=origin, payload=message.payload, events=[seen]
            )
        except PerdureError:
            return None  # It does not fit this operation's type: that shows when it is read.
        draft.rows.append(seen)
        self._see(draft, operation)
        return began

    def _see(self, draft: Draft, operation: Operation[Any]) -> None:
        pair = (operation.topic.name, operation.name)
        if not self._book.is_seen(*pair) and pair not in draft.seen:
            draft.seen += (pair,)

    # Word to others.

    def _undoing(self, live: LiveOperation, draft: Draft, move: TellChildren, now: int) -> list[ops.Tell]:
        """Have the children of a step instance undone, or never begin."""
        told = {row.message_id: row for row in draft.rows if row.type is EventType.ROLLBACK_EMITTED}
        found: list[ops.Tell] = []
        for child in (*live.children.values(), *draft.children):
            if child.message_id not in move.messages or child.state in (
                State.ROLLED_BACK,
                State.ROLLBACK_FAILED,
                State.DISMISSED,
            ):
                continue
            found.append(self.undoing(child, self._view_of(live, draft, child, told[child.message_id], now), now))
        return found

    def undoing(self, child: Child, view: OperationRun, now: int) -> ops.Tell:
        """Word for a run that what it did is to be undone; if it has not begun, the rows of one that never does."""
        run_id, parent_id = child.lineage[-1], child.lineage[-2]
        if child.state is not State.CREATED and not child.is_call:
            return ops.Tell(run_id=run_id, at=now, kind="undo", parent_id=parent_id)
        told = view.told
        failure = parent_said_so(None if told is None else told.exception, view.source)
        if told is not None and told.coroutine_name is None and told.exception is not None:
            failure = told.exception
        if child.is_call:
            stored = outcome_failure(failure)
            return ops.Tell(run_id=run_id, at=now, kind="undo", failure=stored, parent_id=parent_id)
        return ops.Tell(
            run_id=run_id,
            at=now,
            kind="undo",
            refusal=self.refused(view, failure, now),
            failure=outcome_failure(failure),
            answer=self.write_news(News(run_id, State.ROLLED_BACK, failure)),
            parent_id=parent_id,
        )

    def _join(self, live: LiveOperation, draft: Draft, now: int) -> None:
        """Runs for those who have registered since, if what they handle is still waited for."""
        progress = live.progress
        window = progress.window
        if window is None or draft.messages:
            return  # Whoever emits now goes by the book as it is.
        view = live.view(now)
        there = {(child.message_id, child.handler) for child in view.children}
        for message_id in window.emitted:
            topic = live.topics.get(message_id, "")
            if topic not in self._book.topics:
                continue
            for handler in sorted(live.plan.strategy.joins(topic, self._book.topics[topic])):
                if (message_id, handler) in there:
                    continue
                run = join(live.plan, view, message_id, handler, self._ids(now), progress)
                if run is not None:
                    draft.runs += (run,)
                    draft.late[message_id] = topic
                    child = Child(message_id=message_id, handler=handler, lineage=run.lineage, state=State.CREATED)
                    draft.children += (child,)

    def _stopping(self, live: LiveOperation, draft: Draft, move: Wait, now: int) -> list[ops.Tell]:
        """A run that gives up, and waits for what it has called, has that stopped. Those who handle its messages see
        for themselves."""
        called = [one for one in move.children if one.is_call and one.lineage[-1] not in live.stopped]
        if not called:
            return []
        view, progress = live.view(now), live.progress
        found = heeded(live.plan, view, progress.context, rolling_back=progress.rollback is not None)
        if not found:
            return []
        failure = outcome_failure(gave_up(found, view.source))
        draft.stopped += [one.lineage[-1] for one in called]
        return [
            ops.Tell(run_id=one.lineage[-1], at=now, kind="stop", failure=failure, parent_id=live.id) for one in called
        ]

    def refused(self, view: OperationRun, failure: Failure, now: int) -> Cooperation:
        rows = refusal(view, failure)
        stamped = [replace(row, id=self._ids(now), created_at=now) for row in rows]
        return Cooperation(events=[self._rows.event(row) for row in stamped])

    @staticmethod
    def _view_of(live: LiveOperation, draft: Draft, child: Child, told: MessageEvent | None, now: int) -> OperationRun:
        """A child that has not begun, as the rules see it."""
        rows = (*live.events, *draft.rows)
        origin = next(row for row in rows if row.type is EventType.EMITTED and row.message_id == child.message_id)
        return OperationRun(lineage=child.lineage, handler=child.handler, origin=origin, told=told, now=now)

    def _dismissal(self, live: LiveOperation, draft: Draft, child: Child, now: int) -> ops.Settle:
        rows = dismiss(self._view_of(live, draft, child, None, now))
        stamped = [replace(row, id=self._ids(now), created_at=now) for row in rows]
        failure = rows[0].exception or Failure(type=DISMISSED, message="")
        return ops.Settle(
            run_id=child.lineage[-1],
            at=now,
            status=Status.CANCELLED,
            added=Cooperation(events=[self._rows.event(row) for row in stamped]),
            outcome=Outcome(failure=outcome_failure(failure)),
            answer=self.write_news(News(child.lineage[-1], State.DISMISSED)),
            otherwise=self.write_news(News(child.lineage[-1], State.ACTIVE)),
            parent_id=live.id,
        )

    def write_news(self, news: News) -> str:
        return self._codec.encode(msgspec.json.encode(news).decode())

    def read_news(self, about: str) -> News:
        return _decode_news(self._codec.decode(about))

    # As ops have it.

    def added(self, draft: Draft, now: int) -> Cooperation:
        """The rows. Who emits goes by the book."""
        return Cooperation(
            messages=[self._rows.message(message, now) for message in draft.messages],
            events=self._events(draft.rows, now),
            values=[self._rows.value(value) for value in draft.values],
            seen=list(draft.seen),
            book=self._book.version if draft.messages or draft.late else None,
        )

    def _events(self, rows: Sequence[MessageEvent], now: int) -> list[MessageEventRow]:
        """Rows that are written together have ids that follow each other: to make one from nothing takes longer."""
        if len(rows) == 1:
            return [self._rows.event(rows[0], self._ids(now))]
        found: list[MessageEventRow] = []
        for number, row in enumerate(rows):
            first = self._ids(now) if number % _IDS_IN_A_ROW == 0 else found[-1].id
            id = f"{first[:-3]}{number % _IDS_IN_A_ROW:03x}" if len(first) == _UUID_CHARS else self._ids(now)
            found.append(self._rows.event(row, id))
        return found

    def starts(self, draft: Draft, tags: Mapping[str, str], now: int) -> tuple[ops.Start, ...]:
        """The new runs."""
        if not draft.runs:
            return ()
        here = {began.id for began in draft.began}
        topics = {message.id: message.topic for message in draft.messages} | draft.late
        calls = tuple(self._call(draft, run, run.call, tags, now) for run in draft.runs if run.call is not None)
        return calls + tuple(
            ops.Start(
                run_id=run.id,
                at=now,
                workflow=run.handler,
                model="operation",
                input=self._codec.encode(
                    msgspec.json.encode({"topic": topics[run.message_id], "message": run.message_id}).decode()
                ),
                tags=tags,
                parent_id=run.lineage[-2],
                bond="awaited",
                origin=origin_of(run.message_id, run.lineage),
                fresh=True,
                admit=run.id in here or (run.message_id in draft.late and run.handler in self._operations),
            )
            for run in draft.runs
            if run.call is None
        )

    def _call(self, draft: Draft, run: NewRun, call: Call, tags: Mapping[str, str], now: int) -> ops.Start:
        origin = next(row for row in draft.rows if row.type is EventType.EMITTED and row.message_id == run.message_id)
        deadline = (origin.context or EMPTY).get(HAPPY_DEADLINE)
        return ops.Start(
            run_id=run.id,
            at=now,
            workflow=call.workflow,
            workflow_version=call.version,
            model=call.model,
            input=self._codec.encode(call.input),
            tags=tags,
            deadline=None if deadline is None else deadline.at,
            parent_id=run.lineage[-2],
            bond=CALLED,
            origin=origin_of(run.message_id, run.lineage),
            fresh=True,
        )

    def outcome(self, draft: Draft) -> Outcome | None:
        """What a run that ends leaves."""
        if draft.state is None:
            return None
        if draft.state is State.COMMITTED:
            return Outcome(output=self._codec.encode("null"))
        failure = draft.failure or Failure(type="unknown", message="it gave no reason")
        return Outcome(failure=outcome_failure(failure))
