"""The operations' part of an engine: keeps their runs in memory, does what the rules say comes next, has it written.

A run does one thing at a time. What needs no code shares the commit of what came before it; code is run once all that
it depends on is committed. Nothing is written here: what a run did becomes an op for the coordinator, and a run that is
dropped meanwhile is read again by whoever has it next.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from msgspec.structs import replace

from perdure.coordinator.timers import Timers
from perdure.errors import EngineBug, HandlersChanged, PerdureError, StoreError, UnstorableValue
from perdure.kernel import ops
from perdure.kernel.cooperating import JOIN
from perdure.kernel.effects import Begin, Drop, Finish, Look
from perdure.kernel.records import Engine, Hold, Run, Staged, Wait
from perdure.kernel.status import Status
from perdure.models.carriers import Carriers
from perdure.models.cooperation.book import Book
from perdure.models.cooperation.define import Operation
from perdure.models.cooperation.drafting import Blocked, Drafting
from perdure.models.cooperation.executing import Enter, Executor
from perdure.models.cooperation.failures import to_failure
from perdure.models.cooperation.live import Code, Draft, LiveOperation, StepExecution
from perdure.models.cooperation.moves import Nothing, Raised, Returned
from perdure.models.cooperation.moves import Outcome as StepOutcome
from perdure.models.cooperation.moves import Wait as Waiting
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.rows import RowCodec, StoredScopes
from perdure.models.cooperation.rules import next_move, refused
from perdure.models.cooperation.transactions import Transactions
from perdure.models.transacting import CodecFailed
from perdure.ports import Clock, Codec, Ids, Store

log = logging.getLogger("perdure")

UNTIL = "until"  # the position at which a run waits for time to pass
_NEWS = "news"  # and the one at which it was told something while nobody had it
_AGAIN_US = 1_000_000
_READ_AT_ONCE = 64


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
        owe: Callable[[ops.Op], None],
        request: Callable[[ops.Op, Callable[[Any, BaseException | None], None]], None],
        prove: Callable[[], Coroutine[Any, Any, object]],
        me: Callable[[], Engine],
        lookup: Callable[[str], Run | None],
        dropped: Callable[[str, int | None], None],
        operations: Mapping[str, Operation[Any]],
        book: Book,
        threads: ThreadPoolExecutor,
        enter: Enter,
        live_runs_max: int,
        payload_bytes_max: int,
        steps_max: int,
    ) -> None:
        self._store = store
        self._clock = clock
        self._timers = timers
        self._owe = owe
        self._request = request
        self._prove = prove
        self._lookup = lookup
        self._dropped = dropped
        self._operations = operations
        self._book = book
        self._live_runs_max = live_runs_max
        self._payload_bytes_max = payload_bytes_max
        self._steps_max = steps_max
        self._rows = RowCodec(codec)
        self._drafting = Drafting(
            operations=operations, book=book, rows=self._rows, codec=codec, ids=ids, now=clock.now
        )
        self._transactions = Transactions(store=store, codec=codec, me=me, prove=prove, now=clock.now)
        self._executor = Executor(
            now=clock.now, ids=ids, threads=threads, enter=enter, transactions=self._transactions, check=self._possible
        )
        self._carriers = Carriers(self._ended, store.is_surely_alive, prove)
        self._live: dict[str, LiveOperation] = {}
        self._expected: dict[str, LiveOperation] = {}  # new runs that are being committed
        self._loading: dict[str, Run] = {}
        self._told: dict[str, list[ops.Tell]] = {}  # while they are being read
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._reading: asyncio.Task[None] | None = None
        self._fetching: set[asyncio.Task[None]] = set()
        self._joining: set[str] = set()  # runs of which somebody may handle what they wait for
        self._leaving: set[str] = set()
        self._landed: list[tuple[LiveOperation, Draft]] = []  # just written
        self._active: set[StepExecution] = set()
        self._queued: OrderedDict[StepExecution, None] = OrderedDict()
        self._draining = False
        self._drained = asyncio.Event()

    @property
    def drafting(self) -> Drafting:
        return self._drafting

    @property
    def steps_running(self) -> int:
        return len(self._active)

    @property
    def busy(self) -> bool:
        """Whether something is going on here that no timer is needed for."""
        return bool(self._loading or self._fetching or self._reading is not None)

    @property
    def live_runs(self) -> int:
        return len(self._live)

    def perform(self, effect: Begin | Drop | Finish | Look) -> None:
        """Do what was decided and is now committed."""
        if isinstance(effect, Begin):
            self._begin(effect.run, is_new=effect.input is not None)
        elif isinstance(effect, Look):
            self._look(effect.tell)
        elif isinstance(effect, Finish):
            self._close(effect.run.id)
        else:
            self._drop(effect.run_id)

    async def drain(self, grace_s: float) -> None:
        """Start nothing new; wait until the code that runs has ended, or for the grace period."""
        self._draining = True
        if self._active:
            self._drained.clear()
            try:
                await asyncio.wait_for(self._drained.wait(), grace_s)
            except TimeoutError:
                log.warning("%d steps did not end within %s s and will run again", len(self._active), grace_s)

    def close(self) -> None:
        """Close every run in memory. Writes nothing."""
        self._draining = True
        for run_id in [*self._live]:
            self._close(run_id)
        for task in (*self._fetching, *([self._reading] if self._reading is not None else [])):
            task.cancel()
        self._carriers.close()

    # Word.

    def is_ready(self, run_id: str, told: Sequence[ops.Tell]) -> bool:
        """Whether a waiting run can go on with what it is told, or would wait for another time."""
        live = self._live.get(run_id)
        if live is None or live.is_busy or live.is_stale or any(not tell.about for tell in told):
            return True
        now = self._clock.now()
        news = [self._drafting.read_news(tell.about) for tell in told]
        view = replace(live.view(now), children=tuple(live.with_news(news)))
        move = next_move(live.plan, view, live.progress)
        return not isinstance(move, Waiting) or move.until != live.until

    def heard(self, run_id: str) -> int:
        """How often a run has got word so far."""
        live = self._live.get(run_id)
        return 0 if live is None else live.heard

    def is_undone(self, run_id: str) -> bool:
        """Whether a run knows that what it does is to be undone."""
        live = self._live.get(run_id)
        return live is not None and (live.is_undone or live.told is not None)

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
        self._leaving.discard(run_id)
        live.heard += 1
        live.is_undone = live.is_undone or tell.kind == "undo"
        if tell.kind == JOIN:
            self._joining.add(run_id)
        if tell.kind == _NEWS and tell.about and live.hear(self._drafting.read_news(tell.about)):
            self._go_on(live)
        else:
            self._read_anew(live)

    # Coming to life.

    def _begin(self, run: Run, *, is_new: bool) -> None:
        expected = self._expected.pop(run.id, None)
        if run.id in self._live:
            self._close(run.id)
        if expected is None or not is_new:
            self._load(run)
            return
        parent = self._live.get(run.parent_id or "")
        if parent is not None and parent.is_stale:
            self._load(run)  # What its parent is being asked, it is asked too.
            return
        if parent is not None:
            expected.asks = parent.asks
        self._live[run.id] = expected
        self._go_on(expected)
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
        try:
            while self._wanted:
                ids = [self._wanted.popitem(last=False)[0] for _ in range(min(_READ_AT_ONCE, len(self._wanted)))]
                try:
                    scopes = self._rows.read(await self._store.scopes(ids))
                    staged = await self._staged(ids)
                    await self._read_book(ids)
                except StoreError as error:
                    log.warning("%d runs could not be read and are tried again: %s", len(ids), error)
                    self._timers.arm(self._clock.now() + _AGAIN_US, partial(self._want_again, ids))
                    continue
                hierarchy = scopes.hierarchy()
                for run_id in ids:
                    self._found(run_id, scopes, hierarchy, staged.get(run_id))
        except Exception:
            log.exception("runs of operations could not be read")
        finally:
            self._reading = None

    async def _read_book(self, ids: Sequence[str]) -> None:
        """Who handles what, where it matters that this is new: runs are brought back to life, or somebody has come."""
        if any(run_id in self._loading or run_id in self._joining for run_id in ids):
            self._joining.difference_update(ids)
            await self._book.load(again=True)

    async def _staged(self, ids: Iterable[str]) -> dict[str, Staged]:
        """What code of runs that are to be brought back to life came to, and is committed, but has not become rows."""
        runs = [run for run_id in ids if (run := self._loading.get(run_id)) is not None]
        asked = [run.id for run in runs if self._is_transactional(run.workflow)]
        journals = await self._store.journals(asked) if asked else {}
        return {run_id: journal.staged[0] for run_id, journal in journals.items() if journal.staged}

    def _is_transactional(self, name: str) -> bool:
        operation = self._operations.get(name)
        return operation is not None and any(node.transactional for node in operation.plan.nodes)

    def _want_again(self, ids: Iterable[str]) -> None:
        for run_id in ids:
            if run_id in self._loading or run_id in self._live:
                self._want(run_id)

    def _found(self, run_id: str, scopes: StoredScopes, hierarchy: Any, staged: Staged | None) -> None:
        if run_id in self._loading and run_id in self._wanted:
            return  # It was asked for since: this may have been read before what made it come to life was written.
        run = self._loading.pop(run_id, None)
        told = self._told.pop(run_id, [])
        if run is None:
            live = self._live.get(run_id)
            if live is not None and live.is_stale and run_id in scopes.runs:
                live.is_stale = run_id in self._wanted
                live.learn(hierarchy.view(scopes.runs[run_id], self._clock.now()), scopes.values)
                if not live.is_stale:
                    self._go_on(live)
            return
        if self._draining:
            return
        try:
            live = self._revived(run, scopes, hierarchy)
        except Exception as error:
            log.error("run %s is held", run.id, exc_info=error)
            self._hold(run.id, run.claim, f"it cannot be brought back to life: {error!r}")
            return
        if live is None:
            return
        self._live[run_id] = live
        live.staged = staged
        if told:
            # It may have been read before what it was told was written.
            self._read_anew(live)
        else:
            self._go_on(live, is_loaded=True)
        self._evict()

    def _revived(self, run: Run, scopes: StoredScopes, hierarchy: Any) -> LiveOperation | None:
        operation = self._operations.get(run.workflow)
        if operation is None:
            self._hold(run.id, run.claim, f"this engine has no operation {run.workflow!r}")
            return None
        if run.id not in scopes.runs:
            raise EngineBug(f"the rows of run {run.id!r} are gone")
        new = scopes.runs[run.id]
        view = hierarchy.view(new, self._clock.now())
        mine = {run.id, *(child.lineage[-1] for child in view.children)}
        return LiveOperation(
            operation=operation,
            lineage=new.lineage,
            claim=run.claim,
            origin=view.origin,
            payload=hierarchy.messages[new.message_id].payload,
            events=view.events,
            told=view.told,
            asks=view.asks,
            children=view.children,
            wakes=dict(view.wakes),
            topics={message.id: message.topic for message in scopes.messages},
            returned=view.returned,
            values=[value for value in scopes.values if value.lineage[-1] in mine],
            has_waited=True,
        )

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
        try:
            draft = self._drafting.go_on(live, Draft(run.status))
        except Blocked as blocked:
            self._hold(live.id, live.claim, str(blocked), live)
            return
        self._write(live, run, draft, is_loaded=is_loaded)

    def _write(
        self,
        live: LiveOperation,
        run: Run,
        draft: Draft,
        *,
        is_loaded: bool = False,
        again: Callable[[], None] | None = None,
    ) -> None:
        waits, gone = self._waits(live, run, draft, is_loaded)
        is_same = draft.status is run.status and not (draft.rows or draft.tells or draft.runs or waits or gone)
        if is_same:
            self._committed(live, draft)
            return
        live.in_commit = True
        now = self._clock.now()
        op = ops.Cooperate(
            run_id=live.id,
            at=now,
            claim=live.claim,
            cause=draft.cause,
            status=draft.status,
            added=self._drafting.added(draft, now),
            starts=self._drafting.starts(draft, run.tags, now),
            tells=draft.tells,
            waits=waits,
            waits_dropped=gone,
            outcome=self._drafting.outcome(draft),
            heard=-1 if live.is_stale else live.heard,
            has_waited=live.has_waited,
        )
        self.expect(draft.began)
        self._request(op, partial(self._answered, live, draft, again))

    def _waits(
        self, live: LiveOperation, run: Run, draft: Draft, is_loaded: bool
    ) -> tuple[tuple[Wait, ...], tuple[str, ...]]:
        """What is to be stored of when it goes on by itself: for whoever finds it without an owner."""
        until = draft.until if draft.status is Status.SUSPENDED else None
        # What is there of one that was read is not known; what it was told is known now.
        gone = [_NEWS] if is_loaded and run.status is not Status.CREATED else []
        if draft.staged:
            gone.append(draft.staged)
        if until is None and (live.until is not None or (is_loaded and gone)):
            gone.append(UNTIL)
        waits: tuple[Wait, ...] = ()
        if until is not None and until != live.until:
            waits = (Wait(run_id=live.id, position=UNTIL, kind="timer", name=UNTIL, due_at=until),)
            live.has_waited = True
        draft.until_stored = until
        return waits, tuple(gone)

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
            if not self._landed:
                # What runs are told by this very commit comes first: it is next in the loop's queue.
                loop = asyncio.get_running_loop()
                loop.call_soon(loop.call_soon, self._proceed)
            self._landed.append((live, draft))
            return
        live.forget()
        for began in draft.began:
            self._expected.pop(began.id, None)
        if isinstance(error, HandlersChanged) and not live.is_closed:
            self._fetch(self._write_again(live, again))

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
                log.warning("the book of handlers could not be read and is tried again: %s", error)
                await asyncio.sleep(0.1)
            else:
                break
        live.in_commit = False
        if not live.is_closed:
            (again or partial(self._go_on, live))()

    def _committed(self, live: LiveOperation, draft: Draft) -> None:
        """What it does now that it may."""
        if live.is_closed or draft.state is not None:
            return
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        if draft.code is not None:
            self._execute(live, draft.code)
            return
        if draft.until is not None:
            live.timer = self._timers.arm(draft.until, partial(self._due, live))
        if self._has_changed(live, draft):
            self._go_on(live)
        elif len(self._live) > self._live_runs_max:
            self._evict()

    def _has_changed(self, live: LiveOperation, draft: Draft) -> bool:
        """Whether it can go on, with what it was told while it was busy, or is still to come to rest."""
        run = self._lookup(live.id)
        if run is None or run.status is not draft.status:
            return run is not None
        # It may have ended by its rows if somebody else has it, which this engine has not heard of yet.
        return not isinstance(next_move(live.plan, live.view(self._clock.now()), live.progress), (Waiting, Nothing))

    def _due(self, live: LiveOperation) -> None:
        live.timer = None
        self._go_on(live)

    # Code.

    def _execute(self, live: LiveOperation, code: Code) -> None:
        if self._draining:
            return
        live.execution = execution = StepExecution(live, code)
        if len(self._active) >= self._steps_max:
            self._queued[execution] = None
        else:
            self._start(execution)

    def _start(self, execution: StepExecution) -> None:
        self._active.add(execution)
        execution.coroutine, execution.context = self._executor.prepare(execution)
        self._carriers.give(execution)

    def _ended(self, execution: StepExecution, outcome: StepOutcome | None, error: BaseException | None) -> None:
        self._inactive(execution)
        live = execution.live
        if execution.dropped or live.is_closed or live.execution is not execution:
            return
        live.execution = None
        if outcome is None:
            if isinstance(error, CodecFailed):
                log.error("run %s is held", live.id, exc_info=error)
                reason = f"what {execution.code.name!r} came to cannot be stored: the codec raised {error.error!r}"
                self._hold(live.id, live.claim, reason, live)
                return
            outcome = Raised(failure=to_failure(error or EngineBug("a step came to nothing"), live.source))
        self._land(live, execution.code, self._within_bounds(live, outcome))

    def _land_staged(self, live: LiveOperation, staged: Staged) -> None:
        """What code came to before a crash, with its writes, comes first, whatever was asked of the run since."""
        try:
            code, outcome = self._transactions.read(live.plan, staged)
        except Mismatch as error:
            self._hold(live.id, live.claim, f"the code does not fit what is staged: {error}", live)
            return
        live.staged = None
        self._land(live, code, outcome, is_loaded=True)

    def _possible(self, live: LiveOperation, code: Code, outcome: StepOutcome) -> StepOutcome:
        """What code came to, or why that cannot be."""
        failure = refused(live.plan, live.view(0), code, outcome) if isinstance(outcome, Returned) else None
        return self._within_bounds(live, outcome) if failure is None else Raised(failure=failure)

    def _within_bounds(self, live: LiveOperation, outcome: StepOutcome) -> StepOutcome:
        if isinstance(outcome, Returned):
            for emission in outcome.emissions:
                if len(emission.payload) > self._payload_bytes_max:
                    error = UnstorableValue(
                        f"a message on topic {emission.topic!r} has {len(emission.payload):,} bytes, and may have "
                        f"{self._payload_bytes_max:,}"
                    )
                    return Raised(failure=to_failure(error, live.source))
        return outcome

    def _land(self, live: LiveOperation, code: Code, outcome: StepOutcome, *, is_loaded: bool = False) -> None:
        run = self._lookup(live.id)
        if run is None or run.claim != live.claim:
            return
        try:
            draft = self._drafting.land(live, code, outcome, Draft(run.status))
        except PerdureError as error:
            log.error("run %s is held", live.id, exc_info=error)
            self._hold(live.id, live.claim, f"what {code.name!r} came to cannot be written: {error}", live)
            return
        draft.staged = outcome.staged if isinstance(outcome, Returned) else ""
        again = partial(self._land, live, code, outcome, is_loaded=is_loaded)
        self._write(live, run, draft, is_loaded=is_loaded, again=again)

    def _inactive(self, execution: StepExecution) -> None:
        self._active.discard(execution)
        while self._queued and len(self._active) < self._steps_max:
            waiting = self._queued.popitem(last=False)[0]
            if not waiting.dropped and not self._draining:
                self._start(waiting)
        if self._draining and not self._active:
            self._drained.set()

    def _fetch(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)

    # Ending.

    def _evict(self) -> None:
        """Give up runs that wait, those first that have been here longest: whoever can go on with them takes them."""
        excess = len(self._live) - len(self._leaving) - self._live_runs_max
        if excess <= 0:
            return
        for run_id, live in self._live.items():
            run = self._lookup(run_id)
            if run_id in self._leaving or live.is_busy or live.is_stale or run is None:
                continue
            if run.status is Status.SUSPENDED:
                self._leaving.add(run_id)
                self._owe(ops.Release(run_id=run_id, at=self._clock.now(), claim=live.claim))
                excess -= 1
                if excess <= 0:
                    return

    def _drop(self, run_id: str) -> None:
        live = self._live.get(run_id)
        until = None if live is None else live.until
        if live is None and run_id not in self._loading:
            return
        self._close(run_id)
        self._dropped(run_id, until)

    def _hold(self, run_id: str, claim: int, reason: str, live: LiveOperation | None = None) -> None:
        if live is not None:
            live.close()
        fingerprint = live.operation.fingerprint if live is not None else ""
        hold = Hold(kind="blocked", reason=reason, fingerprint=fingerprint, at=self._clock.now())
        self._owe(ops.SetHold(run_id=run_id, at=hold.at, hold=hold, claim=claim))

    def _close(self, run_id: str) -> None:
        self._leaving.discard(run_id)
        self._loading.pop(run_id, None)
        self._told.pop(run_id, None)
        live = self._live.pop(run_id, None)
        if live is None:
            return
        live.close()
        if (execution := live.execution) is not None:
            live.execution = None
            execution.drop()
            self._queued.pop(execution, None)
            self._inactive(execution)
