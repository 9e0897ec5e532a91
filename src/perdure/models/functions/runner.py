"""A live run of a durable function: its loop, what it has asked for, and the journal it is replayed from. Does no I/O.

Live and replay take the same path, one completion at a time: `step_done` and `timer_fired` build the entry, hand the
loop what was decoded from it, and give back the op; `replay` hands over what the journal has.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from msgspec import Struct
from msgspec.json import decode as from_json
from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.errors import InvalidArguments, UnstorableValue
from perdure.kernel.lives import life_of
from perdure.kernel.mailboxes import Mailbox
from perdure.kernel.ops import Advance, Continuation, End, Start
from perdure.kernel.pieces import PIECE_ITEMS_MAX, Pieces, at_once, parts
from perdure.kernel.records import Attempt, Entry, Failure, Run, Staged, Wait
from perdure.kernel.stock import Stock, Task
from perdure.models.functions.artifacts import StagePost
from perdure.models.functions.commands import Ask, ChildCall, Continued
from perdure.models.functions.compensation import BRANCH, Compensation, roll_back
from perdure.models.functions.context import TimeReached
from perdure.models.functions.define import StepCall, Workflow
from perdure.models.functions.endings import end_of_rollback, outcome_of
from perdure.models.functions.identity import identity
from perdure.models.functions.loop import Commands, StepRequest, TimerRequest, WorkflowLoop
from perdure.models.functions.merged_commands import NOTHING_AT_ONCE, AnsweredAtOnce, Merged, Replayed
from perdure.models.functions.mismatch import Mismatch, diff, other_arguments
from perdure.models.functions.outlines import Outline, refusal, split
from perdure.models.functions.outlines import read as read_outline
from perdure.models.functions.outputs import rows_of, stock_of
from perdure.models.functions.read_ahead import ReadAhead
from perdure.models.functions.waits import RunEnded, Won, read_won
from perdure.ports import Codec, Ids, PlainCodec
from perdure.values.failures import mark, rebuild, to_failure, where_of
from perdure.values.json import to_text

_WITH_ARGUMENTS = ("child", "start", "compensate")
_SET_BACK_US = 1_000_000  # A clock that goes back by less was corrected, or is another machine's.


class Fired(Struct, frozen=True):
    """A timer entry's value: when it was due and when it fired, in microseconds."""

    due: int
    fired: int


