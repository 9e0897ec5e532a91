"""The coordinator: one queue, one decision at a time, one commit per batch; only then replies and effects.

While a commit is in flight ops queue up; the next batch is decided once its outcome is known. What can go wrong with a
commit, and what then happens, is in `_settle` and `_commit`; nothing else writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.coordinator.batch_context import BatchContext, load_context
from perdure.coordinator.callers import Callers
from perdure.coordinator.damage import damage_to, set_aside
from perdure.coordinator.decisions import Deaf, Decided, DecidedBatch, Hearing, Knowledge, Posted, in_pieces
from perdure.coordinator.effects import Effects
from perdure.coordinator.inbox import Callback, Inbox, Item
from perdure.coordinator.memory import Memory
from perdure.coordinator.notices import Outage, Stats, entries_of, note_hold
from perdure.coordinator.patience import Restarts
from perdure.coordinator.replies import answer
from perdure.coordinator.turns import in_turns
from perdure.errors import (
    CommitConflict,
    CommitRefused,
    EngineBug,
    EngineStopped,
    Fenced,
    OutcomeUnknown,
    PerdureError,
    RowDamaged,
    RunOwnedElsewhere,
    StoreBroken,
    StoreBusy,
    StoreError,
    StoreMisconfigured,
    StoreUnavailable,
)
from perdure.kernel import mailboxes
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.decide import Decision
from perdure.kernel.effects import Begin, Deliver, Drop, Effect, Proceed
from perdure.kernel.mailboxes import Mailbox
from perdure.kernel.ops import (
    Advance,
    Append,
    CancelScope,
    CheckFence,
    Cooperate,
    Count,
    Emit,
    Op,
    SetHold,
    Settle,
    Spread,
    Take,
    UndoScope,
    Wake,
)
from perdure.kernel.records import Engine, Hold, Run
from perdure.kernel.status import ACTIVE, Status
from perdure.ports import LoadedRun, Probe, Store
from perdure.values.limits import Limits

log = logging.getLogger("perdure")

T = TypeVar("T")

_ONCE_ONLY = (CancelScope, Emit, Settle, UndoScope)
_RECOLLECTED_AT_ONCE = 500
_CONFLICTS_MAX = 100  # in a row, for one batch; with many engines on the same runs, some are nobody's fault
_CONFLICTS_AT_ONCE = 3


class Coordinator:
    """Serialises ops. `perform` gets the effects of each batch, in order, in a plain callback after its commit.

    `enroll` registers the engine with the store; it is called at start, and whenever the engine was declared dead.
    `posted` gets the slot in which another engine will answer. `lost_track` is called when only the store may know of
    runs to go on with. `hearing` says what runs of operations know.
    """

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits,
        enroll: Callable[[], Awaitable[Engine]],
        perform: Callable[[Iterable[Effect]], None],
        lost_track: Callable[[], None],
        broken: Callable[[BaseException], None],
        now: Callable[[], int],
        workflows: Container[tuple[str, str, str]],
        posted: Callable[[str, asyncio.Future[Any]], None],
        hearing: Hearing | None = None,
        probe: Probe | None = None,
    ) -> None:
        self.stats = Stats()
        # Runs that the batch under way stops from outside, until the engine has stopped them: no step of them begins.
        self.stopping: set[str] = set()
        self._commits = Outage("commit", self.stats.outages)
        self._requests = Outage("read", self.stats.outages)
        self._store = store
        self.limits = limits
        self._enroll = enroll
        self._effects = Effects(perform)
        self._lost_track = lost_track
        self._broken = broken
        self._now = now
        self._workflows = workflows
        self._posted = posted
        self._hearing = hearing or Deaf()
        self._probe = probe
        self._inbox = Inbox(
            outside_max=limits.inbox_max, batch_ops_max=limits.batch_ops_max, batch_bytes_max=limits.batch_bytes_max
        )
        self.callers = Callers(self._inbox, limits.patience_s)
        self._restarts = Restarts(limits)
        self._seen: dict[str, LoadedRun] = {}  # runs to be woken, as the store had them a moment ago
        self._memory = Memory()
        self._engine: Engine
        self._number = 0
        self._worker: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._is_idle = False  # The same without a call.
        self._unfit: StoreMisconfigured | None = None  # what others found of the store
        self._is_restarting = False  # It has dropped its runs, and the store cannot be used now.
        self.taken: Callable[[], object] | None = None  # called whenever a batch has been taken from the queue
        self.firing = self._inbox.firing  # entered while timers fire
        self.is_cut_off = False  # Not this engine ended it, but whoever ends the process.
        self._stopped: EngineStopped | None = EngineStopped(
            "the engine has not been started: use `async with Engine(…)`"
        )

    @property
    def engine(self) -> Engine:
        return self._engine

    @property
    def idle(self) -> bool:
        """Nothing is queued and nothing is being committed."""
        return self._is_idle

    def _rest(self) -> None:
        self._is_idle = True
        self._idle.set()

    async def start(self) -> None:
        await self._join()
        self._stopped = None
        self._rest()
        self._worker = asyncio.get_running_loop().create_task(self._work(), name="perdure-coordinator")

    async def _join(self) -> None:
        self._engine = await self._enroll()
        self._number = self._engine.batch

    async def stop(self) -> None:
        """Take no more from outside, commit all that is queued, end. Idempotent."""
        if self._stopped is None:
            self._stopped = EngineStopped("the engine is shutting down")
            if not self._is_restarting:  # Else there is nothing that could be committed.
                await self._idle.wait()
        self.kill()

    def kill(self) -> None:
        """End at once, wherever things are. What was not committed never happened."""
        self._stopped = self._stopped or EngineStopped("the engine was stopped")
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None
        for item in self._inbox.empty():
            item.refuse(EngineStopped("the engine was stopped before this was committed; nothing was written"))
        self.callers.rest()
        self._inbox.leave()
        self._effects.stop()
        self._rest()

    def loaded(self, run_id: str) -> Run | None:
        """A run of this engine as last committed. Eventually consistent, asks nobody."""
        return self._memory.runs.get(run_id)

    def mailbox(self, run_id: str) -> Mailbox:
        """What a run of this engine waits for and has been sent, as last committed."""
        return self._memory.mailbox(run_id)

    async def claim(self, request: Callable[[], Awaitable[list[LoadedRun]]]) -> list[LoadedRun]:
        """Adopt the runs that the store gives this engine, each of which is to be taken up by a `Take`; but for those
        that are damaged, which are to be set aside.

        What the store said may be out of date when it arrives: somebody may have cancelled such a run meanwhile. Then
        what was learnt since counts, and the `Take` is decided by that.
        """
        memory = self._memory
        changed = memory.changed = set()
        try:
            # An engine that has registered anew meanwhile no longer owns what it claimed under its old id.
            claimed = [one for one in await request() if one.run.owner == self._engine.id]
        finally:
            memory.changed = None
        sound = [one for one in claimed if damage_to(one) is None]
        memory.adopt(one for one in sound if one.run.id not in changed)
        memory.untaken.update((one.run.id, one.run.claim) for one in sound)
        return claimed

    async def submit(self, op: Op) -> Any:
        """Have an op decided and committed; its reply. Waits while the inbox is full."""
        return await (await self._enter(op))

    async def submit_batch(self, ops: Sequence[Op]) -> list[Any]:
        """Like submit for several ops in a row, which share commits where bounds allow. Errors stand as replies."""
        replies: list[asyncio.Future[Any]] = []
        try:
            for op in ops:
                replies.append(await self._enter(op))  # noqa: PERF401 - those that entered before an error count
        except EngineStopped as stopped:
            answered = await asyncio.gather(*replies, return_exceptions=True)
            return [*answered, *[stopped] * (len(ops) - len(replies))]
        except BaseException:
            for reply in replies:
                reply.cancel()
            raise
        return await asyncio.gather(*replies, return_exceptions=True)

    async def _enter(self, op: Op) -> asyncio.Future[Any]:
        """Queue an op as soon as there is room; where its reply will be."""
        if self._probe is not None and (stop := self._probe.reached(f"{_verb(op)}.submit", op.run_id)) is not None:
            await stop
        loop = asyncio.get_running_loop()
        since = loop.time()
        refusal: PerdureError | None = None
        if (turn := self._inbox.enter()) is not None:
            await turn
            refusal = self.callers.overdue(since)
        if (refusal := self._stopped or refusal) is not None:
            self._inbox.leave()  # Who waits behind is to hear of it too.
            raise refusal
        reply: asyncio.Future[Any] = loop.create_future()
        self._put(Item(op, reply, True, 0, since))
        return reply

    async def submit_internal(self, ops: Sequence[Op]) -> list[Any]:
        """Like submit_batch for ops that the engine itself owes: never refused for want of room or of a store."""
        if self._worker is None:
            raise self._stopped or EngineStopped("the engine was stopped")
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = [loop.create_future() for _ in ops]
        for op, reply in zip(ops, replies, strict=True):
            self._put(Item(op, reply, False))
        return await asyncio.gather(*replies, return_exceptions=True)

    async def decide_mail(self, requests: Sequence[tuple[Op, int]]) -> bool:
        """Have ops decided that came by mail, and the mail consumed; whether that is so of all of it. What is left is
        another engine's to decide, or seems to be, or this engine has stopped."""
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = []
        for op, mail_id in requests:
            if self._worker is not None:
                replies.append(loop.create_future())
                self._put(Item(op, replies[-1], False, mail_id))
        decided = await asyncio.gather(*replies, return_exceptions=True)
        return self._worker is not None and not any(isinstance(reply, RunOwnedElsewhere) for reply in decided)

    async def check_fence(self) -> None:
        """Find out whether this engine may still write. If it was declared dead, it has none of its runs afterwards."""
        with suppress(EngineStopped):
            await self.submit_internal([CheckFence(run_id="", at=self._now())])

    def request(self, op: Op, answered: Callable[[Any, BaseException | None], object]) -> None:
        """Like enqueue, with a reply: `answered` is called with it and None, or with None and what was raised, before
        the
        effects of the commit. It is to do little: the commit's other callers wait."""
        if self._worker is None:
            answered(None, self._stopped or EngineStopped("the engine was stopped"))
        else:
            self._put(Item(op, Callback(answered), False, is_due=self._inbox.is_firing))

    def start_over(self, error: StoreMisconfigured) -> None:
        """The engine cannot use its store as it is: drop everything, and register anew. Returns at once."""
        if self._worker is not None and self._unfit is None and not self._is_restarting:
            self._unfit = error
            self.enqueue(CheckFence(run_id="", at=self._now()))

    @property
    def queued_due(self) -> int:  # ops that timers have brought
        return self._inbox.due

    def enqueue(self, op: Op, answered: Callable[[Any, BaseException | None], object] | None = None) -> None:
        """An op that the engine itself owes: never refused, no reply. `answered` is called as by `request`, unless the
        engine has stopped."""
        if self._worker is not None:
            if self._probe is not None:
                self._probe.reached(f"{_verb(op)}.submit", op.run_id)
            self._put(Item(op, None if answered is None else Callback(answered), False, is_due=self._inbox.is_firing))

    def wake(self, op: Wake, seen: LoadedRun, answered: Callable[[Any, BaseException | None], object]) -> None:
        """As enqueue, for a run that waited a moment ago and that nobody had: it is not read again. If it has changed
        since, its row is not as expected: the commit is refused, and the run is read."""
        if self._worker is not None:
            self._seen[op.run_id] = seen
            self.enqueue(op, answered)

    async def _come_by(self, probe: Probe, point: str, items: Sequence[Item]) -> None:
        for item in items:
            if (stop := probe.reached(f"{_verb(item.op)}.{point}", item.op.run_id)) is not None:
                await stop

    def _put(self, item: Item) -> None:
        if self._is_idle:
            self._is_idle = False
            self._idle.clear()
        self._inbox.put(item)

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        items: list[Item] = []
        try:
            while True:
                await self._inbox.arrival()
                if self._probe is not None and (stop := self._probe.reached("batch.take", "")) is not None:
                    await stop
                items = self._inbox.take()
                self.callers.begin()
                if self.taken is not None:
                    self.taken()
                await self._settle(items)
                await self._effects.performed()  # What was committed is done before more is decided.
                self.stopping.clear()
                if self._probe is not None:
                    await self._come_by(self._probe, "done", items)
                if not len(self._inbox):
                    # Effects are performed in a callback of their own, so one more turn shows whether they enqueue new
                    # ops.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    if not len(self._inbox):
                        loop.call_soon(self._check_idle)
        except asyncio.CancelledError:
            for item in items:
                item.refuse(EngineStopped("the engine was stopped while this was committed; it may have been written"))
            self.is_cut_off = self._worker is not None
            self.kill()  # Whoever cancels all tasks of a loop cancels this one too: nobody is to wait for it then.
            raise
        except BaseException as error:  # noqa: BLE001 - whatever it is, everybody who waits must hear of it
            self._fail(error, items)

    def _check_idle(self) -> None:
        if not len(self._inbox):
            self._rest()

    def _fail(self, error: BaseException, items: list[Item]) -> None:
        log.error("the engine stops: %s", error, exc_info=not isinstance(error, StoreError))
        stopped = EngineStopped(f"the engine has stopped: {error}")
        stopped.__cause__ = error
        self._stopped = stopped
        for item in [*items, *self._inbox.empty()]:
            item.refuse(stopped)
        self.callers.rest()
        self._inbox.leave()
        self._rest()
        self._worker = None
        self._broken(stopped)

    async def _settle(self, items: list[Item]) -> None:
        """Bring these ops to an end: committed and answered, or refused. Raises what stops the engine."""
        conflicts = 0
        book: int | None = None
        while True:
            try:
                if self._unfit is not None:
                    self.callers.asking("read", items)
                    raise self._unfit
                found = await self._read(
                    partial(load_context, self._store, self._memory.runs, items, self._seen), items
                )
                if found.runs:
                    await self._read(
                        partial(set_aside, self._store, self._engine.id, self._now(), found.runs.values()), items
                    )
                items = self.callers.waiting(items)
                decided = await self._decide(items, found, book)
                builder = decided.builder
                if self._probe is not None:
                    await self._come_by(self._probe, "before_commit", items)
                committed = Committed()
                if builder.writes:
                    committed = await self._commit(builder.batch)
                    self._number = builder.batch.number
                    self.stats.commits += 1
                    self.stats.largest_batch = max(self.stats.largest_batch, len(items))
            except CommitConflict as conflict:
                conflicts += 1
                book = conflict.book if conflict.book is not None else book
                if conflicts > _CONFLICTS_MAX:
                    raise EngineBug(f"rows keep changing under the engine: {conflict}") from conflict
                if conflicts > _CONFLICTS_AT_ONCE:
                    await asyncio.sleep(self.limits.resend_first_s)
                claims = {id: run.claim for id in conflict.run_ids if (run := self._memory.runs.get(id)) is not None}
                self._forget(conflict.run_ids)
                await self._effects.performed()  # Then they are dropped, and what they still did is in the inbox.
                items = self._without_answered(self._without_progress(items, conflict.run_ids), conflict)
                self._inbox.put_back(self._without_progress(self._inbox.empty(), conflict.run_ids))
                await self._reload(conflict.run_ids, claims)
            except (CommitRefused, RowDamaged) as refusal:
                return await self._isolate(items, refusal)
            except StoreUnavailable:
                items = self.callers.waiting(items)
            except (Fenced, StoreMisconfigured) as error:
                fenced = await self._rejoin(error)
                items = self._from_outside(self.callers.waiting(items), fenced)
            else:
                if self._probe is not None:
                    await self._come_by(self._probe, "committed", items)
                if committed.landed:
                    committed = await self._read(partial(self._recollect, builder))
                    self._lost_track()
                return self._conclude(builder, decided.decided, committed)

    async def _decide(self, items: list[Item], found: BatchContext, book: int | None) -> DecidedBatch:
        knowledge = Knowledge(
            memory=self._memory,
            workflows=self._workflows,
            engine=self._engine,
            number=self._number + 1,
            now=self._now(),
            hearing=self._hearing,
            book=book,
        )
        decided_batch = await in_turns(in_pieces(items, found, knowledge))
        self.stopping.update(decided_batch.stopped)
        self.stats.ops += len(items)
        for op in decided_batch.owed:
            self._put(Item(op, None, False))
        return decided_batch

    async def _commit(self, batch: Batch) -> Committed:
        """Send a batch until its outcome is known: the very same one, since it may have landed. Raises StoreUnavailable
        if nothing was written and callers have given up: then the batch is decided again without them."""
        delay, is_unknown = self.limits.resend_first_s, False
        while True:
            self.callers.asking("commit")
            try:
                committed = await self._store.commit(batch)
            except (StoreBusy, OutcomeUnknown) as error:
                is_unknown = is_unknown or isinstance(error, OutcomeUnknown)
                self._commits.failed(f"batch {batch.number} is sent again until the store takes it", error)
                self.callers.failed(error)
                failure: StoreError = error
            except StoreMisconfigured as error:
                if is_unknown:
                    self.callers.doubt(error)
                raise
            except StoreError:
                self.callers.answered("commit")
                raise
            else:
                self.callers.answered("commit")
                if self._commits.failures:
                    self._commits.worked()
                return committed
            for pause_s in (0, delay):  # Callers may give up during the pause, too.
                await asyncio.sleep(pause_s)
                if self.callers.has_given_up() and not is_unknown:
                    raise StoreUnavailable(f"callers have given up: {failure}") from failure
            self.stats.resends += 1
            delay = min(delay * 2, self.limits.resend_max_s)

    async def _read(self, request: Callable[[], Awaitable[T]], items: Sequence[Item] | None = None) -> T:
        """Ask the store for something until it answers. Of callers whose ops are `items`, those who gave up meanwhile
        have been told."""
        delay = self.limits.resend_first_s
        while True:
            self.callers.asking("read", items)
            try:
                answer = await request()
            except StoreBusy as error:
                self._requests.failed("a request to the store is repeated", error)
                self.callers.failed(error)
            except StoreMisconfigured:
                raise
            except PerdureError:
                self.callers.answered("read")
                raise
            else:
                self.callers.answered("read")
                if self._requests.failures:
                    self._requests.worked()
                return answer
            await asyncio.sleep(delay)
            delay = min(delay * 2, self.limits.resend_max_s)

    async def _isolate(self, items: list[Item], refusal: CommitRefused | RowDamaged) -> None:
        """A batch was refused for good: split it until only the culprit is left, and let that one fail alone."""
        if len(items) > 1:
            middle = len(items) // 2
            await self._settle(items[:middle])
            await self._settle(items[middle:])
            return
        (item,) = items
        op = item.op
        if isinstance(op, Wake) and op.then is not None:
            # What the run did before it was claimed is at fault. It does so again once it is, and is held for it then.
            await self._settle([Item(replace(op, then=None), item.reply, False, is_due=item.is_due)])
            return
        # Who asks for the same twice at the same time is told, and knows what that means.
        level = logging.INFO if isinstance(op, _ONCE_ONLY) else logging.ERROR
        log.log(level, "the store refused an op for run %s: %s", op.run_id, refusal)
        if item.mail:
            await self._settle(
                [Item(CheckFence(run_id="", at=op.at, error=str(refusal)), item.reply, False, item.mail)]
            )
            return
        item.refuse(refusal)
        if isinstance(op, Take):
            self._memory.taken(op.run_id, op.claim)
        if item.outside:
            self._inbox.leave()
        if isinstance(op, (Advance, Cooperate)):
            # The run cannot go on from here, and trying again would only fail again: it waits for a person.
            self._forget({op.run_id})
            hold = Hold(
                kind="blocked", reason=f"the store refused what it did at entry {entries_of(op)}: {refusal}", at=op.at
            )
            await self._settle([Item(SetHold(run_id=op.run_id, at=op.at, hold=hold), None, False)])

    def _forget(self, run_ids: Iterable[str]) -> None:
        """What is in memory of these runs is not what is stored: drop it, and all that ran ahead with it."""
        if known := self._memory.forget(run_ids):
            self._effects.add([Drop(run_id, "the store has another state") for run_id in known])

    def _without_progress(self, items: list[Item], run_ids: frozenset[str]) -> list[Item]:
        """Leave out what these runs did: they begin again from the store, where none of it has happened."""
        kept: list[Item] = []
        for item in items:
            if type(item.op) in (Advance, Append, Cooperate, Count) and item.op.run_id in run_ids:
                item.answer(False)
                if item.outside:
                    self._inbox.leave()
            else:
                kept.append(item)
        return kept

    @staticmethod
    def _without_answered(items: list[Item], conflict: CommitConflict) -> list[Item]:
        """Leave out mail that somebody else has answered."""
        for item in items:
            if item.mail in conflict.mail_ids:
                item.refuse(conflict)
        return [item for item in items if item.mail not in conflict.mail_ids]

    async def _reload(self, run_ids: Iterable[str], claims: Mapping[str, int]) -> None:
        """Of runs just forgotten, go on with those that are still this engine's, from the store. `claims` are those
        that were known. A run that a recovery has claimed is begun by the recovery, and must not be begun twice."""
        found = await self._read(lambda: self._store.load(list(run_ids)))
        memory = self._memory
        mine = [
            one
            for one in found.values()
            if one.run.owner == self._engine.id
            and one.run.status in ACTIVE
            and one.run.status is not Status.CREATED
            and one.run.id not in memory.untaken
            and (memory.changed is None or claims.get(one.run.id) == one.run.claim)
        ]
        mine = await self._read(partial(set_aside, self._store, self._engine.id, self._now(), mine))
        memory.adopt(mine)
        if mine:
            self._effects.add([Begin(one.run) for one in mine])

    @staticmethod
    def _from_outside(items: list[Item], fenced: Fenced) -> list[Item]:
        """What callers asked for; what the engine owed to runs that it no longer has is pointless now."""
        for item in items:
            if not item.outside:
                item.refuse(fenced)
        return [item for item in items if item.outside]

    async def _rejoin(self, error: Fenced | StoreMisconfigured) -> Fenced:
        """Nothing in memory counts any more: this engine was declared dead, or its store cannot be used as it is.

        Give up the sign of life, so that others may take the runs, and register anew; what callers asked for is decided
        again. Returns what the engine's own ops are refused with. Raises StoreBroken if that was tried often enough.
        """
        log.warning("%s; dropping %d runs and registering anew", error, len(self._memory.runs))
        fenced = error if isinstance(error, Fenced) else Fenced(f"the engine starts over: {error}")
        self._forget(list(self._memory.runs))
        self._memory.untaken.clear()
        self._seen.clear()
        await self._effects.performed()  # Then they are dropped.
        self._store.withdraw(self._engine.id)
        self._inbox.put_back(self._from_outside(self._inbox.empty(), fenced))
        while True:
            try:
                if isinstance(error, StoreMisconfigured):
                    await self._pause_before_restart(error)
                self._unfit = None
                await self._read(self._rejoin_once)
            except StoreMisconfigured as again:
                error = again
            else:
                break
        self._is_restarting = False
        log.info("registered anew as engine %s", self._engine.id)
        self._lost_track()
        return fenced

    async def _pause_before_restart(self, error: StoreMisconfigured) -> None:
        """Raises StoreBroken if the engine has started over often enough, or is to stop anyway."""
        self.callers.failed(error)
        pause_s = self._restarts.next_pause_s(asyncio.get_running_loop().time())
        if pause_s is None or self._stopped is not None:
            tried = f"after {self._restarts.count} new starts: " if pause_s is None else ""
            raise StoreBroken(f"{tried}{error}") from error
        log.warning(
            "the engine registers anew in %.1f s (%d of %d times): %s. What to do: mend the database (perdure doctor);"
            " the engine goes on by itself then",
            pause_s, self._restarts.count, self.limits.restarts_max, error,
        )  # fmt: skip
        self._is_restarting = True
        await asyncio.sleep(pause_s)

    async def _rejoin_once(self) -> None:
        # A store that went back to an earlier state takes the engine for alive: nobody else would get its runs.
        await self._store.retire(self._engine.id)
        await self._join()

    async def _recollect(self, builder: BatchBuilder) -> Committed:
        """A batch had landed without our hearing of it: what it had found out is read from the store. That leaves out
        those whom nobody has in memory."""
        for run_id, run in builder.runs.items():
            if run.owner == self._engine.id:
                self._memory.runs[run_id] = run
        known = list(self._memory.runs)
        committed = Committed(landed=True)
        for start in range(0, len(known), _RECOLLECTED_AT_ONCE):
            for one in (await self._store.load(known[start : start + _RECOLLECTED_AT_ONCE])).values():
                if one.run.owner == self._engine.id:
                    builder.runs[one.run.id] = one.run
                    builder.mailboxes[one.run.id] = mailboxes.opened(one.waits, one.events)
                    won = [e for e in one.events if e.position is not None]
                    for event in won:
                        committed.sent[event.id] = (*committed.sent.get(event.id, ()), one.run.id)
                    effects: list[Effect] = [Deliver(one.run.id, e.position or "", e.option, e) for e in won]
                    ends = [wait for wait in one.waits if wait.target is not None and wait.due_at == 0]
                    effects += [Deliver(one.run.id, w.position, w.option, target=w.target) for w in ends]
                    if effects:
                        self._effects.add(effects)
        return committed

    def _conclude(self, builder: BatchBuilder, decided: list[Decided], committed: Committed) -> None:
        """The batch is committed: memory follows, callers are answered, effects are performed."""
        self._memory.follow(builder, committed)
        if self._memory.untaken:
            for item, _ in decided:
                if type(item.op) is Take:
                    self._memory.taken(item.op.run_id, item.op.claim)
        effects: list[Effect] = []
        for item, decision in decided:
            match decision:
                case Proceed():
                    effects.append(decision)
                    if item.reply is not None:
                        item.answer(True)
                case Decision():
                    effects += decision.effects
                    if decision.run is not None and decision.run.hold is not None and decision.audit:
                        note_hold(decision.run, decision.run.hold, decision.audit[-1], self.stats.holds)
                    if item.reply is not None:
                        answer(item, decision.reply, committed)
                case Posted():
                    if isinstance(item.reply, asyncio.Future):
                        self._posted(decision.slot, item.reply)
                case PerdureError():
                    item.refuse(decision)
            if item.outside:
                self._inbox.leave()
        if committed.won or committed.spreading:
            effects += self._winners(builder.batch, committed)
        if effects:
            self._effects.add(effects)

    def _winners(self, batch: Batch, committed: Committed) -> list[Deliver]:
        now = self._now()
        delivered, unowned = self._memory.win(batch, committed)
        for run_id in unowned:
            self.enqueue(Wake(run_id=run_id, at=now))
        for event_id in committed.spreading:
            self.enqueue(Spread(run_id="", at=now, event_id=event_id))
        return delivered


def _verb(op: Op) -> str:
    return type(op).__name__.lower()
