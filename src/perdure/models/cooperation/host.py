"""The operations' part of an engine: keeps their runs in memory, makes the machine's next moves, and has them written.

A run does one thing at a time. A move that needs no code shares the commit of the move before it. Code runs once all
that it depends on is committed. The host writes nothing itself: it makes an op of what a run did, for the coordinator.
A run that is dropped before that op is committed is read again by the engine that takes it next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Protocol

from msgspec.structs import replace

from perdure.coordinator.notices import Outage
from perdure.coordinator.turns import in_turns
from perdure.errors import AskedMeanwhile, EngineBug, HandlersChanged, PerdureError, StoreError
from perdure.kernel import ops
from perdure.kernel.cooperation import token_tags
from perdure.kernel.effects import Begin, Drop, Examine, Finish, Notified
from perdure.kernel.operation_notices import ASK, JOIN, NEWS
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.rows import Staged
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.blame import Blame
from perdure.models.common.carriers import Carriers
from perdure.models.common.deployment import deployed
from perdure.models.common.eviction import Eviction
from perdure.models.common.fence_check import Proof
from perdure.models.common.host_parts import HostParts
from perdure.models.common.interrupts import is_by_signal
from perdure.models.common.slots import Slots
from perdure.models.common.transactions import CodecFailed
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.drafts import Drafts, Making
from perdure.models.cooperation.execution import StepExecution, Surroundings, armed, heartbeat, pause, recall
from perdure.models.cooperation.executor import AttemptContexts, Executor, TryAgain, effort_of, within_bounds
from perdure.models.cooperation.failures import to_failure
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.holds import Holds
from perdure.models.cooperation.live import Code, Draft, LiveOperation
from perdure.models.cooperation.machine import next_move
from perdure.models.cooperation.moves import Nothing, Raised
from perdure.models.cooperation.moves import Outcome as StepOutcome
from perdure.models.cooperation.moves import Wait as Waiting
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.revival import READ_AT_ONCE, Revival
from perdure.models.cooperation.rows import RowCodec, StoredScopes
from perdure.models.cooperation.runner import Blocked, OperationRunner
from perdure.models.cooperation.stored_hierarchy import Hierarchy
from perdure.models.cooperation.token_cancellation import read_scopes
from perdure.models.cooperation.transactions import Transactions
from perdure.models.cooperation.turns import Turns
from perdure.models.cooperation.unwritten_outcomes import Landings
from perdure.models.cooperation.versions import Operations
from perdure.models.cooperation.waits import awaited, stored_waits
from perdure.ports import Journal

log = logging.getLogger("perdure")

_AGAIN_US = 1_000_000


class MailReader(Protocol):
    """Reads the mail that commits of this engine have left for its own runs."""

    async def try_to_read_mail(self) -> None:
        """Read the mail now, if that can be done. If not, this or another engine reads it later."""
        ...


class Loading:
    """A run that is being read from the store. `notified` is the number of its last notification. If it `is_outdated`,
    it may have been read before that notification was written."""

    __slots__ = ("is_outdated", "notified", "run")

    def __init__(self, run: Run, notified: int) -> None:
        self.run = run
        self.notified = notified
        self.is_outdated = False

    @property
    def claim(self) -> int:
        return self.run.claim


class OperationHost:
    """All runs of operations that this engine has in memory."""

    def __init__(
        self,
        parts: HostParts,
        *,
        operations: Operations,
        registry: HandlerRegistry,
        threads: ThreadPoolExecutor,
        attempts: AttemptContexts,
        mail: MailReader,
    ) -> None:
        limits, store = parts.limits, parts.store
        self._store = store
        self._clock = parts.clock
        self._timers = parts.timers
        self._outage = Outage("runs of operations")
        self._enqueue = parts.coordinator.enqueue
        self._request = parts.coordinator.request
        self._lookup = parts.coordinator.loaded
        self._departures = parts.departures
        self._operations = operations
        self._registry = registry
        self._mail = mail
        self._payload_bytes_max = limits.payload_bytes_max
        self._blame = Blame(parts.clock, parts.coordinator)
        self._slots: Slots[StepExecution] = Slots(limits.steps_max, self, self._blame)
        self._landings = Landings(self._slots)
        self._codec = parts.codec
        self._rows = rows = RowCodec(parts.codec)
        self._surroundings = Surroundings(parts.clock, limits.payload_bytes_max, self)
        self._runner = OperationRunner(
            operations=operations, registry=registry, rows=rows, codec=parts.codec, ids=parts.ids, now=parts.clock.now
        )
        self._transactions = Transactions(parts)
        proof = Proof(store, parts.coordinator)
        self._executor = Executor(
            parts=parts,
            threads=threads,
            attempts=attempts,
            transactions=self._transactions,
            causes=CauseReader(store, rows, self._runner.notifications.failures),
            blame=self._blame,
            proof=proof,
        )
        self._holds = Holds(parts, rows, operations)
        self._revival = Revival(parts, rows, operations, self._holds)
        self._carriers = Carriers(proof)
        self._live: dict[str, LiveOperation] = {}
        self._expected: dict[str, LiveOperation] = {}  # new runs that are being committed
        self._loading: dict[str, Loading] = {}
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None
        self._background = BackgroundTasks()
        self._joining: set[str] = set()  # runs that wait for handlers which may have registered meanwhile
        self._eviction = Eviction(limits.live_runs_max, self)
        self._turns = Turns()
        self._drafts = Drafts(self._take_in)
        self._landed: list[tuple[LiveOperation, Draft]] = []  # just committed: see `proceed`

    @property
    def runner(self) -> OperationRunner:
        return self._runner

    @property
    def steps_running(self) -> int:
        return len(self._slots)

    @property
    def busy(self) -> bool:
        """Whether the host has work to do that waits for no timer."""
        is_going_on = self._turns.waiting or self._drafts.busy
        return bool(self._loading or self._background or is_going_on or self._reading is not None)

    @property
    def live_runs(self) -> int:
        return len(self._live)

    def perform(self, effect: Begin | Drop | Examine | Finish | Notified) -> None:
        """Perform an effect of a committed decision."""
        match effect:
            case Begin():
                self._begin(effect)
            case Notified():
                self._notified(effect)
            case Finish():
                self._close(effect.run.id)
            case Examine():
                self._background.start(self._holds.examine(effect.run))
            case Drop():
                self._drop(effect.run_id)

    def examine_left(self) -> None:
        """Complete the holds of runs whose rows no engine has examined: see `Holds.examine_left`."""
        if self._operations:
            self._background.start(self._holds.examine_left())

    async def drain(self, grace_s: float) -> None:
        """Start nothing new. Wait until running code has ended, or for the grace period, and until all drafts are
        complete."""
        for execution in self._slots:
            execution.flush()
        await self._slots.drain(grace_s)
        await self._drafts.drain()

    def closing(self) -> Pieces[None]:
        """Close every run in memory, in pieces: the first part of `close`."""
        self._slots.is_closed = True
        for start, part in parts([*self._live]):
            if start:
                yield
            for run_id in part:
                self._close(run_id)

    def close(self) -> None:
        """Close every run in memory. Writes nothing."""
        at_once(self.closing())
        self._background.close()
        if self._reading is not None:
            self._reading.cancel()
        self._carriers.close()

    # Notifications.

    def expect(self, began: Iterable[LiveOperation]) -> None:
        """Keep new runs that are about to be committed, and that this engine begins after the commit."""
        for live in began:
            self._expected[live.id] = live

    def _notified(self, effect: Notified) -> None:
        loading = self._loading.get(effect.run_id)
        if loading is not None:
            loading.notified, loading.is_outdated = effect.number, True
            return
        live = self._live.get(effect.run_id)
        if live is None:
            return  # The engine that takes the run next reads the notification with it.
        if live.is_drafting:
            self._drafts.defer(live, effect)
        else:
            self._take_in(live, effect)

    def _take_in(self, live: LiveOperation, effect: Notified) -> None:
        notice = effect.notice
        self._eviction.stays(live.id)
        live.notified = effect.number
        if notice.kind == JOIN:
            self._joining.add(live.id)
        elif notice.kind != NEWS:
            live.asked = live.notified
            self._landings.withdraw(live)
        if notice.kind == NEWS and notice.about and live.take_in(self._runner.notifications.read_report(notice.about)):
            self._go_on(live)
        elif notice.kind == ASK and notice.about and not live.is_stale:
            live.ask(self._runner.notifications.read_ask(notice.about))
            self._turns.soon(live, partial(self._go_on, live))
        else:
            self._read_anew(live)

    # Reading runs.

    def _begin(self, effect: Begin) -> None:
        run = effect.run
        expected = self._expected.pop(run.id, None)
        known = self._live.get(run.id)
        if known is not None and known.claim == run.claim and not known.is_closed:
            return  # It has begun already: recovery claimed it while a conflict had it read from the store.
        if known is not None:
            self._close(run.id)
        parent = self._live.get(run.parent_id or "")
        # A token of its own may have been cancelled before this run existed and could be notified. What its parent is
        # asked meanwhile, this run is asked too.
        is_asked = bool(token_tags(run.tags)) or (parent is not None and parent.is_stale)
        if expected is None or effect.input is None or is_asked:
            self._loading[run.id] = Loading(run, effect.notified)
            self._want(run.id)
            return
        if parent is not None:
            expected.asks = parent.asks
        self._live[run.id] = expected
        self._turns.soon(expected, partial(self._go_on, expected))
        self._evict()

    def _read_anew(self, live: LiveOperation) -> None:
        live.is_stale = True
        self._want(live.id)

    def _want(self, run_id: str) -> None:
        self._wanted[run_id] = None
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="perdure-scopes")

    async def _read(self) -> None:
        at_once = READ_AT_ONCE  # After damaged rows were met, runs are read one by one until all are read.
        try:
            while self._wanted:
                ids = [self._wanted.popitem(last=False)[0] for _ in range(min(at_once, len(self._wanted)))]
                try:
                    scopes = await read_scopes(self._store, self._rows, ids)
                    journals = await self._journals(ids)
                    await self._load_registry(ids)
                except StoreError as error:
                    self._outage.failed(f"{len(ids)} runs could not be read and are tried again", error)
                    self._timers.after(_AGAIN_US, partial(self._want_again, ids))
                    continue
                except Exception as error:  # noqa: BLE001 - whatever their rows hold, other runs go on
                    at_once = 1
                    if len(ids) > 1:  # Reading them one by one shows whose rows are damaged.
                        self._wanted.update(dict.fromkeys(ids))
                    elif (run := self._loading.pop(ids[0], None) or self._live.get(ids[0])) is not None:
                        self._holds.unreadable(ids[0], run.claim, error)
                    continue
                self._outage.worked()
                hierarchy = await in_turns(scopes.hierarchy_in_pieces())
                for run_id in ids:
                    await in_turns(self._found(run_id, scopes, hierarchy, journals.get(run_id)))
                await asyncio.sleep(0)  # Not every store gives the loop a turn when it is read.
        except Exception:
            log.exception("runs of operations could not be read")
        finally:
            self._reading = None

    async def _load_registry(self, ids: Sequence[str]) -> None:
        """Read the registry again where it must be current: runs are being revived, or handlers have registered."""
        if any(run_id in self._loading or run_id in self._joining for run_id in ids):
            self._joining.difference_update(ids)
            await self._registry.load(again=True)

    async def _journals(self, ids: Iterable[str]) -> Mapping[str, Journal]:
        """Return what is stored of the code of runs that are being read: its outcome, if that is committed but has not
        become rows, and its failed attempts. A run that has never begun has neither."""
        loading = [one.run for run_id in ids if (one := self._loading.get(run_id)) is not None]
        asked = [run.id for run in loading if run.status is not Status.CREATED]
        return await self._store.journals(asked) if asked else {}

    def _want_again(self, ids: Iterable[str]) -> None:
        for run_id in ids:
            if run_id in self._loading or run_id in self._live:
                self._want(run_id)

    def _found(self, run_id: str, scopes: StoredScopes, hierarchy: Hierarchy, journal: Journal | None) -> Pieces[None]:
        loading = self._loading.get(run_id)
        if loading is None:
            yield from self._found_anew(run_id, scopes, hierarchy)
            return
        if self._is_superseded(loading):
            return
        is_staged = journal is not None and bool(journal.staged)
        live = yield from self._revival.revived(loading.run, scopes, hierarchy, is_staged=is_staged)
        if self._is_superseded(loading):
            return
        del self._loading[run_id]
        if live is None or self._slots.is_closed:
            return
        live.notified = loading.notified
        self._live[run_id] = live
        self._blame.watch(loading.run)
        if journal is not None:
            recall(live, journal, self._codec)
        if loading.is_outdated:
            self._read_anew(live)
        else:
            self._go_on(live, is_loaded=True)
        self._evict()

    def _is_superseded(self, loading: Loading) -> bool:
        """Return whether a run was closed while it was read, or is to be read once more.

        In the second case, what was read may be older than the commit because of which the run is read.
        """
        return self._loading.get(loading.run.id) is not loading or loading.run.id in self._wanted

    def _found_anew(self, run_id: str, scopes: StoredScopes, hierarchy: Hierarchy) -> Pieces[None]:
        if run_id not in self._live or run_id not in scopes.runs:
            return
        view = yield from hierarchy.view_in_pieces(scopes.runs[run_id], self._clock.now())
        live = self._live.get(run_id)
        if live is not None and live.is_stale:
            live.is_stale = run_id in self._wanted
            live.learn(view, hierarchy.values_of(view))
            if not live.is_stale and not self._landings.land(live):
                self._go_on(live)

    async def waiting(self, runs: Sequence[Run]) -> set[str]:
        """Return which of these runs wait for other runs or for a time. No engine has them in memory. Raises
        StoreError."""
        return await self._revival.waiting(runs)

    # Going on.

    def _go_on(self, live: LiveOperation, *, is_loaded: bool = False) -> None:
        """Go on from the run's rows: write the moves that need no code, then run code or wait."""
        if live.is_busy or live.is_closed or live.is_stale:
            return
        run = self._lookup(live.id)
        if run is None or run.claim != live.claim:
            return
        if live.staged is not None:
            self._land_staged(live, live.staged)
            return
        self._drafts.make(live, self._draft(live, run.status, is_loaded=is_loaded))

    def _draft(self, live: LiveOperation, status: Status, *, is_loaded: bool) -> Making:
        try:
            draft = yield from self._runner.go_on(live, Draft(status), self._clock.now())
        except Blocked as blocked:
            self._hold(live, str(blocked))
            return None
        if live.attempts is not None and draft.code is not None:
            pause(live, draft, draft.code, self._codec, self._clock.now())
        return (yield from self._write(live, draft, is_loaded=is_loaded))

    def _write(
        self, live: LiveOperation, draft: Draft, *, is_loaded: bool = False, again: Callable[[], None] | None = None
    ) -> Making:
        run = self._lookup(live.id)
        if run is None or run.claim != live.claim:
            return None  # Another engine has the run by now, and this one is about to drop it.
        draft.asked, notified = live.asked, live.notified
        waits, gone = stored_waits(live, run, draft, is_loaded=is_loaded)
        is_same = draft.status is run.status and not (draft.rows or draft.notices or draft.runs or waits or gone)
        if is_same:
            if live.is_drafting:
                yield from self._drafts.take_in(live)
            return partial(self._committed, live, draft)
        now = self._clock.now()
        added = yield from self._runner.added(draft, now)
        starts: tuple[ops.Start, ...] = ()
        members: tuple[ops.NotifyMembers, ...] = ()
        if draft.runs:
            starts = yield from self._runner.emitter.starts(draft, run.tags, now, live.plan.strategy)
            members = yield from self._runner.emitter.members(draft, now)
            draft.has_members = bool(members)
        op = ops.Cooperate(
            run_id=live.id,
            at=now,
            claim=live.claim,
            cause=draft.cause,
            status=draft.status,
            added=added,
            starts=starts,
            notices=draft.notices,
            members=members,
            waits=waits,
            waits_dropped=gone,
            outcome=self._runner.outcome(draft),
            notified=-1 if live.is_stale else notified,
            awaits=awaited(live, draft),
            is_undone=live.rollback_request is not None,
            has_waited=live.has_waited,
            workflow_version=live.operation.stored_version if live.operation.version and draft.begins else "",
        )
        if live.is_drafting:
            yield from self._drafts.take_in(live)
        live.in_commit = True
        if draft.rows:
            self._blame.forget(live.id)
        if draft.began:
            self.expect(draft.began)
        self._request(op, partial(self._answered, live, draft, again))
        return None

    def _answered(
        self,
        live: LiveOperation,
        draft: Draft,
        again: Callable[[], None] | None,
        is_written: bool | None,
        error: BaseException | None,
    ) -> None:
        if is_written and not live.is_closed:
            draft.apply(live)
            self._runner.notifications.failures.note(draft.own)
            if draft.has_members:
                self._background.start(self._mail.try_to_read_mail())
            self._landed.append((live, draft))
            return
        live.forget()
        for began in draft.began:
            self._expected.pop(began.id, None)
        if live.is_closed:
            return
        if isinstance(error, HandlersChanged):
            self._background.start(self._write_again(live, again))
        elif isinstance(error, AskedMeanwhile):
            live.in_commit = False
            self._landings.land_later(live, again or partial(self._go_on, live))
            self._read_anew(live)

    def proceed(self) -> None:
        """Go on with runs whose drafts are committed.

        Call this after all effects of the commit are performed. Then a run that the same commit has notified has read
        the notification, and begins no step after it was asked to give up.
        """
        landed, self._landed = self._landed, []
        for live, draft in landed:
            live.in_commit = False
            try:
                self._committed(live, draft)
            except Exception:
                log.exception("run %s could not go on", live.id)

    async def _write_again(self, live: LiveOperation, again: Callable[[], None] | None) -> None:
        """Read the registry, which has changed, and write the same once more by its new version."""
        while not live.is_closed:
            try:
                await self._registry.load(again=True)
            except StoreError as error:
                self._outage.failed("the handlers could not be read and are tried again", error)
                await asyncio.sleep(0.1)
            else:
                break
        # The change may have met many runs, which then all come here at once.
        self._turns.soon(live, partial(self._once_more, live, again or partial(self._go_on, live)))

    def _once_more(self, live: LiveOperation, go_on: Callable[[], None]) -> None:
        live.in_commit = False
        if live.is_closed:
            return
        if live.is_stale:
            self._landings.land_later(live, go_on)
        else:
            go_on()

    def _committed(self, live: LiveOperation, draft: Draft) -> None:
        """Do what follows a commit: run code, or wait."""
        if live.is_closed or draft.state is not None:
            return
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        if draft.code is not None:
            if live.is_stale or live.asked > draft.asked:
                self._go_on(live)  # It was asked to give up after the draft was made, or may have been.
            else:
                self._execute(live, draft.code)
            return
        if draft.until is not None:
            live.timer = armed(live, draft.until, self._timers, self._clock.now(), partial(self._due, live))
            if live.attempts is not None and not live.attempts.is_durable:
                self._blame.rest(live.id)
        if self._has_changed(live, draft):
            self._go_on(live)
        else:
            self._eviction.rests(live.id)
            self._evict()

    def _has_changed(self, live: LiveOperation, draft: Draft) -> bool:
        """Return whether the run can go on, since it was notified while it was busy, or has not yet the status that it
        is to rest in."""
        run = self._lookup(live.id)
        if run is None or run.status is not draft.status:
            return run is not None
        now = self._clock.now()
        move = next_move(live.plan, live.view(now), live.progress)
        if isinstance(move, Code):
            return not live.is_pausing(move, now)
        # By its rows it may have ended: another engine may have it without this one's knowledge.
        return not isinstance(move, (Waiting, Nothing))

    def _due(self, live: LiveOperation) -> None:
        live.timer = None
        self._go_on(live)

    # Code.

    def _execute(self, live: LiveOperation, code: Code) -> None:
        if self._slots.is_closed:
            return
        live.execution = execution = StepExecution(self._surroundings, live, code, effort_of(live, code))
        self._slots.take(execution)

    def start(self, execution: StepExecution) -> None:
        """Start code whose turn has come."""
        execution.coroutine, execution.context = self._executor.prepare(execution)
        self._carriers.give(execution)

    def ended(
        self, execution: StepExecution, outcome: StepOutcome | TryAgain | None, error: BaseException | None
    ) -> None:
        """Go on with the outcome of code."""
        execution.end(is_tried_again=isinstance(outcome, TryAgain))
        self._slots.free(execution)
        if error is not None and is_by_signal(error):
            raise error  # A signal stops the process: the step runs again in the next one.
        live = execution.live
        if execution.dropped or live.is_closed or live.execution is not execution:
            return
        live.execution = None
        live.attempts = execution.attempts
        if isinstance(outcome, TryAgain):
            self._go_on(live)
            return
        if outcome is None:
            if isinstance(error, CodecFailed):
                log.error("run %s cannot go on", live.id, exc_info=error)
                reason = f"the outcome of {execution.code.name!r} cannot be stored: the codec raised {error.error!r}"
                self._hold(live, reason)
                return
            outcome = Raised(
                failure=to_failure(
                    error or EngineBug("a step has no outcome and no error"), live.source, execution.code.name
                )
            )
        landing = partial(self._land, live, execution.code, within_bounds(live, outcome, self._payload_bytes_max))
        if live.is_stale:
            self._landings.land_later(live, landing)
        else:
            landing()

    def beaten(self, execution: StepExecution) -> None:
        """Have the details of heartbeats written."""
        run = self._lookup(execution.live.id)
        if run is not None and execution.live.execution is execution:
            op = heartbeat(execution, run.status, self._codec, self._clock.now())
            self._request(op, lambda _written, _error: execution.beat_written())

    def _land_staged(self, live: LiveOperation, staged: Staged) -> None:
        """Write the outcome that code staged with its own writes before a crash. It comes before anything that the run
        was asked since."""
        try:
            code, outcome = self._transactions.read(live.plan, staged)
        except Mismatch as error:
            self._hold(live, f"the code does not fit the staged outcome: {error}")
            return
        live.staged = None
        self._land(live, code, outcome, is_loaded=True)

    def _land(self, live: LiveOperation, code: Code, outcome: StepOutcome, *, is_loaded: bool = False) -> None:
        run = self._lookup(live.id)
        if run is not None and run.claim == live.claim:
            self._drafts.make(live, self._draft_landing(live, code, outcome, run.status, is_loaded=is_loaded))

    def _draft_landing(
        self, live: LiveOperation, code: Code, outcome: StepOutcome, status: Status, *, is_loaded: bool
    ) -> Making:
        try:
            draft = yield from self._runner.land(live, code, outcome, Draft(status), self._clock.now())
        except PerdureError as error:
            log.error("run %s cannot go on", live.id, exc_info=error)
            self._hold(live, f"the outcome of {code.name!r} cannot be written: {error}", is_staged=bool(outcome.staged))
            return None
        draft.staged = outcome.staged
        again = partial(self._land, live, code, outcome, is_loaded=is_loaded)
        return (yield from self._write(live, draft, is_loaded=is_loaded, again=again))

    # Ending.

    def _evict(self) -> None:
        """Release runs that wait, if too many are in memory. The engine that can go on with one takes it."""
        for run_id in self._eviction.chosen(len(self._live)):
            self._enqueue(ops.Release(run_id=run_id, at=self._clock.now(), claim=self._live[run_id].claim))

    def may_leave(self, run_id: str) -> bool:
        """Return whether a run only waits."""
        live, run = self._live.get(run_id), self._lookup(run_id)
        if live is None or run is None or live.is_busy or live.is_stale:
            return False
        return run.status is Status.SUSPENDED

    def _drop(self, run_id: str) -> None:
        live = self._live.get(run_id)
        until = None if live is None else live.until
        if live is None and run_id not in self._loading:
            return
        self._close(run_id)
        self._departures.left(run_id, until)

    def _hold(self, live: LiveOperation, reason: str, *, is_staged: bool = False) -> None:
        live.close()
        self._holds.set(
            live.id,
            live.claim,
            reason,
            fingerprint=deployed(live.operation),
            view=replace(live.view(self._clock.now()), events=tuple(live.events)),
            strategy=live.plan.strategy,
            is_staged=is_staged or live.staged is not None,
        )

    def _close(self, run_id: str) -> None:
        self._eviction.forget(run_id)
        self._blame.forget(run_id)
        self._loading.pop(run_id, None)
        live = self._live.pop(run_id, None)
        if live is None:
            return
        live.close()
        self._landings.forget(live)