class LiveRun:
    """One run in memory. `asks` is what else it waits for by position, `children` the ids of those it awaits;
    `requests` are its steps in flight by position; `retries` the stored waits of those tried before, `pausing` those of
    them that wait for their next attempt now, `staged` what came of those that had committed it before a crash; `gate`
    what to do, per advance that is not committed yet."""

    __slots__ = (
        "_attempt", "_box", "_callbacks_max", "_codec", "_encode", "_ids", "_input", "_outline",
        "_payload_max", "_starting", "_undone_for", "asks", "children", "claim", "compensations", "ended", "fetching",
        "gate", "has_staged", "has_waited", "id", "is_retried", "loop", "pausing", "requests", "retries", "running",
        "seq", "staged", "timers", "workflow",
    )  # fmt: skip

    def __init__(
        self, run: Run, workflow: Workflow[Any, Any], codec: Codec, ids: Ids, payload_max: int, callbacks_max: int,
        mailbox: Callable[[str], Mailbox] | None = None,
    ) -> None:  # fmt: skip
        self.id = run.id
        self.claim = run.claim
        self.workflow = workflow
        # What it refuses is not spelt out method by method, so checkers take it for abstract.
        self.loop = WorkflowLoop(run_id=run.id, callbacks_max=callbacks_max)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
        self.loop.about = run.workflow
        self.loop.awaited_by = run.parent_id if run.bond in ("awaited", "called") else None
        self.loop.life = life_of(run.origin)
        self.requests: dict[str, StepRequest] = {}
        self.asks: dict[str, Ask] = {}
        # Dictionaries where sets and lists would do: empty, they are small, and nothing to the garbage collector.
        self._starting: dict[str, None] = {}  # those of them that wait for a child's id
        self.children: dict[str, str] = {}
        self.compensations: dict[int, Compensation] = {}  # in the order of registering
        self._undone_for: str | None = None  # while it rolls back: the failure that it does so for, as it is stored
        self._callbacks_max = callbacks_max
        self._input = ""
        self.running: dict[str, Any] = {}  # position -> its execution, for the step runner
        self.retries: dict[str, Wait] = {}
        self.pausing: dict[str, None] = {}
        self.staged: dict[str, Staged] = {}
        self.timers: dict[str, Any] = {}  # position -> its armed timer
        self.gate: deque[Commands | Callable[[], None]] = deque()
        self.seq = 0
        self.ended = False
        self.has_waited = False
        self.has_staged = False  # or may have
        self.fetching = 0  # ends of other runs that are being read for it
        self._codec = codec
        self._ids = ids
        self._box = mailbox
        self._encode = None if type(codec) is PlainCodec else codec.encode
        # Beside what is encrypted, a digest would tell those arguments that can be guessed. What a rollback calls is
        # made from what was registered, and that is compared: so its loop has none.
        self.loop.has_digests = self._encode is None
        self._payload_max = self.loop.payload_max = payload_max
        self.is_retried = run.attempt > 1
        self._attempt = run.attempt
        self._outline: Outline | None = None  # to be written with what is written next

    @property
    def idle(self) -> bool:
        """Nothing runs: all that is asked for is durable. A child that is being started under an id of the caller's is
        not: nothing that is stored would wake the run."""
        return len(self.requests) == len(self.pausing) and not self._starting

    def key_of(self, position: str) -> str:
        """What names the execution of the step at a position: the same in all its attempts, in every process, and
        another one for every other. Positions have no colon, so no two runs share one; in its first life a run has the
        keys that it had before lives were counted."""
        instance = self.loop.instance_of(position)
        return f"{self.id}:{instance}@{self.loop.life}" if self.loop.life else f"{self.id}:{instance}"

    def time(self, now: int) -> int:
        """The time at which the run goes on, if it is `now`: never before the time that it has seen, unless the clock
        was set back. Then the run's time goes back too, or whatever it sleeps for would take longer by as much."""
        return now if now < self.loop.at - _SET_BACK_US else max(self.loop.at, now)

    def begin(self, input: str, at: int) -> Commands:
        """The first activation. A run whose input does not fit the code fails with InvalidArguments: who started it had
        no code to check it against."""
        if self.workflow.outline is not None:
            self._compare((), is_begun=False)
        try:
            return self._begin(input, at)
        except UnstorableValue as error:
            return self._begin_refused(error, at)

    def _compare(self, outlines: Sequence[Entry], *, is_begun: bool) -> None:
        """See whether the definition is that with which the run began. Raises Mismatch.

        A retry by hand takes the definition of now, as far as the journal fits it.
        """
        outline = self.workflow.outline
        if outline is None or (is_begun and not outlines):
            return
        stored = [read_outline(self._codec.decode(entry.value or "")) for entry in outlines]
        self.loop.rules = stored[-1].rules if stored else outline.rules
        if not outlines or outlines[0].seq != 1 - self._attempt:
            self._outline = outline
        elif stored[0].fingerprint != outline.fingerprint:
            reason, details = refusal(stored[0], outline, self.workflow.name, self.workflow.version)
            raise Mismatch(reason, details=details)

    def _begin(self, input: str, at: int) -> Commands:
        self._input = input
        args, kwargs = self.workflow.signature.read(self._codec.decode(input))
        function = self.workflow.function
        return self._took(self.loop.begin(lambda: function(*args, **kwargs), at))

    def _begin_refused(self, error: UnstorableValue, at: int) -> Commands:
        refused = InvalidArguments(str(error))
        return self._took(self.loop.begin(lambda: _refuse(refused), at))

    def replay(
        self, input: str, entries: Sequence[Entry], created_at: int, *, is_begun: bool = False
    ) -> Pieces[Commands]:
        """Bring a new loop to where the journal ends; what is asked for from there on. Raises Mismatch. `is_begun` says
        that something was asked for before, though the journal may be empty. Between two pieces nobody may hand the run
        anything.

        What an activation says is committed with its entry, so it need not be said again. But the first one has no
        entry; and the last one before a failure may, after a retry, have come further with other code.
        """
        self.has_waited = self.has_staged = True
        outlines, entries = split(entries)
        self._compare(outlines, is_begun=is_begun or bool(entries))
        total = Replayed()
        try:
            commands = total.add(self._begin(input, created_at))
        except UnstorableValue as error:
            if entries:
                raise Mismatch(str(error), details=str(error)) from error
            commands = total.add(self._begin_refused(error, created_at))  # It has done nothing yet.
        return (yield from self._replay_entries(total, commands, entries))

    def undo(self, input: str, entries: Sequence[Entry], created_at: int, failure: str) -> Pieces[Commands]:
        """Bring a run that rolls back to where its journal ends: what it did before tells what there is to undo. Raises
        Mismatch."""
        self._undone_for = failure
        outlines, entries = split(entries)
        forward = [entry for entry in entries if not entry.position.startswith(BRANCH)]
        yield from self.replay(input, [*outlines, *forward], created_at)
        self.loop.close()
        self.asks.clear()
        self._starting.clear()
        self.requests.clear()
        about, life = self.loop.about, self.loop.life
        # As in __init__.
        self.loop = WorkflowLoop(run_id=self.id, callbacks_max=self._callbacks_max, branch=BRANCH)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
        self.loop.about, self.loop.life = about, life
        self.loop.payload_max = self._payload_max
        at = forward[-1].at if forward else created_at
        compensations, policy = list(self.compensations.values()), self.workflow.compensation
        total = Replayed()
        commands = total.add(self._took(self.loop.begin(lambda: roll_back(compensations, policy), at)))
        return (yield from self._replay_entries(total, commands, entries[len(forward) :]))

    def _replay_entries(self, total: Replayed, commands: Commands, entries: Sequence[Entry]) -> Pieces[Commands]:
        for number, entry in enumerate(entries):
            if number % PIECE_ITEMS_MAX == PIECE_ITEMS_MAX - 1:
                yield
            if commands.end is not None:
                raise Mismatch(
                    f"the code ends after {self.seq} of {len(entries)} journal entries",
                    details=diff(entries, self.seq, "the end of the workflow"),
                )
            commands = total.add(self._hand_over(entry, entries))
        if entries and not self.is_retried:
            commands.outputs = ()
        return total.commands(self.requests.values(), self.asks.values(), self.loop, commands)

    def _hand_over(self, entry: Entry, entries: Sequence[Entry]) -> Commands:
        asked = self.loop.pending(entry.position)
        if asked is None or asked != (entry.kind, entry.name):
            now = f"{asked[0]} {asked[1]!r}" if asked else "nothing"
            raise Mismatch(
                f"at position {entry.position} the journal has {entry.kind} {entry.name!r}, the code asks for {now}",
                details=diff(entries, self.seq, f"{now} at {entry.position}; open: {self._open()}"),
            )
        self.seq = entry.seq
        if entry.kind == "timer":
            return self._fire(entry.position, entry.at)
        complete = self.loop.complete_step if entry.kind == "step" else self.loop.complete_ask
        ask = self.asks.pop(entry.position, None)
        self._starting.pop(entry.position, None)
        request = self.requests.pop(entry.position, None)
        if entry.digest:
            now = ask.what.digest if ask is not None else request.call.digest  # type: ignore[union-attr]
            if now != entry.digest and now:
                raise other_arguments(entry, entries, now)
        if entry.failure is not None:
            failure = from_json(entry.failure, type=Failure)
            error = rebuild(failure, run_id=self.id, position=entry.position, seq=entry.seq)
            return self._took(complete(entry.position, entry.at, error=error))
        text = self._codec.decode(entry.value or "")
        try:
            if ask is not None:
                value = self._read(ask, text)
            else:
                call: StepCall[Any] = request.call  # type: ignore[union-attr]
                value = call.step.signature.result.read(text, f"the journal's value of {entry.name!r}")
        except UnstorableValue as error:
            raise Mismatch(str(error), details=diff(entries, entry.seq - 1, str(error))) from error
        return self._took(complete(entry.position, entry.at, value=value))

    def _read(self, ask: Ask, text: str) -> Any:
        """What workflow code gets for a request, from its entry's value."""
        if ask.kind == "wait":
            got = read_won(ask.what, from_json(text, type=Won))
            if isinstance(got, RunEnded) and got.error is not None:
                mark(got.error, self.seq)
            elif isinstance(got, TimeReached):
                self.loop.elapsed = self.seq
            return got
        if ask.kind == "task":
            got = ask.what.read(from_json(text, type=Won), self.seq)
            if isinstance(got, TimeReached):
                self.loop.elapsed = self.seq
            return got
        if ask.kind == "compensate":
            self.compensations[len(self.compensations)] = ask.what
            return None
        if ask.kind == "child":
            return ask.what.workflow.signature.result.read(text, f"the result of child {ask.name!r}")
        child_id = from_json(text)
        if ask.what.id not in (None, child_id):
            raise UnstorableValue(f"the child {ask.name!r} was started with the id {child_id!r}, not {ask.what.id!r}")
        return child_id

    def ask_done(
        self, ask: Ask, text: str | None, error: BaseException | None, *, at: int, read: tuple[str, ...] = (),
        consumed: tuple[str, ...] = (),
    ) -> Advance:  # fmt: skip
        """What was asked for is there, as JSON, or cannot be had: journal it, go on, and say what is to be written."""
        at = self.time(at)
        entry, value, error = self._ask_entry(ask, text, error, at)
        commands = self._took(self.loop.complete_ask(ask.position, at, value=value, error=error))
        if error is not None:
            entry = _located(entry, error)
        dropped = () if ask.kind == "start" else (ask.position,)
        cause = f"{ask.kind} over"
        return self.advance(commands, at, cause, (entry,), dropped, read=read, consumed=consumed)

    def _ask_entry(
        self, ask: Ask, text: str | None, error: BaseException | None, at: int
    ) -> tuple[Entry, Any, BaseException | None]:
        self.seq += 1
        del self.asks[ask.position]
        self._starting.pop(ask.position, None)
        self.children.pop(ask.position, None)
        value = failed = None
        if error is None:
            try:
                value = self._read(ask, text or "")
            except UnstorableValue as unstorable:
                error, text = unstorable, None
        if error is not None:
            failure = to_failure(error, entry=self.seq)
            failed, text = to_json(failure).decode(), None
            error = rebuild(failure, run_id=self.id, position=ask.position, seq=self.seq)
        entry = Entry(
            run_id=self.id,
            seq=self.seq,
            position=ask.position,
            kind=ask.kind,
            name=ask.name,
            value=None if text is None else self._codec.encode(text),
            failure=failed,
            started_at=ask.since,
            at=at,
            digest=ask.what.digest if ask.kind in _WITH_ARGUMENTS else "",
        )
        return entry, value, error

    def step_done(
        self, request: StepRequest, value: Any, error: BaseException | None, *, history: list[Attempt], started_at: int,
        attempts: int, at: int,
    ) -> Advance:  # fmt: skip
        """A step came to its end: journal it, go on, and say what is to be written."""
        position, call = request.position, request.call
        if at < self.loop.at:
            at = self.time(at)
        self.seq += 1
        del self.requests[position]
        dropped = (position,) if self.retries and self.retries.pop(position, None) is not None else ()
        text = failed = None
        if error is None:
            try:
                signature = call.step.signature
                text = to_text(value, signature.about_result, self._payload_max)
                value = signature.result.read(text, signature.about_result)
                if self._encode is not None:
                    text = self._encode(text)
            except UnstorableValue as unstorable:
                error, text = unstorable, None
        if error is not None:
            failure = to_failure(error, entry=self.seq, history=history)
            failed = to_json(failure).decode()
            error = rebuild(failure, run_id=self.id, position=position, seq=self.seq)
        entry = Entry(
            run_id=self.id,
            seq=self.seq,
            position=position,
            kind="step",
            name=request.name,
            value=text,
            failure=failed,
            attempts=attempts,
            started_at=started_at,
            at=at,
            digest=call.digest,
        )
        commands = self._took(self.loop.complete_step(position, at, value=value, error=error))
        if error is not None:
            entry = _located(entry, error)
        return self.advance(commands, at, "step finished", (entry,), dropped)

    def step_staged(self, request: StepRequest, staged: Staged, at: int) -> Advance:
        """A transactional step has committed what it came to, in this life or in another: journal it, go on, and say
        what is to be written. With its entry, what is staged goes. Raises Mismatch."""
        position, name = request.position, request.name
        at = self.time(at)
        call: StepCall[Any] = request.call
        try:
            value = call.step.signature.result.read(self._codec.decode(staged.value), f"the staged value of {name!r}")
        except UnstorableValue as error:
            raise Mismatch(str(error), details=str(error)) from error
        self.seq += 1
        del self.requests[position]
        self.retries.pop(position, None)
        entry = Entry(
            run_id=self.id,
            seq=self.seq,
            position=position,
            kind="step",
            name=name,
            value=staged.value,
            attempts=staged.attempt,
            started_at=staged.started_at,
            at=at,
            digest=call.digest,
        )
        commands = self._took(self.loop.complete_step(position, at, value=value))
        return self.advance(commands, at, "step finished", (entry,), (position,))

    def find_staged(self, found: Sequence[Staged]) -> None:
        """After a replay: keep what steps that are asked for have committed. Raises Mismatch if other steps did."""
        for staged in found:
            asked = self.loop.pending(staged.position)
            if asked is None:
                continue  # It was withdrawn while it was being committed.
            if asked != ("step", staged.name):
                raise Mismatch(
                    f"at position {staged.position} step {staged.name!r} was done, the code asks for {asked[0]} "
                    f"{asked[1]!r}",
                    details=f"- {staged.position:<8} step {staged.name}\n+ {staged.position:<8} {' '.join(asked)}",
                )
            self.staged[staged.position] = staged

    def timer_fired(self, timer: TimerRequest, at: int) -> Advance:
        """A timer is due: journal it, go on, and say what is to be written."""
        at = max(self.time(at), timer.due_at)
        self.seq += 1
        entry = Entry(
            run_id=self.id,
            seq=self.seq,
            position=timer.position,
            kind="timer",
            name=timer.name,
            value=to_json(Fired(timer.due_at, at)).decode(),
            started_at=timer.since,
            at=at,
        )
        commands = self._fire(timer.position, at)
        return self.advance(commands, at, "timer fired", (entry,), (timer.position,))

    def _fire(self, position: str, at: int) -> Commands:
        """Hand over a due timer, and keep in mind whether it was somebody's time that is up."""
        if self.loop.is_timeout(position):
            self.loop.elapsed = self.seq
        return self._took(self.loop.fire_timer(position, at))

    def advance(
        self, commands: Commands, at: int, cause: str, entries: tuple[Entry, ...] = (), dropped: tuple[str, ...] = (),
        *, read: tuple[str, ...] = (), consumed: tuple[str, ...] = (),
    ) -> Advance:  # fmt: skip
        """The op that makes these commands durable; they are released from the gate once it is committed."""
        at_once = NOTHING_AT_ONCE
        if commands.asks:
            at_once = self._answer_at_once(commands, at, entries)
            commands, entries = at_once.commands, tuple(at_once.entries)
        if self._outline is not None:
            entries += self.take_outline(at)
        self.gate.append(commands)
        # The hot path: it goes on with steps and nothing else.
        if commands.only_steps and self.requests and not (self.pausing or read or consumed):
            return Advance(
                run_id=self.id,
                at=at,
                claim=self.claim,
                cause=cause,
                entries=entries,
                waits_dropped=dropped,
                plain=not dropped and bool(entries),
            )
        return self._advance_at_length(commands, at, cause, entries, dropped, read, consumed, at_once)

    def take_outline(self, at: int) -> tuple[Entry, ...]:
        """What tells which definition the run began with, unless that is written."""
        outline, self._outline = self._outline, None
        if outline is None:
            return ()
        return (outline.entry(self.id, self._attempt, self._codec.encode(to_json(outline).decode()), at),)

    def _advance_at_length(
        self, commands: Commands, at: int, cause: str, entries: tuple[Entry, ...], dropped: tuple[str, ...],
        read: tuple[str, ...], consumed: tuple[str, ...], at_once: AnsweredAtOnce,
    ) -> Advance:  # fmt: skip
        waits: list[Wait] = []
        children: list[Start] = []
        tasks: list[Task] = []
        if commands.timers or commands.asks:
            waits, children, tasks = self._begin_waiting(commands, at)
        more_dropped: list[str] = []
        cancels: list[str] = []
        if commands.asks_withdrawn or commands.timers_dropped or commands.steps_cancelled:
            more_dropped, cancels = self._stop_waiting(commands)
        end = continuation = None
        if commands.end is not None:
            self.ended = True
            cancels += self.children.values()
            if isinstance(commands.end, Continued):
                continuation = self._onward(commands.end)
            else:
                end = self._end(commands.end)
        published, items = rows_of(self.id, commands.outputs, at, self._encode) if commands.outputs else ((), ())
        stock: Stock | None = None
        if self.has_staged and commands.outputs:
            stock = stock_of(self.id, self.workflow.name, commands.outputs, at, self._ids, self._codec)
        if tasks:
            stock = Stock() if stock is None else stock
            stock.tasks += tasks
        return Advance(
            run_id=self.id,
            at=at,
            claim=self.claim,
            cause=cause if end is None else "ended",
            entries=entries,
            waits=tuple(waits),
            waits_dropped=(*dropped, *more_dropped),
            events_read=read,
            read_ahead=at_once.read_ahead,
            consumed=consumed,
            starts=(*at_once.starts, *children),
            cancels=tuple(cancels),
            undo=at_once.undo,
            published=published,
            stream_items=items,
            stock=stock,
            idle=end is None and continuation is None and self.idle,
            end=end,
            continuation=continuation,
        )

    def _begin_waiting(self, commands: Commands, at: int) -> tuple[list[Wait], list[Start], list[Task]]:
        """The rows of what is asked for: what it waits for, the children it starts and the tasks it opens for that."""
        waits = [
            Wait(run_id=self.id, position=t.position, kind="timer", name=t.name, due_at=t.due_at, since=t.since)
            for t in commands.timers
        ]
        children: list[Start] = []
        tasks: list[Task] = []
        for ask in commands.asks:
            if ask.kind == "task":
                tasks.append(ask.what.opened(self.id, ask, self._ids(at), at, self._codec))
                waits += ask.what.rows(self.id, ask, tasks[-1].id)
                continue
            more, child = self._waits_of(ask, at)
            waits += more
            children += child
        self.has_waited = True
        return waits, children, tasks

    def _stop_waiting(self, commands: Commands) -> tuple[list[str], list[str]]:
        """The positions that it no longer waits at, and the children that it no longer needs."""
        withdrawn = [self.children.pop(position, None) for position in commands.asks_withdrawn]
        cancels = [child_id for child_id in withdrawn if child_id is not None]
        dropped = [*commands.asks_withdrawn, *commands.timers_dropped]
        for position in commands.steps_cancelled:
            self.pausing.pop(position, None)
            if self.retries.pop(position, None) is not None:
                dropped.append(position)
        return dropped, cancels

    def _answer_at_once(self, commands: Commands, at: int, entries: tuple[Entry, ...]) -> AnsweredAtOnce:
        """Children that are started and not awaited have their ids at once, compensations need nothing, and events that
        were sent before are there: so the run goes on with them before all of it is committed, together."""
        total = Merged()
        answered = AnsweredAtOnce(commands, [*entries])
        # An advance that is not committed yet may have begun to wait for the very events that are there.
        ahead = None if self.gate or self._box is None else ReadAhead(self.id, self._box(self.id), self._codec)
        asked = deque(commands.asks)
        total.add(commands)
        while asked and total.end is None:
            ask = asked.popleft()
            text = self._text_at_once(ask, at, ahead, answered) if total.has(ask) else None
            if text is not None:
                total.answered(ask)
                entry, value, _ = self._ask_entry(ask, text, None, at)
                answered.entries.append(entry)
                more = self._took(self.loop.complete_ask(ask.position, at, value=value))
                total.add(more)
                asked += more.asks
        answered.commands = total.commands()
        answered.read_ahead = () if ahead is None else tuple(ahead.event_ids)
        return answered

    def _text_at_once(self, ask: Ask, at: int, ahead: ReadAhead | None, answered: AnsweredAtOnce) -> str | None:
        """The value of a request that nobody has to be asked about, as JSON."""
        if ask.kind == "wait":
            return None if ahead is None else ahead.read(ask, at)
        if ask.kind == "start" and ask.what.id is None:
            child_id = self._ids(at)
            answered.starts.append(self.start_of(ask, child_id, at))
            return to_json(child_id).decode()
        if ask.kind == "compensate":
            answered.undo += 1
            text: str = ask.what.text
            return text
        return None

    def _onward(self, end: Continued) -> Continuation:
        return Continuation(
            workflow=end.workflow.name,
            workflow_version=end.workflow.version,
            input=self._codec.encode(end.input),
            origin=identity(self.workflow.name, self._codec.decode(self._input), self.workflow),
        )

    def start_of(self, ask: Ask, child_id: str, at: int) -> Start:
        child: ChildCall = ask.what
        return Start(
            run_id=child_id,
            at=at,
            workflow=child.workflow.name,
            workflow_version=child.workflow.version,
            model=child.workflow.model,
            input=self._codec.encode(child.input),
            tags=child.tags,
            deadline=None if child.deadline_us is None else at + child.deadline_us,
            parent_id=self.id,
            bond=child.bond,
            fresh=child.id is None,
        )

    def waits_again(self, ask: Ask, at: int) -> tuple[Wait, ...]:
        """The rows of a request that is outstanding."""
        return self._waits_of(ask, at)[0]

    def _waits_of(self, ask: Ask, at: int) -> tuple[tuple[Wait, ...], tuple[Start, ...]]:
        """The rows of a request, and the child that it starts, if any."""
        if ask.kind == "wait":
            return ask.what.rows(self.id, ask), ()
        if ask.kind == "start":  # With an id of the caller's: whether it can be had is not known yet.
            return (), ()
        starts: tuple[Start, ...] = ()
        child_id = self.children.get(ask.position)
        if child_id is None:
            child_id = self.children[ask.position] = self._ids(at)
            starts = (self.start_of(ask, child_id, at),)
        wait = Wait(
            run_id=self.id, position=ask.position, kind="run", name=ask.name, target=child_id, since=ask.since,
            details=ask.what.digest or None,
        )  # fmt: skip
        return (wait,), starts

    def _end(self, end: Any) -> End:
        if self._undone_for is not None:
            return end_of_rollback(end, self._undone_for)
        status, outcome = outcome_of(end, self.workflow, self._codec, self._payload_max, self.id, self.loop.elapsed)
        return End(status=status, outcome=outcome, has_waited=self.has_waited, has_staged=self.has_staged)

    def _took(self, commands: Commands) -> Commands:
        """Keep track of which steps are asked for, and mark what is said."""
        for request in commands.steps:
            self.requests[request.position] = request
        if commands.only_steps:
            return commands
        if commands.outputs:
            said = enumerate(commands.outputs, 1)
            commands.outputs = [replace(post, mark=(self.seq, number)) for number, post in said]
            self.has_staged = self.has_staged or any(isinstance(post, StagePost) for post in commands.outputs)
        if commands.asks:
            for ask in commands.asks:
                self.asks[ask.position] = ask
                if ask.kind == "start":
                    self._starting[ask.position] = None
        if commands.asks_withdrawn:
            for position in commands.asks_withdrawn:
                self.asks.pop(position, None)
                self._starting.pop(position, None)
        if commands.steps_cancelled:
            for position in commands.steps_cancelled:
                self.requests.pop(position, None)
        return commands

    def _open(self) -> str:
        steps = [f"{request.name!r} at {request.position}" for request in self.requests.values()]
        return ", ".join([*steps, *(f"{ask.name!r} at {ask.position}" for ask in self.asks.values())]) or "nothing"

    @property
    def is_stuck(self) -> bool:
        """Whether it waits, and nothing that it asked for is outstanding."""
        return self.idle and not self.pausing and not self.loop.outstanding_timers and not self.asks

    def close(self) -> None:
        at_once(self.close_in_pieces())

    def close_in_pieces(self) -> Pieces[None]:
        """End what its code has left unfinished, and its timers. It is of no more use from the first piece on."""
        self.ended = True
        for start, part in parts([*self.timers.values()]):
            if start:
                yield
            for timer in part:
                timer.cancel()
        self.timers.clear()
        yield from self.loop.close_in_pieces()
        self.loop.about = None  # It refers back to the loop.


def _located(entry: Entry, error: BaseException) -> Entry:
    """The entry of a failure, with where it happened: only the workflow that was handed the exception can tell."""
    where = where_of(error)
    if not where or entry.failure is None:
        return entry
    failure = from_json(entry.failure, type=Failure)
    return replace(entry, failure=to_json(replace(failure, where=where)).decode())


__all__ = ["Fired", "LiveRun", "Mismatch"]


async def _refuse(error: InvalidArguments) -> None:
    raise error
