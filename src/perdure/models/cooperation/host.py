"""The operations' part of an engine: keeps their runs in memory, does what the rules say comes next, has it written.

A run does one thing at a time. What needs no code shares the commit of what came before it; code is run once all that
it depends on is committed. Nothing is written here: what a run did becomes an op for the coordinator, and a run that is
dropped meanwhile is read again by whoever has it next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Container, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.coordinator.decisions import Outlook
from perdure.coordinator.notices import Outage
from perdure.coordinator.timers import Timers
from perdure.coordinator.turns import in_turns
from perdure.errors import AskedMeanwhile, EngineBug, HandlersChanged, PerdureError, StoreError
from perdure.kernel import ops
from perdure.kernel.cooperation import token_tags
from perdure.kernel.effects import Begin, Drop, Examine, Finish, Look
from perdure.kernel.pieces import Pieces, at_once, parts
from perdure.kernel.records import Engine, Run, Staged
from perdure.kernel.rules.operations import ASK, JOIN, NEWS
from perdure.kernel.status import Status
from perdure.models.common.blame import Blame
from perdure.models.common.carriers import Carriers
from perdure.models.common.deployment import deployed
from perdure.models.common.fence_check import Proof
from perdure.models.common.interrupts import is_by_signal
from perdure.models.common.transactions import CodecFailed
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.drafter import Blocked, Drafting
from perdure.models.cooperation.drafts import Drafts, Making
from perdure.models.cooperation.eviction import Eviction
from perdure.models.cooperation.execution import StepExecution, Surroundings, armed, heartbeat, pause, recall
from perdure.models.cooperation.executor import Enter, Executor, TryAgain, effort_of, within_bounds
from perdure.models.cooperation.failures import to_failure
from perdure.models.cooperation.handler_registry import HandlerRegistry
from perdure.models.cooperation.hierarchy import Hierarchy
from perdure.models.cooperation.holds import Holds
from perdure.models.cooperation.live import Code, Draft, LiveOperation
from perdure.models.cooperation.moves import Nothing, Raised, Returned
from perdure.models.cooperation.moves import Outcome as StepOutcome
from perdure.models.cooperation.moves import Wait as Waiting
from perdure.models.cooperation.outlook import HostOutlook
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.revival import READ_AT_ONCE, Revival
from perdure.models.cooperation.rows import RowCodec, StoredScopes
from perdure.models.cooperation.rules import next_move, refused
from perdure.models.cooperation.slots import Slots
from perdure.models.cooperation.tokens import read_scopes
from perdure.models.cooperation.transactions import Transactions
from perdure.models.cooperation.turns import Turns
from perdure.models.cooperation.versions import Operations
from perdure.models.cooperation.waits import stored_waits
from perdure.ports import Clock, Codec, Ids, Journal, Store

log = logging.getLogger("perdure")

_AGAIN_US = 1_000_000


class OperationHost:
    """All runs of operations that this engine has in memory."""

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        codec: Codec,
        ids: Ids,
        timers: Timers,
        enqueue: Callable[[ops.Op], None],
        request: Callable[[ops.Op, Callable[[Any, BaseException | None], object]], None],
        check_fence: Callable[[], Coroutine[Any, Any, object]],
        stopping: Container[str],
        me: Callable[[], Engine],
        lookup: Callable[[str], Run | None],
        dropped: Callable[[str, int | None], None],
        operations: Operations,
        book: HandlerRegistry,
        threads: ThreadPoolExecutor,
        enter: Enter,
        live_runs_max: int,
        payload_bytes_max: int,
        steps_max: int,
        hierarchy_levels_max: int,
        read_mail: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._outage = Outage("runs of operations")
        self._owe = enqueue
        self._request = request
        self._lookup = lookup
        self._dropped = dropped
        self._operations = operations
        self._book = book
        self._read_mail = read_mail
        self._payload_bytes_max = payload_bytes_max
        self._blame = Blame(clock, request)
        self._slots = Slots(steps_max, self._start, self._blame)
        self._codec = codec
        self._rows = rows = RowCodec(codec)
        self._surroundings = Surroundings(clock, payload_bytes_max, self._beaten)
        self._drafting = Drafting(operations=operations, book=book, rows=rows, codec=codec, ids=ids, now=clock.now)
        self._transactions = Transactions(store=store, codec=codec, me=me, check_fence=check_fence, now=clock.now)
        self._executor = Executor(
            now=clock.now,
            ids=ids,
            threads=threads,
            enter=enter,
            transactions=self._transactions,
            check=self._possible,
            causes=CauseReader(store, self._rows, self._drafting.failures),
            blame=self._blame,
            levels_max=hierarchy_levels_max,
            proof=(proof := Proof(store.is_surely_alive, check_fence, stopping)),
        )
        self._holds = Holds(
            store=store, clock=clock, rows=self._rows, enqueue=enqueue, operation=lambda *pair: operations.get(pair)
        )
        self._revival = Revival(store=store, clock=clock, rows=self._rows, operations=operations, holds=self._holds)
        self._carriers = Carriers(self._ended, proof)
        self._live: dict[str, LiveOperation] = {}
        self._expected: dict[str, LiveOperation] = {}  # new runs that are being committed
        self._loading: dict[str, Run] = {}
        self._told: dict[str, list[ops.Tell]] = {}  # while they are being read
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None
        self._fetching: set[asyncio.Task[None]] = set()
        self._joining: set[str] = set()  # runs of which somebody may handle what they wait for
        self._eviction = Eviction(live_runs_max)
        self._turns = Turns()
        self._drafts = Drafts(self._hear)
        self._landed: list[tuple[LiveOperation, Draft]] = []  # just written

    @property
    def drafting(self) -> Drafting:
        return self._drafting

    @property
    def steps_running(self) -> int:
        return len(self._slots)

    @property
    def busy(self) -> bool:
        """Whether something is going on here that no timer is needed for."""
        is_going_on = self._turns.waiting or self._drafts.busy
        return bool(self._loading or self._fetching or is_going_on or self._reading is not None)

    @property
    def live_runs(self) -> int:
        return len(self._live)

    def perform(self, effect: Begin | Drop | Examine | Finish | Look) -> None:
        """Do what was decided and is now committed."""
        match effect:
            case Begin():
                self._begin(effect.run, is_new=effect.input is not None)
            case Look():
                self._look(effect.tell)
            case Finish():
                self._close(effect.run.id)
            case Examine():
                self._fetch(self._holds.examine(effect.run))
            case Drop():
                self._drop(effect.run_id)

    def examine_left(self) -> None:
        """Find out what held runs may do meanwhile, of which nobody has found it out."""
        if self._operations:
            self._fetch(self._holds.examine_left())

    async def drain(self, grace_s: float) -> None:
        """Start nothing new; wait until the code that runs has ended, or for the grace period, and has its draft."""
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
        for task in (*self._fetching, *([self._reading] if self._reading is not None else [])):
            task.cancel()
        self._carriers.close()

    # Word.

    def outlook(self) -> Outlook:
        """For one batch: which waiting runs can go on with what the batch tells them."""
        return HostOutlook(self._live, self._drafting, self._clock)

    def heard(self, run_id: str) -> int:
        """How often a run has got word so far."""
        live = self._live.get(run_id)
        return 0 if live is None else live.heard

    def is_undone(self, run_id: str) -> bool:
        """Whether a run knows that what it does is to be undone."""
        live = self._live.get(run_id)
        return live is not None and (live.is_undone or live.told is not None)

    def is_asked(self, run_id: str, heard: int) -> bool:
        """Whether a run was asked to give up after it had got word this often."""
        live = self._live.get(run_id)
        return live is not None and live.asked > heard >= 0

    def expect(self, began: Iterable[LiveOperation]) -> None:
        """These runs are about to be committed, and to be begun here."""
        for live in began:
            self._expected[live.id] = live

    def _look(self, tell: ops.Tell) -> None:
        run_id = tell.run_id
        if run_id in self._loading:
            self._told.setdefault(run_id, []).append(tell)
            return
        live = self._live.get(run_id)
        if live is None:
            return  # Whoever begins with it reads all of this.
        if live.is_drafting:
            self._drafts.defer(live, tell)
        else:
            self._hear(live, tell)

    def _hear(self, live: LiveOperation, tell: ops.Tell) -> None:
        self._eviction.stays(live.id)
        live.heard += 1
        live.is_undone = live.is_undone or tell.kind == "undo"
        if tell.kind == JOIN:
            self._joining.add(live.id)
        elif tell.kind != NEWS:
            live.asked = live.heard
            self._slots.withdraw(live)
        if tell.kind == NEWS and tell.about and live.hear(self._drafting.read_news(tell.about)):
            self._go_on(live)
        elif tell.kind == ASK and tell.about and not live.is_stale:
            live.ask(self._drafting.read_ask(tell.about))
            self._turns.soon(live, partial(self._go_on, live))
        else:
            self._read_anew(live)

    # Coming to life.

    def _begin(self, run: Run, *, is_new: bool) -> None:
        expected = self._expected.pop(run.id, None)
        known = self._live.get(run.id)
        if known is not None and known.claim == run.claim and not known.is_closed:
            return  # It was begun before: recovery claimed it while a conflict had it read from the store.
        if known is not None:
            self._close(run.id)
        if expected is None or not is_new or token_tags(run.tags):
            self._load(run)  # A token of its own may have been cancelled before this run was there to be told.
            return
        parent = self._live.get(run.parent_id or "")
        if parent is not None and parent.is_stale:
            self._load(run)  # What its parent is being asked, it is asked too.
            return
        if parent is not None:
            expected.asks = parent.asks
        self._live[run.id] = expected
        self._turns.soon(expected, partial(self._go_on, expected))
        self._evict()

    def _load(self, run: Run) -> None:
        self._loading[run.id] = run
        self._want(run.id)

    def _read_anew(self, live: LiveOperation) -> None:
        live.is_stale = True
        self._want(live.id)

    def _want(self, run_id: str) -> None:
        self._wanted[run_id] = None
        if self._reading is None:
            self._reading = asyncio.get_running_loop().create_task(self._read(), name="perdure-scopes")

    async def _read(self) -> None:
        at_once = READ_AT_ONCE  # One by one once somebody's rows are damaged, until all are read.
        try:
            while self._wanted:
                ids = [self._wanted.popitem(last=False)[0] for _ in range(min(at_once, len(self._wanted)))]
                try:
                    scopes = await read_scopes(self._store, self._rows, ids)
                    journals = await self._journals(ids)
                    await self._read_book(ids)
                except StoreError as error:
                    self._outage.failed(f"{len(ids)} runs could not be read and are tried again", error)
                    self._timers.after(_AGAIN_US, partial(self._want_again, ids))
                    continue
                except Exception as error:  # noqa: BLE001 - whatever their rows hold, other runs go on
                    at_once = 1
                    if len(ids) > 1:  # One by one it is found out whose rows are damaged.
                        self._wanted.update(dict.fromkeys(ids))
                    elif (run := self._loading.pop(ids[0], None) or self._live.get(ids[0])) is not None:
                        self._told.pop(ids[0], None)
                        self._holds.unreadable(ids[0], run.claim, error)
                    continue
                self._outage.worked()
                hierarchy = await in_turns(scopes.hierarchy_in_pieces())
                for run_id in ids:
                    await in_turns(self._found(run_id, scopes, hierarchy, journals.get(run_id)))
                await asyncio.sleep(0)  # Not every store waits for something when it is asked.
        except Exception:
            log.exception("runs of operations could not be read")
        finally:
            self._reading = None

    async def _read_book(self, ids: Sequence[str]) -> None:
        """Who handles what, where it matters that this is new: runs are brought back to life, or somebody has come."""
        if any(run_id in self._loading or run_id in self._joining for run_id in ids):
            self._joining.difference_update(ids)
            await self._book.load(again=True)

    async def _journals(self, ids: Iterable[str]) -> Mapping[str, Journal]:
        """What is stored of code of runs that are to be brought back to life: what it came to, if that is committed but
        has not become rows, and which attempts have failed. A run that was never begun has none of it."""
        runs = [run for run_id in ids if (run := self._loading.get(run_id)) is not None]
        asked = [run.id for run in runs if run.status is not Status.CREATED]
        return await self._store.journals(asked) if asked else {}

    def _want_again(self, ids: Iterable[str]) -> None:
        for run_id in ids:
            if run_id in self._loading or run_id in self._live:
                self._want(run_id)

    def _found(self, run_id: str, scopes: StoredScopes, hierarchy: Hierarchy, journal: Journal | None) -> Pieces[None]:
        run = self._loading.get(run_id)
        if run is None:
            yield from self._found_anew(run_id, scopes, hierarchy)
            return
        if self._is_outdated(run):
            return
        is_staged = journal is not None and bool(journal.staged)
        live = yield from self._revival.revived(run, scopes, hierarchy, is_staged=is_staged)
        if self._is_outdated(run):
            return
        del self._loading[run_id]
        told = self._told.pop(run_id, [])
        if live is None or self._slots.is_closed:
            return
        self._live[run_id] = live
        self._blame.watch(run)
        if journal is not None:
            recall(live, journal, self._codec)
        if told:
            # It may have been read before what it was told was written.
            self._read_anew(live)
        else:
            self._go_on(live, is_loaded=True)
        self._evict()

    def _is_outdated(self, run: Run) -> bool:
        """Whether a run was closed while it was read, or was asked for since: then it may have been read before what
        made it come to life was written."""
        return self._loading.get(run.id) is not run or run.id in self._wanted

    def _found_anew(self, run_id: str, scopes: StoredScopes, hierarchy: Hierarchy) -> Pieces[None]:
        if run_id not in self._live or run_id not in scopes.runs:
            return
        view = yield from hierarchy.view_in_pieces(scopes.runs[run_id], self._clock.now())
        live = self._live.get(run_id)
        if live is not None and live.is_stale:
            live.is_stale = run_id in self._wanted
            live.learn(view, hierarchy.values_of(view))
            if not live.is_stale and not self._slots.land(live):
                self._go_on(live)

    async def waiting(self, runs: Sequence[Run]) -> set[str]:
        """Of runs that nobody has in memory, those that wait for others, or for a time. Raises StoreError."""
        return await self._revival.waiting(runs)

    # Going on.

    def _go_on(self, live: LiveOperation, *, is_loaded: bool = False) -> None:
        """From where its rows stand: write what needs no code, run code, or wait."""
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
            draft = yield from self._drafting.go_on(live, Draft(status), self._clock.now())
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
            return None  # It is another engine's by now, and about to be dropped here.
        draft.asked, heard = live.asked, live.heard
        waits, gone = stored_waits(live, run, draft, is_loaded=is_loaded)
        is_same = draft.status is run.status and not (draft.rows or draft.tells or draft.runs or waits or gone)
        if is_same:
            if live.is_drafting:
                yield from self._drafts.hear(live)
            return partial(self._committed, live, draft)
        now = self._clock.now()
        added = yield from self._drafting.added(draft, now)
        starts: tuple[ops.Start, ...] = ()
        members: tuple[ops.TellMembers, ...] = ()
        if draft.runs:
            starts = yield from self._drafting.starts(draft, run.tags, now, live.plan.strategy)
            members = yield from self._drafting.members(draft, now)
            draft.has_members = bool(members)
        op = ops.Cooperate(
            run_id=live.id,
            at=now,
            claim=live.claim,
            cause=draft.cause,
            status=draft.status,
            added=added,
            starts=starts,
            tells=draft.tells,
            members=members,
            waits=waits,
            waits_dropped=gone,
            outcome=self._drafting.outcome(draft),
            heard=-1 if live.is_stale else heard,
            has_waited=live.has_waited,
            workflow_version=live.operation.stored_version if live.operation.version and draft.begins else "",
        )
        if live.is_drafting:
            yield from self._drafts.hear(live)
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
            self._drafting.failures.note(draft.own)
            if draft.has_members:
                self._fetch(self._read_mail())
            if not self._landed:
                # What runs are told by this very commit comes first: it is next in the loop's queue.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._proceed)
            self._landed.append((live, draft))
            return
        live.forget()
        for began in draft.began:
            self._expected.pop(began.id, None)
        if live.is_closed:
            return
        if isinstance(error, HandlersChanged):
            self._fetch(self._write_again(live, again))
        elif isinstance(error, AskedMeanwhile):
            live.in_commit = False
            self._slots.land_later(live, again or partial(self._go_on, live))
            self._read_anew(live)

    def _proceed(self) -> None:
        landed, self._landed = self._landed, []
        for live, draft in landed:
            live.in_commit = False
            try:
                self._committed(live, draft)
            except Exception:
                log.exception("run %s could not go on", live.id)

    async def _write_again(self, live: LiveOperation, again: Callable[[], None] | None) -> None:
        """Who handles what has changed: the same once more, by the new book."""
        while not live.is_closed:
            try:
                await self._book.load(again=True)
            except StoreError as error:
                self._outage.failed("the handlers could not be read and are tried again", error)
                await asyncio.sleep(0.1)
            else:
                break
        # Many runs may have met the change, and all of them have read the handlers at once.
        self._turns.soon(live, partial(self._once_more, live, again or partial(self._go_on, live)))

    def _once_more(self, live: LiveOperation, go_on: Callable[[], None]) -> None:
        live.in_commit = False
        if live.is_closed:
            return
        if live.is_stale:
            self._slots.land_later(live, go_on)
        else:
            go_on()

    def _committed(self, live: LiveOperation, draft: Draft) -> None:
        """What it does now that it may."""
        if live.is_closed or draft.state is not None:
            return
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        if draft.code is not None:
            if live.is_stale or live.asked > draft.asked:
                self._go_on(live)  # It was asked to give up after this was drafted, or may have been.
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
        """Whether it can go on, with what it was told while it was busy, or is still to come to rest."""
        run = self._lookup(live.id)
        if run is None or run.status is not draft.status:
            return run is not None
        now = self._clock.now()
        move = next_move(live.plan, live.view(now), live.progress)
        if isinstance(move, Code):
            return not live.is_pausing(move, now)
        # It may have ended by its rows if somebody else has it, which this engine has not heard of yet.
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

    def _start(self, execution: StepExecution) -> None:
        execution.coroutine, execution.context = self._executor.prepare(execution)
        self._carriers.give(execution)

    def _ended(
        self, execution: StepExecution, outcome: StepOutcome | TryAgain | None, error: BaseException | None
    ) -> None:
        execution.end(is_tried_again=isinstance(outcome, TryAgain))
        self._slots.free(execution)
        if error is not None and is_by_signal(error):
            raise error  # Somebody stops the process: the step runs again in the next one.
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
                reason = f"what {execution.code.name!r} came to cannot be stored: the codec raised {error.error!r}"
                self._hold(live, reason)
                return
            outcome = Raised(
                failure=to_failure(error or EngineBug("a step came to nothing"), live.source, execution.code.name)
            )
        landing = partial(self._land, live, execution.code, within_bounds(live, outcome, self._payload_bytes_max))
        if live.is_stale:
            self._slots.land_later(live, landing)
        else:
            landing()

    def _beaten(self, execution: StepExecution) -> None:
        run = self._lookup(execution.live.id)
        if run is not None and execution.live.execution is execution:
            op = heartbeat(execution, run.status, self._codec, self._clock.now())
            self._request(op, lambda _written, _error: execution.beat_written())

    def _land_staged(self, live: LiveOperation, staged: Staged) -> None:
        """What code came to before a crash, with its writes, comes first, whatever was asked of the run since."""
        try:
            code, outcome = self._transactions.read(live.plan, staged)
        except Mismatch as error:
            self._hold(live, f"the code does not fit what is staged: {error}")
            return
        live.staged = None
        self._land(live, code, outcome, is_loaded=True)

    def _possible(self, live: LiveOperation, code: Code, outcome: StepOutcome) -> StepOutcome:
        """What code came to, or why that cannot be."""
        failure = refused(live.plan, live.view(0), code, outcome) if isinstance(outcome, Returned) else None
        return within_bounds(live, outcome, self._payload_bytes_max) if failure is None else Raised(failure=failure)

    def _land(self, live: LiveOperation, code: Code, outcome: StepOutcome, *, is_loaded: bool = False) -> None:
        run = self._lookup(live.id)
        if run is not None and run.claim == live.claim:
            self._drafts.make(live, self._draft_landing(live, code, outcome, run.status, is_loaded=is_loaded))

    def _draft_landing(
        self, live: LiveOperation, code: Code, outcome: StepOutcome, status: Status, *, is_loaded: bool
    ) -> Making:
        try:
            draft = yield from self._drafting.land(live, code, outcome, Draft(status), self._clock.now())
        except PerdureError as error:
            log.error("run %s cannot go on", live.id, exc_info=error)
            self._hold(live, f"what {code.name!r} came to cannot be written: {error}", is_staged=bool(outcome.staged))
            return None
        draft.staged = outcome.staged
        again = partial(self._land, live, code, outcome, is_loaded=is_loaded)
        return (yield from self._write(live, draft, is_loaded=is_loaded, again=again))

    def _fetch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    # Ending.

    def _evict(self) -> None:
        """Give up runs that wait, if too many are here: whoever can go on with them takes them."""
        for run_id in self._eviction.chosen(len(self._live), self._may_leave):
            self._owe(ops.Release(run_id=run_id, at=self._clock.now(), claim=self._live[run_id].claim))

    def _may_leave(self, run_id: str) -> bool:
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
        self._dropped(run_id, until)

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
        self._told.pop(run_id, None)
        live = self._live.pop(run_id, None)
        if live is None:
            return
        live.close()
        self._slots.forget(live)
