"""What a run is about to write: its moves that need no code one after the other, as one commit; what code came to; and
emissions, with a run for every handler that is expected.

A step may have many thousands of children, and all that is written of them is one commit. So a draft is made in pieces:
others have their turn between them, and the run's state must not change until the draft is complete."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from perdure.errors import PerdureError
from perdure.kernel import ops
from perdure.kernel.cooperation import (
    APART_TAG,
    Cooperation,
    MessageEventRow,
    MessageRow,
    ReturnValueRow,
    origin_of,
    without_token_tags,
)
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.records import Outcome
from perdure.kernel.rules.operations import ASK, CALLED
from perdure.kernel.status import Status
from perdure.models.cooperation.causes import KnownFailures
from perdure.models.cooperation.children import Child
from perdure.models.cooperation.context import CancellationToken, begun, deadline_in, token_names
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.emissions import Emitting, emit, given_tokens
from perdure.models.cooperation.events import EventType, Message, MessageEvent, State
from perdure.models.cooperation.failures import (
    DEADLINE_MISSED,
    DISMISSED,
    Failure,
    as_stored,
    gave_up,
    parent_said_so,
    placed,
)
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.live import Code, Draft, LiveOperation, News, wakes_of
from perdure.models.cooperation.moves import (
    Ask,
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
from perdure.models.cooperation.requests import dismiss, late_run, may_be_joined
from perdure.models.cooperation.rows import RowCodec, outcome_failure
from perdure.models.cooperation.rules import after_in_pieces, heeded, next_move, refusal
from perdure.models.cooperation.scope import Call, Emission
from perdure.models.cooperation.strategies import Strategy
from perdure.models.cooperation.versions import Operations
from perdure.ports import Codec, Ids

_decode_news: Final = msgspec.json.Decoder(News).decode
_decode_ask: Final = msgspec.json.Decoder(Ask).decode

GIVEN: Final = "given"  # the value of the tag of a run that was given a token

_USUAL: Final = Strategy()
_UUID_CHARS: Final = 36
_REFUSED_AT: Final = 2  # the number of the row that says why a run never began
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
    """Applies the rules. Nothing is remembered here, but failures that were stored a moment ago."""

    def __init__(
        self,
        *,
        operations: Operations,
        book: HandlerRegistry,
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
        self.failures = KnownFailures()

    # What comes next.

    def go_on(self, live: LiveOperation, draft: Draft, now: int) -> Pieces[Draft]:
        """All that comes next and needs no code; then the code, or what is waited for. Raises Blocked."""
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
        """Take in one move; whether it is the last of this commit."""
        match move:  # Those first that come most often.
            case Invoke() | Handle() | Undo():
                if draft.status is not Status.ROLLING_BACK:
                    draft.status = Status.RUNNING
                draft.code = move
                return True
            case Finish():
                yield from self._finish(live, draft, move.state, move.failure, now)
                return True
            case Wait():
                draft.tells += tuple(self._stopping(live, draft, now))
                yield from self._join(live, draft, now)
                self._suspend(draft, move.until)
                return True
            case Take():
                draft.status = Status.RUNNING
                self._see(draft, live.operation)
            case Refuse():
                yield from self._finish(live, draft, State.ROLLED_BACK, move.failure, now)
                return True
            case BeginRollback():
                draft.status = Status.ROLLING_BACK
            case Note():
                pass
            case TellChildren():
                draft.tells += yield from self._undoing(live, draft, move, now)
            case Dismiss():
                draft.tells += yield from self._dismissing(live, draft, move, now)
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

    def _finish(
        self, live: LiveOperation, draft: Draft, state: State, failure: Failure | None, now: int
    ) -> Pieces[None]:
        draft.state = state
        draft.failure = failure
        draft.status = _STATUSES[state]
        if state is State.ROLLBACK_FAILED:
            draft.tells += yield from self._abandoning(live, draft, failure, now)
        if len(live.lineage) > 2:
            own = tuple(value for value in (*live.values.values(), *draft.values) if value.lineage == live.lineage)
            values = own if state is State.COMMITTED else ()
            about = self.write_news(News(live.id, state, failure, values))
            draft.tells += (ops.Tell(run_id=live.lineage[-2], at=now, kind="news", about=about),)

    # What code came to.

    def land(self, live: LiveOperation, code: Code, outcome: StepOutcome, draft: Draft, now: int) -> Pieces[Draft]:
        """What code came to, and all that comes next and needs none. Raises Blocked."""
        draft.book = self._book.version
        emitting = Emitting(handlers=self._book.topics, ids=self._fresh_ids(now), now=now)
        if live.folding is None:
            yield from live.folded_in_pieces()
        writes = yield from after_in_pieces(live.plan, live.view(now), code, outcome, emitting, live.progress)
        yield from self._add(live, draft, writes.rows)
        yield from self._take_in(draft, writes, now, live)
        last = writes.rows[-1]
        if last.type is EventType.ROLLING_BACK:
            draft.status = Status.ROLLING_BACK
        elif last.type is EventType.ROLLBACK_FAILED:
            yield from self._finish(live, draft, State.ROLLBACK_FAILED, last.exception, now)
            return draft
        return (yield from self.go_on(live, draft, now))

    def emitted(self, emission: Emission, *, handled: bool = True, begins: bool = True) -> Draft:
        """A message from outside, perhaps one that nobody is to handle, or whose runs nobody is to take yet."""
        draft = Draft(Status.CREATED)
        now = self._now()
        draft.book = self._book.version
        handlers = self._book.topics if handled else {}
        writes = emit((emission,), emitting=Emitting(handlers=handlers, ids=self._fresh_ids(now), now=now))
        draft.rows += writes.rows
        if begins:
            at_once(self._take_in(draft, writes, now, None))
        else:
            draft.messages, draft.runs = writes.messages, writes.runs
        return draft

    def _fresh_ids(self, now: int) -> Iterator[str]:
        while True:
            yield self._ids(now)

    def _take_in(self, draft: Draft, writes: Writes, now: int, live: LiveOperation | None) -> Pieces[None]:
        """What is written beside rows: messages, with a run for each handler, and values."""
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
                    children.append(_new_child(run, State.ACTIVE if is_begun else State.CREATED))
            if live is not None:
                live.children.draft(children)
        draft.runs += writes.runs
        draft.began += tuple(begun)

    def _begun(
        self, draft: Draft, run: NewRun, origin: MessageEvent, message: Message, now: int
    ) -> LiveOperation | None:
        """Take a new run at once, if its code is here: SEEN is written with EMITTED."""
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
            return None  # It does not fit this operation's type: that shows when it is read.
        draft.rows.append(seen)
        self._see(draft, operation)
        return began

    def _see(self, draft: Draft, operation: Operation[Any]) -> None:
        pair = (operation.topic.name, operation.name)
        if not self._book.is_seen(*pair) and pair not in draft.seen:
            draft.seen += (pair,)

    # Word to others.

    def _undoing(self, live: LiveOperation, draft: Draft, move: TellChildren, now: int) -> Pieces[tuple[ops.Tell, ...]]:
        """Have the children of a step instance undone, or never begin."""
        told = {row.message_id: row for row in draft.rows if row.type is EventType.ROLLBACK_EMITTED}
        origins = yield from _origins(live, draft)
        found: list[ops.Tell] = []
        cause = next((row.exception for row in told.values()), None)
        call_failure = outcome_failure(parent_said_so(cause, live.source))
        for start, part in parts(move.messages):
            if start:
                yield
            for child in live.children.of(part):
                if child.state in (State.ROLLED_BACK, State.ROLLBACK_FAILED, State.DISMISSED):
                    continue
                view = _view_of(child, origins[child.message_id], told[child.message_id], now)
                found.append(self.undoing(child, view, now, call_failure))
        return tuple(found)

    def undoing(self, child: Child, view: OperationRun, now: int, call_failure: str) -> ops.Tell:
        """Word for a run that what it did is to be undone; if it has not begun, the rows of one that never does. What
        it has called, and has not ended, ends with `call_failure`."""
        run_id, parent_id = child.lineage[-1], child.lineage[-2]
        if child.state is not State.CREATED and not child.is_call:
            by = None if view.told is None else deadline_in(view.told.context, rolling_back=True)
            return ops.Tell(
                run_id=run_id, at=now, kind="undo", parent_id=parent_id, undone_by=by or 0, call_failure=call_failure
            )
        told = view.told
        failure = parent_said_so(None if told is None else told.exception, view.source)
        if told is not None and told.coroutine_name is None and told.exception is not None:
            failure = told.exception
        if child.is_call:
            stored = outcome_failure(failure)
            return ops.Tell(run_id=run_id, at=now, kind="undo", failure=stored, parent_id=parent_id)
        return self._refusing(child, view, failure, "undo", now)

    def _refusing(self, child: Child, view: OperationRun, failure: Failure, kind: str, now: int) -> ops.Tell:
        """Word for a run that it is never to begin."""
        failure = placed(failure, child.id, _REFUSED_AT)
        return ops.Tell(
            run_id=child.id,
            at=now,
            kind=kind,
            refusal=self.refused(view, failure, now),
            failure=outcome_failure(failure),
            answer=self.write_news(News(child.id, State.ROLLED_BACK, failure)),
            parent_id=child.lineage[-2],
        )

    def _abandoning(
        self, live: LiveOperation, draft: Draft, failure: Failure | None, now: int
    ) -> Pieces[tuple[ops.Tell, ...]]:
        """Have children that nobody has taken never begin: their emitter ends without a rollback that would reach them.
        Those that are taken meanwhile see for themselves."""
        missing = [child for child in live.children if child.state is State.CREATED and not child.is_call]
        if not missing:
            return ()
        origins = yield from _origins(live, draft)
        found: list[ops.Tell] = []
        for start, part in parts(missing):
            if start:
                yield
            for child in part:
                view = _view_of(child, origins[child.message_id], None, now)
                found.append(self._refusing(child, view, parent_said_so(failure, view.source), ASK, now))
        return tuple(found)

    def _join(self, live: LiveOperation, draft: Draft, now: int) -> Pieces[None]:
        """Runs for those who have registered since, if what they handle is still waited for."""
        progress = live.progress
        window = progress.window
        if window is None or draft.messages:
            return  # Whoever emits now goes by the book as it is.
        draft.book, topics = self._book.version, self._book.topics
        if live.joined is not None and live.joined[0] is window and live.joined[1] == draft.book:
            return
        live.joined = (window, draft.book)
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
            live.children.draft(_new_child(run, State.CREATED) for run in runs)

    @staticmethod
    def _with_tokens(live: LiveOperation, draft: Draft, runs: Sequence[NewRun]) -> Pieces[tuple[NewRun, ...]]:
        """Late runs, with the tokens that their messages were given when they were emitted."""
        origins = yield from _origins(live, draft)
        inherited = token_names(live.origin.context)
        found: list[NewRun] = []
        for start, part in parts(runs):
            if start:
                yield
            found += [replace(run, tokens=given_tokens(origins[run.message_id].context, inherited)) for run in part]
        return tuple(found)

    def _stopping(self, live: LiveOperation, draft: Draft, now: int) -> list[ops.Tell]:
        """A run that gives up, and waits for what it has called, has that stopped, once. Those who handle its messages
        see for themselves."""
        view, progress = live.view(now), live.progress
        found = heeded(live.plan, view, progress.context, rolling_back=progress.rollback is not None)
        window = progress.window
        if not found or window is None or live.stopped is window:
            return []
        outstanding = live.children.outstanding(window)
        called = [one for one in (*outstanding.busy, *outstanding.missing) if one.is_call]
        failure = outcome_failure(gave_up(found, view.source))
        draft.stopped = window
        tells = [ops.Tell(run_id=one.id, at=now, kind="stop", failure=failure, parent_id=live.id) for one in called]
        if any(reason.type == DEADLINE_MISSED for reason in found):
            # A cancellation reaches them by itself. A deadline they see for themselves, unless they are held.
            by = None if progress.rollback is None else deadline_in(progress.context, rolling_back=True)
            busy = [one for one in outstanding.busy if not one.is_call]
            tells += [ops.Tell(run_id=one.id, at=now, kind=ASK, undone_by=by or 0) for one in busy]
        return tells

    def _dismissing(self, live: LiveOperation, draft: Draft, move: Dismiss, now: int) -> Pieces[tuple[ops.Settle, ...]]:
        """Have children that nobody has taken never begin. Each is told once, and what it answers is news."""
        window = live.progress.window
        if live.dismissed is window:
            return ()
        draft.dismissed = window
        origins = yield from _origins(live, draft)
        found: list[ops.Settle] = []
        for start, part in parts([*move.children]):
            if start:
                yield
            for child in part:
                view = _view_of(child, origins[child.message_id], None, now)
                found.append(self._dismissal(live, child, view, now))
        return tuple(found)

    def refused(self, view: OperationRun, failure: Failure, now: int) -> Cooperation:
        rows = refusal(view, failure)
        stamped = [replace(row, id=self._ids(now), created_at=now) for row in rows]
        return Cooperation(events=[self._rows.event(row) for row in stamped])

    def _dismissal(self, live: LiveOperation, child: Child, view: OperationRun, now: int) -> ops.Settle:
        rows = dismiss(view)
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
        """With a reference to the failure: the child's row has it."""
        if news.failure is not None:
            news = replace(news, failure=as_stored(news.failure))
        return self._codec.encode(msgspec.json.encode(news).decode())

    def read_news(self, about: str) -> News:
        """With the failure as far as this process knows it."""
        news = _decode_news(self._codec.decode(about))
        return news if news.failure is None else replace(news, failure=self.failures.known(news.failure))

    def write_ask(self, ask: Ask) -> str:
        return self._codec.encode(msgspec.json.encode(replace(ask, failure=as_stored(ask.failure))).decode())

    def read_ask(self, about: str) -> Ask:
        return _decode_ask(self._codec.decode(about))

    # As ops have it.

    def added(self, draft: Draft, now: int) -> Pieces[Cooperation]:
        """The rows. Who emits goes by the book."""
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
            book=draft.book if draft.messages or draft.late else None,
        )

    def _events(self, rows: Sequence[MessageEvent], now: int, start: int, last: str) -> list[MessageEventRow]:
        """Rows that are written together have ids that follow each other: to make one from nothing takes longer.

        `start` rows came before these, and the id of the last of them is `last`.
        """
        if len(rows) == 1 and not start:
            return [self._rows.event(rows[0], self._ids(now))]
        found: list[MessageEventRow] = []
        for number, row in enumerate(rows, start):
            first = self._ids(now) if number % _IDS_IN_A_ROW == 0 else last
            last = f"{first[:-3]}{number % _IDS_IN_A_ROW:03x}" if len(first) == _UUID_CHARS else self._ids(now)
            found.append(self._rows.event(row, last))
        return found

    def starts(
        self, draft: Draft, tags: Mapping[str, str], now: int, strategy: Strategy = _USUAL
    ) -> Pieces[tuple[ops.Start, ...]]:
        """The new runs, those of calls first."""
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
        """`operation` is the code, if it is here."""
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

    def members(self, draft: Draft, now: int) -> Pieces[tuple[ops.TellMembers, ...]]:
        """For the tokens of new runs that no engine takes with this commit: they may be cancelled already, and the runs
        are to end even if the service that handles them is down."""
        here = {began.id for began in draft.began}
        names: dict[str, None] = {}
        for start, part in parts(draft.runs):
            if start:
                yield
            names |= dict.fromkeys(name for run in part if run.tokens and run.id not in here for name in run.tokens)
        return tuple(ops.TellMembers(run_id=CancellationToken(name).scope, at=now, token=name) for name in names)

    def _call(
        self, origin: MessageEvent, run: NewRun, call: Call, tags: Mapping[str, str], strategy: Strategy, now: int
    ) -> ops.Start:
        if type(strategy).heeds is not Strategy.heeds:
            tags = {**tags, APART_TAG: "true"}  # Only its caller can tell which reasons to give up count.
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

    def outcome(self, draft: Draft) -> Outcome | None:
        """What a run that ends leaves."""
        if draft.state is None:
            return None
        if draft.state is State.COMMITTED:
            return Outcome(output=self._codec.encode("null"))
        failure = draft.failure or Failure(type="unknown", message="it gave no reason")
        return Outcome(failure=outcome_failure(failure))


def _tags_of(run: NewRun) -> dict[str, str]:
    """By which a run is found when a token that it was given is cancelled."""
    return {CancellationToken(name).tag: GIVEN for name in run.tokens}


def _origins(live: LiveOperation, draft: Draft) -> Pieces[Mapping[str, MessageEvent]]:
    """What a run has emitted, and emits now, by message."""
    known = yield from live.emissions()
    found: dict[str, MessageEvent] = {}
    for start, part in parts(draft.rows):
        if start:
            yield
        found |= {row.message_id: row for row in part if row.type is EventType.EMITTED}
    return ChainMap(found, known)


def _new_child(run: NewRun, state: State) -> Child:
    return Child(message_id=run.message_id, handler=run.handler, lineage=run.lineage, state=state, is_call=run.is_call)


def _view_of(child: Child, origin: MessageEvent, told: MessageEvent | None, now: int) -> OperationRun:
    """A child that has not begun, as the rules see it."""
    return OperationRun(lineage=child.lineage, handler=child.handler, origin=origin, told=told, now=now)
