"""A live run of a durable function: its loop and its requests. Does no I/O.

A live run and a replay take the same path, one completion at a time. `step_done` and `timer_fired` build the journal
entry, hand the value that was decoded from it to the loop, and return the op. In a replay, replay.py hands over the
entries of the journal.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from itertools import count
from typing import Any

from msgspec.json import decode as from_json
from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.errors import InvalidArguments, UnstorableValue
from perdure.kernel.artifacts import ArtifactWrites
from perdure.kernel.continuation_counts import life_of
from perdure.kernel.failures import Attempt
from perdure.kernel.ops import Advance, End
from perdure.kernel.pieces import PIECE_ITEMS_MAX, Pieces, at_once, parts
from perdure.kernel.rows import Entry, Staged, Wait
from perdure.kernel.runs import Run
from perdure.kernel.wait_matches import Mailbox
from perdure.models.common.stored_failures import write_failure
from perdure.models.functions.artifacts import ArtifactOutput
from perdure.models.functions.commands import Ask, Continued
from perdure.models.functions.compensation import Compensation
from perdure.models.functions.define import StepCall, Workflow
from perdure.models.functions.definition_outlines import Outline, refusal
from perdure.models.functions.definition_outlines import read as read_outline
from perdure.models.functions.loop import Commands, StepRequest, TimerRequest, WorkflowLoop
from perdure.models.functions.merged_commands import NOTHING_AT_ONCE, AnsweredAtOnce, Merged
from perdure.models.functions.mismatch import Mismatch
from perdure.models.functions.outcomes import end_of_rollback, located, outcome_of, refuse
from perdure.models.functions.outputs import artifacts_of, rows_of
from perdure.models.functions.read_ahead import ReadAhead
from perdure.models.functions.request_rows import Begun, begin_waiting, continuation_of, start_of, stop_waiting
from perdure.models.functions.timers import Fired, TimeReached
from perdure.models.functions.waits import RunEnded, Won, read_won
from perdure.ports import Codec, Ids, PlainCodec
from perdure.values.failures import mark, rebuild, to_failure
from perdure.values.json import to_text

_NOTHING: Begun = ([], [], [])  # shared, so nothing may be added to it
_WITH_ARGUMENTS = ("child", "start", "compensate")
# If a clock goes back by less than this, it was corrected, or the time came from another machine.
_SET_BACK_US = 1_000_000


class LiveRun:
    """One run in memory. The keys of all dictionaries are positions.

    `requests` are the steps that have not ended. `retries` are the stored waits of steps that have had an attempt
    before. `pausing` are the steps in `retries` that wait for their next attempt now. `staged` are the results that
    transactional steps had committed before a crash. `asks` are all other requests. `children` are the ids of the
    awaited children. `gate` has an action for each advance that is not committed yet. The action is performed after the
    commit.
    """

    __slots__ = (
        "_attempt", "_box", "_encode", "_outline", "asks", "callbacks_max", "children", "claim", "codec",
        "compensations", "ended", "fetching", "gate", "has_staged", "has_waited", "id", "ids", "input", "is_retried",
        "loop", "pausing", "payload_max", "requests", "retries", "running", "seq", "staged", "starting", "timers",
        "undone_for", "workflow",
    )  # fmt: skip

    def __init__(
        self, run: Run, workflow: Workflow[Any, Any], codec: Codec, ids: Ids, payload_max: int, callbacks_max: int,
        mailbox: Callable[[str], Mailbox] | None = None,
    ) -> None:  # fmt: skip
        self.id = run.id
        self.claim = run.claim
        self.workflow = workflow
        # The class does not define the methods that it refuses, so type checkers think that it is abstract.
        self.loop = WorkflowLoop(run_id=run.id, callbacks_max=callbacks_max)  # type: ignore[abstract]  # pyright: ignore[reportAbstractUsage]
        self.loop.about = run.workflow
        self.loop.awaited_by = run.parent_id if run.bond in ("awaited", "called") else None
        self.loop.life = life_of(run.origin)
        self.requests: dict[str, StepRequest] = {}
        self.asks: dict[str, Ask] = {}
        # These are dictionaries, although sets and lists would be enough. An empty dictionary is small, and the garbage
        # collector does not track it.
        self.starting: dict[str, None] = {}  # the requests in `asks` that wait for a child's id
        self.children: dict[str, str] = {}
        self.compensations: dict[int, Compensation] = {}  # in the order of registration
        self.undone_for: str | None = None  # during a rollback: the stored failure that caused the rollback
        self.callbacks_max = callbacks_max
        self.input = ""
        self.running: dict[str, Any] = {}  # position -> the execution of its step
        self.retries: dict[str, Wait] = {}
        self.pausing: dict[str, None] = {}
        self.staged: dict[str, Staged] = {}
        self.timers: dict[str, Any] = {}  # position -> the armed timer
        self.gate: deque[Commands | Callable[[], None]] = deque()
        self.seq = 0
        self.ended = False
        self.has_waited = False
        self.has_staged = False  # True if artifacts were staged, or may have been staged
        self.fetching = 0  # how many ends of other runs are being read for this run
        self.codec = codec
        self.ids = ids
        self._box = mailbox
        self._encode = None if type(codec) is PlainCodec else codec.encode
        # If values are encrypted, there are no digests, because a digest would reveal arguments that can be guessed.
        # The loop of a rollback has no digests either. Its calls come from the registered compensations, and these are
        # compared.
        self.loop.has_digests = self._encode is None
        self.payload_max = self.loop.payload_max = payload_max
        self.is_retried = run.attempt > 1
        self._attempt = run.attempt
        self._outline: Outline | None = None  # the outline to write with the next advance

    @property
    def idle(self) -> bool:
        """Whether nothing runs, so that all outstanding requests are durable.

        The start of a child under an id that the caller gave is not durable: no row in the store would wake the run.
        """
        return len(self.requests) == len(self.pausing) and not self.starting

    def key_of(self, position: str) -> str:
        """Return the idempotency key of the step at a position.

        The key is the same in all attempts of the step, in every process. Every other step has another key. Positions
        have no colon, so no two runs share a key. The keys of a run's first life do not contain the number of the life.
        Earlier versions of Perdure, which did not count lives, wrote the same keys.
        """
        instance = self.loop.instance_of(position)
        return f"{self.id}:{instance}@{self.loop.life}" if self.loop.life else f"{self.id}:{instance}"

    def time(self, now: int) -> int:
        """Return the time at which the run goes on if the clock says `now`.

        The run's time never goes back, unless the clock was set back by more than a second. Then the run's time goes
        back too. Otherwise the run's sleeps would take longer by that amount.
        """
        return now if now < self.loop.at - _SET_BACK_US else max(self.loop.at, now)

    def begin(self, input: str, at: int) -> Commands | None:
        """Do the first activation. Returns None if the activation takes more than one piece (see `begin_on`).

        If the input does not fit the code, the run fails with InvalidArguments. In this case, the caller who started
        the run did not have the code to check the input.
        """
        if self.workflow.outline is not None:
            self.compare((), is_begun=False)
        try:
            begun = self.loop.begin_some(self.beginning(input), at)
        except UnstorableValue as error:
            return self.begin_refused(error, at)
        return None if begun is None else self.took(begun)

    def begin_on(self, begun: Commands | None, now: Callable[[], int]) -> Pieces[Advance | Commands]:
        """Do the rest of the first activation, and return the op that makes the activation durable.

        The activation is done in pieces, because a run may ask for ten thousand children at once. If the run asks only
        for steps, no op is needed. Then the commands are returned. Between two pieces nothing may be handed to the run.
        """
        commands = self.took((yield from self.loop.begin_on())) if begun is None else begun
        if commands.only_steps and commands.end is None and not self.idle:
            return commands
        at = self.time(now())
        answered = yield from self._answer_at_once(commands, at, ())
        waiting = yield from begin_waiting(self, answered.commands, at)
        entries = (*answered.entries, *self.take_outline(at))
        self.gate.append(answered.commands)
        return self._advance_at_length(answered.commands, at, "started", entries, (), (), (), answered, waiting)

    def compare(self, outlines: Sequence[Entry], *, is_begun: bool) -> None:
        """Check that the definition is the definition with which the run began. Raises Mismatch.

        A run that was retried by hand uses the current definition, as far as its journal fits.
        """
        outline = self.workflow.outline
        if outline is None or (is_begun and not outlines):
            return
        stored = [read_outline(self.codec.decode(entry.value or "")) for entry in outlines]
        self.loop.rules = stored[-1].rules if stored else outline.rules
        if not outlines or outlines[0].seq != 1 - self._attempt:
            self._outline = outline
        elif stored[0].fingerprint != outline.fingerprint:
            reason, details = refusal(stored[0], outline, self.workflow.name, self.workflow.version)
            raise Mismatch(reason, details=details)

    def beginning(self, input: str) -> Callable[[], Coroutine[Any, Any, Any]]:
        self.input = input
        args, kwargs = self.workflow.signature.read(self.codec.decode(input))
        function = self.workflow.function
        return lambda: function(*args, **kwargs)

    def begin_refused(self, error: UnstorableValue, at: int) -> Commands:
        refused = InvalidArguments(str(error))
        return self.took(self.loop.begin(lambda: refuse(refused), at))

    def read(self, ask: Ask, text: str) -> Any:
        """Return the value that workflow code gets for a request, read from the value of the journal entry."""
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
        """Journal the answer to a request, which is JSON or an error.

        Go on with the run, and return the op to write.
        """
        at = self.time(at)
        entry, value, error = self._ask_entry(ask, text, error, at)
        commands = self.took(self.loop.complete_ask(ask.position, at, value=value, error=error))
        if error is not None:
            entry = located(entry, error, self.codec)
        dropped = () if ask.kind == "start" else (ask.position,)
        cause = f"{ask.kind} over"
        return self.advance(commands, at, cause, (entry,), dropped, read=read, consumed=consumed)

    def _ask_entry(
        self, ask: Ask, text: str | None, error: BaseException | None, at: int
    ) -> tuple[Entry, Any, BaseException | None]:
        self.seq += 1
        del self.asks[ask.position]
        self.starting.pop(ask.position, None)
        self.children.pop(ask.position, None)
        value = failed = None
        if error is None:
            try:
                value = self.read(ask, text or "")
            except UnstorableValue as unstorable:
                error, text = unstorable, None
        if error is not None:
            failure = to_failure(error, entry=self.seq)
            failed, text = write_failure(failure, self.codec), None
            error = rebuild(failure, run_id=self.id, position=ask.position, seq=self.seq)
        entry = Entry(
            run_id=self.id,
            seq=self.seq,
            position=ask.position,
            kind=ask.kind,
            name=ask.name,
            value=None if text is None else self.codec.encode(text),
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
        """Journal the end of a step, go on with the run, and return the op to write."""
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
                text = to_text(value, signature.about_result, self.payload_max)
                value = signature.result.read(text, signature.about_result)
                if self._encode is not None:
                    text = self._encode(text)
            except UnstorableValue as unstorable:
                error, text = unstorable, None
        if error is not None:
            failure = to_failure(error, entry=self.seq, history=history)
            failed = write_failure(failure, self.codec)
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
        commands = self.took(self.loop.complete_step(position, at, value=value, error=error))
        if error is not None:
            entry = located(entry, error, self.codec)
        return self.advance(commands, at, "step finished", (entry,), dropped)

    def step_staged(self, request: StepRequest, staged: Staged, at: int) -> Advance:
        """Journal the result that a transactional step has committed, in this process or in an earlier process. Go on
        with the run, and return the op to write. The commit of the entry removes the staged result. Raises Mismatch.
        """
        position, name = request.position, request.name
        at = self.time(at)
        call: StepCall[Any] = request.call
        try:
            value = call.step.signature.result.read(self.codec.decode(staged.value), f"the staged value of {name!r}")
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
        commands = self.took(self.loop.complete_step(position, at, value=value))
        return self.advance(commands, at, "step finished", (entry,), (position,))

    def timer_fired(self, timer: TimerRequest, at: int) -> Advance:
        """Journal a due timer, go on with the run, and return the op to write."""
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
        commands = self.fire(timer.position, at)
        return self.advance(commands, at, "timer fired", (entry,), (timer.position,))

    def fire(self, position: str, at: int) -> Commands:
        """Hand over a due timer. If the timer was a timeout, remember its entry."""
        if self.loop.is_timeout(position):
            self.loop.elapsed = self.seq
        return self.took(self.loop.fire_timer(position, at))

    def advance(
        self, commands: Commands, at: int, cause: str, entries: tuple[Entry, ...] = (), dropped: tuple[str, ...] = (),
        *, read: tuple[str, ...] = (), consumed: tuple[str, ...] = (),
    ) -> Advance:  # fmt: skip
        """Return the op that makes these commands durable. The gate performs the commands once the op is committed."""
        answered = NOTHING_AT_ONCE
        if commands.asks:
            answered = at_once(self._answer_at_once(commands, at, entries))
            commands, entries = answered.commands, tuple(answered.entries)
        if self._outline is not None:
            entries += self.take_outline(at)
        self.gate.append(commands)
        # The hot path: the run asks only for steps.
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
        begun = at_once(begin_waiting(self, commands, at)) if commands.timers or commands.asks else _NOTHING
        return self._advance_at_length(commands, at, cause, entries, dropped, read, consumed, answered, begun)

    def take_outline(self, at: int) -> tuple[Entry, ...]:
        """Return the entry that says with which definition the run began. Return nothing if the entry is already
        written.
        """
        outline, self._outline = self._outline, None
        if outline is None:
            return ()
        return (outline.entry(self.id, self._attempt, self.codec.encode(to_json(outline).decode()), at),)

    def _advance_at_length(
        self, commands: Commands, at: int, cause: str, entries: tuple[Entry, ...], dropped: tuple[str, ...],
        read: tuple[str, ...], consumed: tuple[str, ...], answered: AnsweredAtOnce, begun: Begun,
    ) -> Advance:  # fmt: skip
        waits, children, tasks = begun
        more_dropped: list[str] = []
        cancels: list[str] = []
        if commands.asks_withdrawn or commands.timers_dropped or commands.steps_cancelled:
            more_dropped, cancels = stop_waiting(self, commands)
        end = continuation = None
        if commands.end is not None:
            self.ended = True
            cancels += self.children.values()
            if isinstance(commands.end, Continued):
                continuation = continuation_of(self, commands.end)
            else:
                end = self._end(commands.end)
        published, items = rows_of(self.id, commands.outputs, at, self._encode) if commands.outputs else ((), ())
        staged: ArtifactWrites | None = None
        if self.has_staged and commands.outputs:
            staged = artifacts_of(self.id, self.workflow.name, commands.outputs, at, self.ids, self.codec)
        return Advance(
            run_id=self.id,
            at=at,
            claim=self.claim,
            cause=cause if end is None else "ended",
            entries=entries,
            waits=tuple(waits),
            waits_dropped=(*dropped, *more_dropped),
            events_read=read,
            read_ahead=answered.read_ahead,
            consumed=consumed,
            starts=(*answered.starts, *children),
            cancels=tuple(cancels),
            undo=answered.undo,
            published=published,
            stream_items=items,
            artifacts=staged,
            tasks=tuple(tasks),
            idle=end is None and continuation is None and self.idle,
            end=end,
            continuation=continuation,
        )

    def _answer_at_once(self, commands: Commands, at: int, entries: tuple[Entry, ...]) -> Pieces[AnsweredAtOnce]:
        """Answer the requests that can be answered at once, and go on with the run. These are ids of children that are
        started and not awaited, registrations of compensations, and events that were sent before. All of this is
        committed together afterwards.
        """
        total = Merged()
        answered = AnsweredAtOnce(commands, [*entries])
        # An advance that is not committed yet may wait for the events that are now in the mailbox.
        ahead = None if self.gate or self._box is None else ReadAhead(self.id, self._box(self.id), self.codec)
        asked = deque(commands.asks)
        total.add(commands)
        for number in count(1):
            if not asked or total.end is not None:
                break
            if number % PIECE_ITEMS_MAX == 0:
                yield
            ask = asked.popleft()
            text = self._text_at_once(ask, at, ahead, answered) if total.has(ask) else None
            if text is not None:
                total.answered(ask)
                entry, value, _ = self._ask_entry(ask, text, None, at)
                answered.entries.append(entry)
                more = self.took(self.loop.complete_ask(ask.position, at, value=value))
                total.add(more)
                asked += more.asks
        answered.commands = total.commands()
        answered.read_ahead = () if ahead is None else tuple(ahead.event_ids)
        return answered

    def _text_at_once(self, ask: Ask, at: int, ahead: ReadAhead | None, answered: AnsweredAtOnce) -> str | None:
        """Return the answer to a request as JSON, if the request can be answered at once. Otherwise return None."""
        if ask.kind == "wait":
            return None if ahead is None else ahead.read(ask, at)
        if ask.kind == "start" and ask.what.id is None:
            child_id = self.ids(at)
            answered.starts.append(start_of(self, ask, child_id, at))
            return to_json(child_id).decode()
        if ask.kind == "compensate":
            answered.undo += 1
            text: str = ask.what.text
            return text
        return None

    def _end(self, end: Any) -> End:
        if self.undone_for is not None:
            return end_of_rollback(end, self.undone_for, self.codec)
        status, outcome = outcome_of(end, self.workflow, self.codec, self.payload_max, self.id, self.loop.elapsed)
        return End(status=status, outcome=outcome, has_waited=self.has_waited, has_staged=self.has_staged)

    def took(self, commands: Commands) -> Commands:
        """Keep track of the requests in these commands, and mark the outputs."""
        for request in commands.steps:
            self.requests[request.position] = request
        if commands.only_steps:
            return commands
        if commands.outputs:
            numbered = enumerate(commands.outputs, 1)
            commands.outputs = [replace(output, mark=(self.seq, number)) for number, output in numbered]
            self.has_staged = self.has_staged or any(isinstance(output, ArtifactOutput) for output in commands.outputs)
        if commands.asks:
            for ask in commands.asks:
                self.asks[ask.position] = ask
                if ask.kind == "start":
                    self.starting[ask.position] = None
        if commands.asks_withdrawn:
            for position in commands.asks_withdrawn:
                self.asks.pop(position, None)
                self.starting.pop(position, None)
        if commands.steps_cancelled:
            for position in commands.steps_cancelled:
                self.requests.pop(position, None)
        return commands

    @property
    def is_stuck(self) -> bool:
        """Whether the run waits although none of its requests is outstanding."""
        return self.idle and not self.pausing and not self.loop.outstanding_timers and not self.asks

    def close(self) -> None:
        at_once(self.close_in_pieces())

    def close_in_pieces(self) -> Pieces[None]:
        """End the unfinished tasks of the run's code, and its timers. The first piece makes the run unusable."""
        self.ended = True
        for start, part in parts([*self.timers.values()]):
            if start:
                yield
            for timer in part:
                timer.cancel()
        self.timers.clear()
        yield from self.loop.close_in_pieces()
        self.loop.about = None  # The CurrentRun refers back to the loop.


__all__ = ["Fired", "LiveRun", "Mismatch"]
