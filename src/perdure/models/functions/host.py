"""The functions' part of an engine: keeps runs live, performs what the kernel decided for them, evicts and replays.

Everything here happens in plain callbacks of the process's loop. Nothing is written here: progress becomes ops that are
owed to the coordinator, and what they ask for waits at each run's gate until they are committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.coordinator.notices import Outage
from perdure.coordinator.timers import Timers
from perdure.errors import Misuse, RowDamaged, StoreError
from perdure.kernel.effects import Begin, Deliver, Drop, Finish
from perdure.kernel.mailboxes import Mailbox
from perdure.kernel.ops import Advance, Op, Release, SetHold
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.records import Engine, Failure, Hold, Run, Staged, Wait
from perdure.kernel.status import Status
from perdure.models.common.blame import Blame, Request
from perdure.models.common.deployment import deployed
from perdure.models.common.fence_check import Proof
from perdure.models.functions.ahead import Ahead
from perdure.models.functions.answers import Answering
from perdure.models.functions.artifacts import Staging
from perdure.models.functions.closings import Closings
from perdure.models.functions.define import Workflow
from perdure.models.functions.journal_reader import Loader, missing_entry
from perdure.models.functions.loop import Commands, Livelock, StepRequest, TimerRequest
from perdure.models.functions.resumption import resume, steps_anew, undelivered
from perdure.models.functions.runner import LiveRun, Mismatch
from perdure.models.functions.steps import Execution, StepRunner
from perdure.models.functions.stream_writer import StreamWriter
from perdure.models.functions.transactions import Transactions
from perdure.ports import Clock, Codec, Ids, Journal, Store
from perdure.values.failures import to_failure

log = logging.getLogger("perdure")
# A run whose timer is due within this time is not given up, or it would be read again at once. A graph that routes for
# long goes on by such timers.
_SOON_US: Final = 1_000


class FunctionHost(Answering):
    """All function runs that this engine has in memory."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        codec: Codec,
        ids: Ids,
        timers: Timers,
        enqueue: Callable[[Op], None],
        submit: Callable[[Op], Awaitable[Any]],
        submit_internal: Callable[[Sequence[Op]], Awaitable[list[Any]]],
        request: Request,
        check_fence: Callable[[], Awaitable[object]],
        stopping: Container[str],
        me: Callable[[], Engine],
        lookup: Callable[[str], Run | None],
        mailbox: Callable[[str], Mailbox],
        dropped: Callable[[str, int | None], None],
        workflows: Mapping[tuple[str, str], Workflow[Any, Any]],
        resources: Callable[[type[Any]], Any],
        live_runs_max: int,
        callbacks_max: int,
        payload_bytes_max: int,
        steps_max: int,
        threads_max: int,
        processes_max: int | None,
    ) -> None:
        if steps_max < 1:
            raise Misuse(f"steps_max is at least 1, not {steps_max}")
        self._store = store
        self._clock = clock
        self._codec = codec
        self._ids = ids
        self._timers = timers
        self._outage = Outage("runs")
        self._owe = enqueue
        self._submit = submit
        self._lookup = lookup
        self._box = mailbox
        self._dropped = dropped
        self._workflows = workflows
        self._live_runs_max = live_runs_max
        self._is_crowded = False  # When a run came last, more than half of the runs that may be here were.
        self._callbacks_max = callbacks_max
        self._payload_bytes_max = payload_bytes_max
        self._steps_max = steps_max
        self._loader = Loader(store, timers.go_on)
        self._ahead = Ahead(clock, self._made)
        self.forgo = self._ahead.forgo
        self._live: dict[str, LiveRun] = {}
        self._waking: dict[str, asyncio.Future[Journal]] = {}
        self._replaying: dict[str, LiveRun] = {}  # those of them whose journal is read
        self._arrived: dict[str, list[Deliver]] = {}  # for runs that are being woken
        self._fetching: set[asyncio.Task[None]] = set()
        self._leaving: set[str] = set()
        self.closings = Closings()
        self._active: set[Execution] = set()
        self._queued: OrderedDict[Execution, None] = OrderedDict()  # wait for their turn, in the order of coming
        self._blame = Blame(clock, request)
        self._recovered = self._blame.watched
        self._draining = False
        self._drained = asyncio.Event()
        self._drained.set()
        self._steps = StepRunner(
            clock=clock,
            timers=timers,
            resources=resources,
            threads_max=threads_max,
            processes_max=processes_max,
            payload_max=payload_bytes_max,
            speaking=StreamWriter(clock, codec, payload_bytes_max, submit_internal, self._background),
            staging=Staging(clock, codec, ids, payload_bytes_max, submit_internal, enqueue),
            finished=self._step_finished,
            delayed=self._step_delayed,
            paused=self._paused,
            again=self._attempt,
            beaten=self._step_beat,
            blame=self._blame,
            proof=Proof(store.is_surely_alive, check_fence, stopping),
            transactions=Transactions(store, codec, me, check_fence, self._step_broken),
        )

    @property
    def threads(self) -> ThreadPoolExecutor:
        """Where plain functions run."""
        return self._steps.threads

    @property
    def steps_running(self) -> int:
        """Steps whose body runs now: those that pause between two attempts or wait for their turn are not counted."""
        return len(self._active)

    @property
    def busy(self) -> bool:
        """Whether something is going on here that no timer is needed for."""
        return bool(self._waking or self._fetching)

    @property
    def reading(self) -> int:
        """How many runs are being read, to come back to life."""
        return len(self._waking)

    @property
    def live_runs(self) -> int:
        return len(self._live)

    def proceed(self, run_id: str) -> None:
        """A run's earliest advance that was not committed yet is: do what it asks for."""
        live = self._live.get(run_id)
        if live is None or not live.gate:
            return
        match live.gate.popleft():
            case Commands() as commands:
                self._release(live, commands)
            case release:
                release()

    def perform(self, effect: Begin | Deliver | Drop | Finish) -> None:
        """Do what was decided and is now committed."""
        match effect:
            case Begin():
                self._begin(effect.run, effect.input, is_ahead=effect.is_ahead)
            case Finish():
                self._close(effect.run.id)
            case Deliver():
                self._deliver(effect)
            case Drop():
                self._drop(effect.run_id)

    async def drain(self, grace_s: float) -> None:
        """Start nothing new; wait until the steps that run have ended, or for the grace period."""
        self._draining = True
        if self._active:
            self._drained.clear()
            try:
                await asyncio.wait_for(self._drained.wait(), grace_s)
            except TimeoutError:
                log.warning("%d steps did not end within %s s and will run again", len(self._active), grace_s)
        for live in self._live.values():
            for execution in live.running.values():
                execution.flush()

    def closing(self) -> Pieces[None]:
        """Close every run in memory, in pieces: the first part of `close`. See `closings` for what is left then."""
        self._draining = True
        for start, part in parts([*self._live, *self._waking]):
            if start:
                yield
            for run_id in part:
                self._close(run_id)

    def close(self) -> None:
        """Close every run in memory. Writes nothing."""
        at_once(self.closing())
        self.closings.finish()
        self._ahead.close()
        for task in self._fetching:
            task.cancel()
        self._loader.close()
        self._steps.close()

    # Coming to life.

    def prepare(self, run: Run, journal: Journal) -> Advance | None:
        """Let a run go on that nobody has; what it does, to be committed with the claim. See ahead.py."""
        if self._draining or run.model == "operation" or missing_entry(journal.entries) is not None:
            return None
        return self._ahead.prepare(run, journal)

    def _begin(self, run: Run, input: str | None, *, is_ahead: bool) -> None:
        if run.id in self._live or run.id in self._waking:
            self._close(run.id)  # It begins anew: as another call, or to be undone.
        if is_ahead and not self._draining and (adopted := self._ahead.adopt(run)) is not None:
            live, timers = adopted
            self._blame.forget(run.id)  # It has made progress.
            self._arm(live, timers)
            self._enter(live)
            return
        if self._ahead.runs:
            self._ahead.forgo(run.id)
        if input is None:
            self._wake(run)
            return
        if (created := self._claimed(run)) is not None:
            self._enter(created)
            self._guarded(created, self._began, run, input)

    def _claimed(self, run: Run) -> LiveRun | None:
        live = self._made(run)
        if live is None:
            self._hold(run.id, run.claim, f"this engine has no workflow {run.workflow!r}")
            return None
        self._blame.watch(run)
        return live

    def _made(self, run: Run) -> LiveRun | None:
        workflow = self._workflows.get((run.workflow, run.workflow_version))
        if workflow is None:
            return None
        limits = self._payload_bytes_max, self._callbacks_max
        return LiveRun(run, workflow, self._codec, self._ids, *limits, self._box)

    def _enter(self, live: LiveRun) -> None:
        self._live[live.id] = live
        count = len(self._live)
        self._is_crowded = count * 2 > self._live_runs_max
        if count > self._live_runs_max:
            self._evict()

    def _began(self, live: LiveRun, run: Run, input: str) -> None:
        commands = live.begin(input, run.started_at or run.created_at)
        if commands.end is None and not (commands.timers or commands.asks or commands.outputs) and not live.idle:
            self._release(live, commands)  # Only steps, and nothing before them that is not committed.
        else:
            self._progressed(live, live.advance(commands, self._now(live), "started"))

    def _wake(self, run: Run) -> None:
        """Bring a run back to life from its journal."""
        if run.id in self._waking or run.id in self._live or self._draining:
            return
        reading = self._loader.load(run.id)
        if run.status is Status.ROLLING_BACK:
            reading = asyncio.get_running_loop().create_task(self._with_cause(run, reading))
        self._waking[run.id] = reading
        reading.add_done_callback(partial(self._loaded, run))

    async def _with_cause(self, run: Run, reading: Awaitable[Journal]) -> Journal:
        """What a run has done, and what it is undone for."""
        journal = await reading
        failure = (await self._store.get([run.id]))[run.id].outcome.failure or ""
        return replace(journal, failure=failure)

    def _loaded(self, run: Run, reading: asyncio.Future[Journal]) -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if self._waking.get(run.id) is not reading:  # It was dropped, and perhaps claimed again, in the meantime.
            return
        missing = None if error is not None else missing_entry(reading.result().entries)
        if error is None and missing is None:
            self._outage.worked()
            self._replay(run, reading.result())
            return
        del self._waking[run.id]
        if isinstance(error, StoreError):
            self._outage.failed(f"run {run.id} could not be read and is tried again", error)
            self._timers.after(1_000_000, lambda: self._wake_again(run))
        elif error is not None:
            log.error("run %s cannot be read", run.id, exc_info=error)
            self._hold(run.id, run.claim, f"its journal cannot be read: {error}")
        else:
            damage = RowDamaged.at("journal", run.id, "seq", missing, "there are later entries, and not this one")
            log.error("run %s cannot be read: %s", run.id, damage)
            self._hold(run.id, run.claim, f"its journal cannot be read: {damage}")

    def _wake_again(self, run: Run) -> None:
        now = self._lookup(run.id)
        if now is not None and now.claim == run.claim:
            self._wake(now)

    def _replay(self, run: Run, stored: Journal) -> None:
        live = None if self._draining else self._claimed(run)
        if live is None:
            del self._waking[run.id]
            self._arrived.pop(run.id, None)
            return
        at = run.started_at or run.created_at
        if run.status is Status.ROLLING_BACK:
            work = live.undo(stored.input, stored.entries, at, stored.failure)
        else:
            work = live.replay(stored.input, stored.entries, at, is_begun=bool(stored.waits))
        self._replaying[run.id] = live
        self._replay_on(live, run, stored, work)

    def _replay_on(self, live: LiveRun, run: Run, stored: Journal, work: Pieces[Commands]) -> None:
        """Go on with a replay, one piece in each turn. Until it is done the run counts as being woken: what arrives for
        it is kept, and whoever drops it closes it."""
        if self._replaying.get(run.id) is not live:
            return
        if self._draining:
            self._close(run.id)
            return
        activate: Callable[[], None]
        try:
            next(work)
        except StopIteration as done:
            activate = partial(self._guarded, live, self._replayed, run, stored, done.value)
        except Exception as error:  # noqa: BLE001 - as in _guarded
            activate = partial(self._set_aside, live, error)
        else:
            asyncio.get_running_loop().call_soon(self._replay_on, live, run, stored, work)
            return
        del self._replaying[run.id], self._waking[run.id]
        arrived = self._arrived.pop(run.id, [])
        self._enter(live)
        activate()
        for effect in (*arrived, *undelivered(run.id, stored.waits, self._box(run.id))):
            self._deliver(effect)

    def _replayed(self, live: LiveRun, run: Run, journal: Journal, commands: Commands) -> None:
        if journal.staged:
            live.find_staged(journal.staged)
        resumed = resume(live, commands, journal.waits, self._clock.now())
        stored = {wait.position: wait for wait in journal.waits}
        for ask in resumed.asks:
            if ask.kind == "child":
                live.children[ask.position] = stored[ask.position].target or ""
        for position in live.requests.keys() & stored.keys():
            wait = stored[position]
            details = None if wait.details is None else self._codec.decode(wait.details)
            live.retries[position] = replace(wait, details=details)
            if wait.kind == "retry" and position not in live.staged:
                live.pausing[position] = None
        steps_anew(live, commands, self._clock.now())
        is_asleep = run.status is Status.SUSPENDED or (run.status is Status.ROLLING_BACK and live.idle)
        if resumed.is_all_of(commands) and live.idle == is_asleep and not live.is_stuck:
            commands.timers, commands.asks = resumed.timers, resumed.asks
            self._release(live, commands)
            return
        advance = live.advance(commands, self._now(live), "recovered")
        fresh = live.gate[-1]

        def release() -> None:
            assert isinstance(fresh, Commands)
            self._release(live, fresh)
            self._arm(live, resumed.timers)
            self._arm_asks(live, resumed.asks)

        live.gate[-1] = release
        self._progressed(live, advance)

    def _evict(self) -> None:
        """Give up the runs that have been waiting longest; whoever can go on with them takes them up again."""
        excess = len(self._live) - len(self._leaving) - self._live_runs_max
        if excess <= 0:
            return
        soon = self._clock.now() + _SOON_US
        for run_id, live in self._live.items():
            if run_id in self._leaving or live.gate or live.ended or live.pausing or live.fetching:
                continue
            if any(timer.due_at <= soon for timer in live.timers.values()):
                continue
            if live.idle and live.has_waited:  # One that has not begun has asked for nothing.
                self._leaving.add(run_id)
                self._owe(Release(run_id=run_id, at=self._clock.now(), claim=live.claim))
                excess -= 1
                if excess <= 0:
                    return

    def _drop(self, run_id: str) -> None:
        """A run is no longer ours: say when it is due, if it is."""
        live = self._live.get(run_id)
        due_at: int | None = None
        if live is not None and (live.gate or live.fetching):
            due_at = self._clock.now()  # It had got on, which nobody will commit now: it does so again at once.
        elif live is not None:
            due_at = min((timer.due_at for timer in live.timers.values()), default=None)
        self._close(run_id)
        self._dropped(run_id, due_at)

    # Going on.

    def _guarded(self, live: LiveRun, activate: Callable[..., None], *args: Any) -> None:
        """Activate a run; whatever is wrong with it concerns it alone."""
        try:
            activate(live, *args)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is told
            self._set_aside(live, error)

    def _set_aside(self, live: LiveRun, error: BaseException) -> None:
        if isinstance(error, Mismatch):
            self._hold(live.id, live.claim, f"the code does not fit the journal: {error}", error.details, live)
        elif isinstance(error, Livelock):
            self._hold(live.id, live.claim, str(error).partition("; it stands at")[0], error.stack, live)
        else:
            log.error("run %s cannot go on", live.id, exc_info=error)
            self._hold(live.id, live.claim, f"engine bug: {error!r}", to_failure(error).stack, live)

    def _progressed(self, live: LiveRun, advance: Advance) -> None:
        if self._leaving:
            self._leaving.discard(live.id)
        if self._recovered and advance.entries:
            self._blame.forget(live.id)
        self._owe(advance)
        if advance.idle and live.is_stuck:
            reason = "the workflow waits for something that can never happen: nothing that it asked for is outstanding"
            self._hold(live.id, live.claim, reason, live.loop.stack(), live)

    def _release(self, live: LiveRun, commands: Commands) -> None:
        """The gate opens: what was asked for may touch the outside."""
        if not commands.only_steps:
            for position in commands.steps_cancelled:
                self._stop_step(live, position)
            for position in (*commands.timers_dropped, *commands.asks_withdrawn):
                if (timer := live.timers.pop(position, None)) is not None:
                    timer.cancel()
            self._arm(live, commands.timers)
            self._arm_asks(live, commands.asks)
        for request in commands.steps:
            position = request.position
            if live.requests.get(position) is not request or live.ended or self._draining:
                continue
            if position in live.staged:
                self._guarded(live, self._take_staged, request, live.staged.pop(position))
                continue
            live.running[position] = execution = Execution(self._steps, live, request)
            wait = live.retries.get(position) if live.retries else None
            if wait is None:
                self._attempt(execution)
            else:
                execution.resume_from(wait)
                if wait.kind == "retry":
                    self._pause(execution, wait)
                else:
                    self._attempt(execution)
        if not commands.steps and len(self._live) > self._live_runs_max and live.idle:
            self._evict()

    def _take_staged(self, live: LiveRun, request: StepRequest, staged: Staged) -> None:
        self._progressed(live, live.step_staged(request, staged, self._clock.now()))

    def _attempt(self, execution: Execution) -> None:
        if execution.dropped or execution.live.ended or self._draining:
            return
        if len(self._active) >= self._steps_max:
            self._queued[execution] = None
            execution.queue()
            self._blame.rest(execution.live.id)
            return
        self._active.add(execution)
        if not self._recovered:
            self._begin_attempt(execution)
        elif execution.step.is_async or execution.step.transactional:
            self._blame.enter(execution.live.id, execution, partial(self._begin_counted, execution))
        else:
            self._begin_attempt(execution)
            self._blame.rest(execution.live.id)  # Until it has a thread or a process.

    def _begin_counted(self, execution: Execution) -> None:
        """The run is counted as executing, which may have taken a commit."""
        if execution.dropped:
            return
        if self._draining:
            self._inactive(execution)
        else:
            self._begin_attempt(execution)

    def _begin_attempt(self, execution: Execution, *, is_proven: bool = False) -> None:
        if not (is_proven or execution.may_begin):
            self._background(self._begin_once_proven(execution))
            return
        try:
            execution.begin()
        except Exception as error:  # noqa: BLE001 - it cannot even be called: that is how it failed
            asyncio.get_running_loop().call_soon(self._step_finished, execution, None, error)

    async def _begin_once_proven(self, execution: Execution) -> None:
        """Perhaps the process was stopped for a while: if this engine was taken for dead, its runs are dropped here. So
        is a run that is being stopped from outside."""
        await self._steps.proof.make(lambda: execution.dropped)
        if not execution.dropped:
            self._begin_attempt(execution, is_proven=True)

    def _paused(self, execution: Execution) -> None:
        """An attempt has failed, and the next one follows within a second."""
        self._inactive(execution)
        self._blame.rest(execution.live.id)

    def _inactive(self, execution: Execution) -> None:
        self._active.discard(execution)
        if self._recovered:
            self._blame.leave(execution.live.id, execution)
        if self._queued:
            self._queued.pop(execution, None)
            while self._queued and len(self._active) < self._steps_max:
                self._attempt(self._queued.popitem(last=False)[0])
        if self._draining and not self._active:
            self._drained.set()

    def _stop_step(self, live: LiveRun, position: str) -> None:
        if (execution := live.running.pop(position, None)) is not None:
            execution.drop()
            self._inactive(execution)
        if (timer := live.timers.pop(position, None)) is not None:
            timer.cancel()

    def _step_finished(self, execution: Execution, value: Any, error: BaseException | None) -> None:
        live, request = execution.live, execution.request
        self._inactive(execution)
        unsaid = () if execution.speaker is None else execution.discard_pending()
        if live.running.pop(request.position, None) is None or live.ended:
            return
        if live.requests.get(request.position) is not request:
            return
        if self._is_crowded:
            self._touch(live)
        try:
            if error is None and execution.step.signature.tells_staged and not execution.step.transactional:
                value = self._steps.staging.told(execution.stager, value)
            if execution.step.transactional and error is None:
                advance = live.step_staged(request, value, self._clock.now())
            else:
                advance = live.step_done(
                    request,
                    value,
                    error,
                    history=execution.history,
                    started_at=execution.started_at,
                    attempts=execution.attempt or 1,
                    at=self._clock.now(),
                )
        except Exception as trouble:  # noqa: BLE001 - as in _guarded, without a call more on the hot path
            self._set_aside(live, trouble)
        else:
            if (stager := execution.stager) is not None:
                execution.stager = None
                advance = self._steps.staging.kept(execution, stager, advance)
            if unsaid:
                advance = replace(advance, stream_items=unsaid + advance.stream_items, plain=False)
            self._progressed(live, advance)

    def _step_broken(self, execution: Execution, error: BaseException) -> None:
        """The codec cannot take what a step came to, which is rolled back: the run waits for a person."""
        live = execution.live
        self._inactive(execution)
        if live.running.pop(execution.request.position, None) is not None and not live.ended:
            self._set_aside(live, error)

    def _step_delayed(self, execution: Execution, due_at: int, error: BaseException) -> None:
        """A step pauses for longer than a second: make that durable, with the attempts made."""
        live, request = execution.live, execution.request
        self._inactive(execution)
        if live.ended or live.requests.get(request.position) is not request:
            return
        self._guarded(live, self._keep, execution, "retry", to_failure(error, history=execution.history), due_at)

    def _step_beat(self, execution: Execution) -> None:
        """A step said how far it got: make that durable, for the next attempt."""
        live, request = execution.live, execution.request
        if live.ended or live.requests.get(request.position) is not request:
            return
        failed = execution.history[-1:]
        failure = Failure(type=failed[0].type, message=failed[0].message, history=execution.history) if failed else None
        self._guarded(live, self._keep, execution, "beat", failure, None)

    def _keep(
        self, live: LiveRun, execution: Execution, kind: str, failure: Failure | None, due_at: int | None
    ) -> None:
        """Have the store know of a step that has not ended."""
        position = execution.request.position
        wait = Wait(
            run_id=live.id,
            position=position,
            kind=kind,
            name=execution.request.name,
            due_at=due_at,
            attempts=len(execution.history),
            failure=None if failure is None else to_json(failure).decode(),
            since=execution.started_at,
            details=None if execution.details is None else self._codec.encode(execution.details),
        )
        live.has_waited = True
        live.retries[position] = wait
        if kind == "retry":
            live.pausing[position] = None
            live.gate.append(lambda: self._pause(execution, wait))
        else:
            live.gate.append(execution.details_written)
        cause = "step failed" if kind == "retry" else "heartbeat"
        at, claim = self._now(live), live.claim
        entries = live.take_outline(at)
        self._owe(
            Advance(run_id=live.id, at=at, claim=claim, cause=cause, entries=entries, waits=(wait,), idle=live.idle)
        )

    def _pause(self, execution: Execution, wait: Wait) -> None:
        live = execution.live
        if not execution.dropped and not live.ended:
            live.timers[wait.position] = self._timers.arm(wait.due_at or 0, lambda: self._pause_over(execution))

    def _pause_over(self, execution: Execution) -> None:
        """The run may be suspended: it is running again before the step is.

        The wait's row stays until the step ends, so that a crash does not forget the attempts made.
        """
        live, position = execution.live, execution.request.position
        live.timers.pop(position, None)
        if execution.dropped or live.ended or self._draining:
            return
        live.pausing.pop(position, None)
        live.gate.append(lambda: self._attempt(execution))
        self._owe(Advance(run_id=live.id, at=self._now(live), claim=live.claim, cause="retry due"))

    def _arm(self, live: LiveRun, timers: Sequence[TimerRequest]) -> None:
        for timer in timers:
            if live.loop.pending(timer.position) is not None and not live.ended:
                live.timers[timer.position] = self._timers.arm(timer.due_at, partial(self._timer_due, live, timer))

    def _timer_due(self, live: LiveRun, timer: TimerRequest) -> None:
        live.timers.pop(timer.position, None)
        if live.ended or self._draining or live.loop.pending(timer.position) is None:
            return
        if self._is_crowded:
            self._touch(live)
        self._guarded(live, self._go_on_at, timer)

    def _go_on_at(self, live: LiveRun, timer: TimerRequest) -> None:
        self._progressed(live, live.timer_fired(timer, self._clock.now()))

    def _now(self, live: LiveRun) -> int:
        return live.time(self._clock.now())

    def _touch(self, live: LiveRun) -> None:
        """Move a run to the young end, so that eviction meets the longest waiting first."""
        if live.id in self._live:
            self._live[live.id] = self._live.pop(live.id)

    # Ending.

    def _hold(self, run_id: str, claim: int, reason: str, details: str = "", live: LiveRun | None = None) -> None:
        if live is not None:
            live.ended = True
        workflow = live.workflow if live is not None else None
        hold = Hold(
            kind="blocked",
            reason=reason,
            details=details[:20_000],
            fingerprint=deployed(workflow) if workflow is not None else "",
            at=self._clock.now(),
        )
        self._owe(SetHold(run_id=run_id, at=hold.at, hold=hold, claim=claim))

    def _close(self, run_id: str) -> None:
        if self._leaving:
            self._leaving.discard(run_id)
        self._blame.forget(run_id)
        self._arrived.pop(run_id, None)
        if (reading := self._waking.pop(run_id, None)) is not None:
            reading.cancel()
        live = self._live.pop(run_id, None) or self._replaying.pop(run_id, None)
        if live is None:
            return
        for position in list(live.running):
            self._stop_step(live, position)
        self.closings.begin(run_id, live.close_in_pieces())
