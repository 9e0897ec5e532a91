"""A tiny synchronous world: rows, runs, and hands that carry out what the rules say, in an order drawn by lot.

Nothing is remembered between two commits but what is in flight; a crash drops that too. Rows are kept as JSON, so that
what cannot be stored shows. After every commit the rows are checked, and the rules are compared with the rows' own
readiness. What steps do is noted with `did`, and counts once the step is committed.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from perdure.kernel.lineages import Lineage, covers
from perdure.models.cooperation.cancellation import cancel, reasons
from perdure.models.cooperation.causes import resolved
from perdure.models.cooperation.context import EMPTY, Context
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.emissions import Emitting, emit
from perdure.models.cooperation.failures import Failure, to_failure
from perdure.models.cooperation.machine import after, next_move
from perdure.models.cooperation.message_events import (
    EventType,
    Message,
    MessageEvent,
    State,
    check_rows,
    stamped,
    state_of,
)
from perdure.models.cooperation.missing_handlers import complete, complete_rollback, dismiss, fail, join
from perdure.models.cooperation.moves import (
    Dismiss,
    Handle,
    Invoke,
    Move,
    NewRun,
    Nothing,
    OperationRun,
    Outcome,
    Raised,
    Returned,
    Undo,
    Wait,
    Writes,
)
from perdure.models.cooperation.return_values import Returns, ReturnValue, readable
from perdure.models.cooperation.rollback import roll_back
from perdure.models.cooperation.scope import Emission, Scope
from perdure.models.cooperation.stored_hierarchy import Hierarchy
from perdure.models.cooperation.strategies import Handlers
from perdure.models.cooperation.topics import Topic
from perdure.testing.ready_runs import ready

COMMITS_MAX = 5_000
_decode = msgspec.json.Decoder(MessageEvent).decode
SECOND = 1_000_000


class Seen:
    """What tests see of a world."""

    messages: list[Message]
    events: list[MessageEvent]  # as they were read back, in the order of commits
    runs: list[NewRun]
    values: list[ReturnValue]
    log: list[str]  # what was done and committed
    trouble: list[str]  # what was done in steps that a crash or a failure took back
    commits: int

    def hierarchy(self) -> Hierarchy:
        return Hierarchy(self.messages, self.events, self.runs, self.values)

    def run_of(self, handler: str, number: int = 0) -> NewRun:
        return [one for one in self.runs if one.handler == handler][number]

    def rows_of(self, handler: str, number: int = 0) -> list[MessageEvent]:
        return list(self.hierarchy().own(self.run_of(handler, number).lineage))

    def state(self, handler: str, number: int = 0) -> State:
        return self.state_at(self.run_of(handler, number).lineage)

    def state_at(self, lineage: Lineage) -> State:
        return state_of(self.hierarchy().own(lineage))

    def states(self) -> dict[str, State]:
        return {one.handler: self.state_at(one.lineage) for one in self.runs}

    def failure(self, handler: str, number: int = 0) -> Failure:
        rows = self.rows_of(handler, number)
        found = [row.exception for row in rows if row.type in (EventType.ROLLBACK_FAILED, EventType.ROLLING_BACK)]
        assert found[-1] is not None
        stored = [row.exception for row in self.events if row.exception is not None and not row.exception.cut]
        return resolved(found[-1], {one.place: one for one in stored})

    def sequence(self) -> list[tuple[str, str | None, str | None]]:
        """Type, step and operation of every row, in the order of commits."""
        return [(str(row.type), row.step, row.coroutine_name) for row in self.events]


class World(Seen):
    """`seed` draws the order of runs; without one the oldest run that can do something goes first.

    `crash_at` is the number of the commit at which everything in memory is lost: just before it, or just after it with
    `crash_after`. `stamp` says what time a commit is stamped with; `late` has news reach runs late. While it is
    `frozen`, no time passes.
    """

    def __new__(cls, *operations: Operation[Any], on: str | None = None, **options: Any) -> World:
        """With `on`, a world of which an engine is the heart, on such a store."""
        if on is None:
            return super().__new__(cls)
        from tests.cooperation.engines import EngineWorld

        return EngineWorld(*operations, on=on, **options)  # type: ignore[return-value]

    def __init__(  # pyright: ignore[reportInconsistentConstructor]
        self,
        *operations: Operation[Any],
        on: None = None,
        seed: int | None = None,
        crash_at: int | None = None,
        crash_after: bool = False,
        stamp: Callable[[int, random.Random], int] | None = None,
        late: bool = False,
        frozen: bool = False,
    ) -> None:
        self.lots = random.Random(seed)
        self.drawn = seed is not None
        self.crash_at, self.crash_after = crash_at, crash_after
        self.stamp = stamp or (lambda now, _: now)
        self.late = late
        self.frozen = frozen
        self.now = 1_000 * SECOND
        self.plans = {operation.name: (operation, operation.plan) for operation in operations}
        self.registry: dict[str, set[str]] = defaultdict(set)
        self.retired: dict[str, set[str]] = {}
        for operation in operations:
            self.registry[operation.topic.name].add(operation.name)
        self.down: set[str] = set()  # handlers whose service is not there
        self.messages: list[Message] = []
        self.events: list[MessageEvent] = []  # as they were read back
        self.runs: list[NewRun] = []
        self.values: list[ReturnValue] = []
        self.log: list[str] = []  # what was done and committed
        self.trouble: list[str] = []  # what was done in steps that a crash or a failure took back
        self.commits = 0
        self.on_commit: list[Callable[[World], None]] = []
        self._ids = (f"{number:04}" for number in count(1))
        self._flying: dict[Lineage, tuple[Invoke | Handle | Undo, Outcome, list[str]]] = {}
        self._heard: dict[Lineage, OperationRun] = {}
        self._noted: list[str] = []
        self._read: Hierarchy | None = None  # until the next commit
        self._moves: dict[Lineage, Move] = {}  # until then, or until time passes

    # -- what tests do

    def did(self, what: str) -> None:
        self._noted.append(what)

    def emit(self, topic: Topic[Any], message: Any, context: Context = EMPTY) -> Lineage:
        root = next(self._ids)
        emission = Emission(
            message_id=next(self._ids), topic=topic.name, payload=topic.write(message), context=context, root=root
        )
        self._insist(emit((emission,), emitting=self._emitting()))
        return (root,)

    def run(self) -> World:
        """Until nothing can be done any more, whatever time passes."""
        while self.act() or (not self.frozen and self._pass_time()):
            assert self.commits < COMMITS_MAX, "this does not end"
        return self

    def act(self) -> bool:
        """One run does one thing. False if none can do anything."""
        full = {one.lineage: self.move(one) for one in self.runs if self._has_code(one)}
        able = [one for one in self.runs if one.lineage in full and not isinstance(full[one.lineage], (Wait, Nothing))]
        if not able:
            return False
        one = self.lots.choice(able) if self.drawn else able[0]
        if one.lineage in self._flying:
            self._land(one)
            return True
        view = self.view(one)
        if self.late:
            view = self._heard_of(one, view)
        move = next_move(self.plans[one.handler][1], view)
        if isinstance(move, (Wait, Nothing)):
            return True
        if isinstance(move, (Invoke, Handle, Undo)):
            self._flying[one.lineage] = (move, *self._execute(one, view, move))
            if not self.drawn:
                self._land(one)
        elif isinstance(move, Dismiss):
            for child in move.children:
                run = next(known for known in self.runs if known.lineage == child.lineage)
                self.commit(Writes(rows=dismiss(self.view(run))))
        else:
            self.commit(Writes(rows=move.rows))
        return True

    def cancel(self, lineage: Lineage, reason: str = "no longer wanted") -> bool:
        hierarchy = self.hierarchy()
        messages = {one.lineage: one.message_id for one in self.runs}
        messages |= {(row.cooperation_lineage[0],): row.message_id for row in reversed(self.events)}
        rows = cancel(lineage, hierarchy.own(lineage), messages[lineage], reason=reason, source="test")
        self._insist(Writes(rows=rows))
        return bool(rows)

    def roll_back(self, lineage: Lineage, reason: str = "undo") -> bool:
        related = [row for row in self.events if covers(lineage[:1], row.cooperation_lineage)]
        rows = roll_back(lineage, related, [one.lineage for one in self.runs], reason=reason, source="test")
        self._insist(Writes(rows=rows))
        return bool(rows)

    def complete(self, handler: str) -> None:
        """Somebody outside has done what the handler was to do."""
        self._insist(complete(self.view(self.run_of(handler))))

    def fail(self, handler: str, reason: str) -> None:
        view = self.view(self.run_of(handler))
        self._insist(fail(view, Failure(type="Refused", message=reason, source=view.source)))

    def complete_rollback(self, handler: str) -> None:
        self._insist(complete_rollback(self.view(self.run_of(handler))))

    def _insist(self, writes: Writes) -> None:
        """Whoever asks from outside asks again if the process dies before that is written."""
        if not self.commit(writes):
            self.commit(writes)

    def retire(self, topic: Topic[Any], handler: str, *, release: bool = False) -> None:
        """Take a handler out; with `release`, those who wait already go on without it, unless it has begun."""
        self.registry[topic.name].discard(handler)
        self.retired.setdefault(topic.name, set()).add(handler)
        for one in self.runs:
            if release and one.handler == handler and self.hierarchy().messages[one.message_id].topic == topic.name:
                self._insist(Writes(rows=dismiss(self.view(one))))

    def register(self, topic: Topic[Any], handler: str) -> None:
        """Somebody who has no code; those who wait for handlers of the topic wait for it too."""
        self.registry[topic.name].add(handler)
        handlers = self._emitting().handlers[topic.name]
        messages = {message.id for message in self.messages if message.topic == topic.name}
        for one in list(self.runs):
            if one.handler not in self.plans:
                continue
            plan, view = self.plans[one.handler][1], self.view(one)
            emitted = {row.message_id for row in view.events if row.type is EventType.EMITTED} & messages
            for message_id in sorted(emitted):
                if handler in plan.strategy.joins(topic.name, handlers):
                    run = join(plan, view, message_id, handler, next(self._ids))
                    self._insist(Writes(runs=() if run is None else (run,)))

    def come(self, operation: Operation[Any]) -> None:
        """A service that has this operation is there from now on."""
        self.plans[operation.name] = (operation, operation.plan)
        self.register(operation.topic, operation.name)

    # -- what tests see

    def hierarchy(self) -> Hierarchy:
        if self._read is None:
            self._read = Hierarchy(self.messages, self.events, self.runs, self.values)
        return self._read

    def view(self, one: NewRun) -> OperationRun:
        return self.hierarchy().view(one, self.now)

    def move(self, one: NewRun) -> Move:
        if one.lineage not in self._moves:
            self._moves[one.lineage] = next_move(self.plans[one.handler][1], self.view(one))
        return self._moves[one.lineage]

    # -- how it goes on

    def commit(self, writes: Writes, noted: Sequence[str] = ()) -> bool:
        if not writes.rows and not writes.runs:
            return True
        self.commits += 1
        if self.crash_at == self.commits and not self.crash_after:
            self._crash(noted)
            return False
        at = self.stamp(self.now, self.lots)
        for row in stamped(writes.rows, self._ids, at):
            self.events.append(_decode(msgspec.json.encode(row)))
        self.messages += writes.messages
        self.runs += writes.runs
        self.values += writes.values
        self.log += noted
        self._read = None
        self._forget({row.cooperation_lineage for row in writes.rows} | {run.lineage for run in writes.runs})
        if self.crash_at == self.commits:
            self._crash(())
        if self.drawn or self.crash_at is None or self.commits >= self.crash_at:
            check_rows(self.events)  # Up to the crash it is the plain order, which was checked.
            self._compare()
        for look in self.on_commit:
            look(self)
        return True

    def _crash(self, noted: Sequence[str]) -> None:
        self.trouble += noted
        for _, _, lost in self._flying.values():
            self.trouble += lost
        self._flying.clear()
        self._heard.clear()

    def _heard_of(self, one: NewRun, view: OperationRun) -> OperationRun:
        """What a run knows: at first all that there is, and from then on what has reached it by mail."""
        known = self._heard.setdefault(one.lineage, view)
        if self.lots.random() < 0.5:
            # The mail has not come yet.
            return msgspec.structs.replace(view, rollback_request=known.rollback_request, asks=known.asks)
        self._heard[one.lineage] = view
        return view

    def _forget(self, changed: set[Lineage]) -> None:
        """Rows of a lineage matter to the runs below it, to itself and to its parent."""
        for known in list(self._moves):
            if any(covers(one, known) or covers(known, one) for one in changed):
                del self._moves[known]

    def _compare(self) -> None:
        """What can go on by the rules is what can go on by the rows."""
        able = {
            (one.message_id, one.handler)
            for one in self.runs
            if one.handler in self.plans and not isinstance(self.move(one), (Wait, Nothing))
        }
        expected: dict[str, list[str]] = {}
        for one in self.runs:
            expected.setdefault(one.message_id, []).append(one.handler)
        strategies = {name: plan.strategy for name, (_, plan) in self.plans.items()}
        by_rows = ready(self.messages, self.events, expected=expected, strategies=strategies, now=self.now)
        assert able == {pair for pair in by_rows if pair[1] in self.plans}

    def _has_code(self, one: NewRun) -> bool:
        return one.handler in self.plans and one.handler not in self.down

    def _land(self, one: NewRun) -> None:
        move, outcome, noted = self._flying.pop(one.lineage)
        writes = after(self.plans[one.handler][1], self.view(one), move, outcome, self._emitting())
        if isinstance(outcome, Raised):
            self.trouble += noted
            noted = []
        self.commit(writes, noted)

    def _execute(self, one: NewRun, view: OperationRun, move: Invoke | Handle | Undo) -> tuple[Outcome, list[str]]:
        operation, plan = self.plans[one.handler]
        node = plan.nodes[move.index]
        message = operation.topic.read(self.hierarchy().messages[one.message_id].payload)
        rolling_back = isinstance(move, Undo) or (isinstance(move, Handle) and move.rolling_back)
        scope = Scope(
            lineage=one.lineage,
            handler=one.handler,
            step=move.name,
            iteration=move.iteration,
            context=move.context,
            now=self.now,
            ids=lambda: next(self._ids),
            rolling_back=rolling_back,
            next_step=plan.said(move.next_step, move.index) if isinstance(move, Handle) and not rolling_back else None,
            returned=lambda: Returns(
                readable(view.children, self.values),
                {run.id: self.hierarchy().messages[run.message_id].topic for run in self.runs},
            ),
            reasons=lambda context: reasons(self.view(one), context, rolling_back=rolling_back),
        )
        self._noted = []
        said: Any = None
        try:
            match move:
                case Invoke():
                    try:
                        said = _call(node.invoke, scope, message)
                    except Exception:
                        if node.cleanup is not None:
                            _call(node.cleanup, scope, message)
                        raise
                case Handle() if node.handler is not None:
                    said = _call(node.handler, scope, message, move.failure, move.attempt)
                case Undo():
                    if move.cleanup and node.cleanup is not None:
                        _call(node.cleanup, scope, message)
                    if node.undo is not None:
                        _call(node.undo, scope, message, move.cause)
                case _:
                    raise AssertionError(move)
        except Exception as error:  # noqa: BLE001 - whatever a step raises is its failure
            return Raised(failure=to_failure(error, view.source, _text_of(move))), self._noted
        outcome = Returned(
            said=said, context=scope.context, emissions=tuple(scope.emissions), values=tuple(scope.values)
        )
        return outcome, self._noted

    def _emitting(self) -> Emitting:
        topics = {message.id: message.topic for message in self.messages}
        seen: dict[str, set[str]] = {}
        for row in self.events:
            if row.type is EventType.SEEN:
                seen.setdefault(topics[row.message_id], set()).add(row.coroutine_name or "")
        handlers = {
            topic: Handlers(
                registered=frozenset(self.registry.get(topic, ())),
                seen=frozenset(seen.get(topic, ())),
                retired=frozenset(self.retired.get(topic, ())),
            )
            for topic in {*self.registry, *seen}
        }
        return Emitting(handlers=handlers, ids=self._ids)

    def _pass_time(self) -> bool:
        moves = [self.move(one) for one in self.runs if self._has_code(one)]
        times = [move.until for move in moves if isinstance(move, Wait) and move.until is not None]
        if not times:
            return False
        self.now = max(min(times), self.now)
        self._moves.clear()
        self._compare()
        return True


def _text_of(move: Invoke | Handle | Undo) -> str:
    return move.text if isinstance(move, Undo) else move.name


def _call(function: Callable[..., Any], *args: Any) -> Any:
    """Steps may be async; here they have nothing to wait for."""
    returned = function(*args)
    if not isinstance(returned, Awaitable):
        return returned
    awaiting: Iterator[Any] = returned.__await__()
    try:
        next(awaiting)
    except StopIteration as done:
        return done.value
    raise AssertionError(f"{function.__qualname__} waits for something")
