"""The coordinator: one queue, one decision at a time, one commit per batch; only then replies and effects.

While a commit is in flight ops queue up; the next batch is decided once its outcome is known. What can go wrong with a
commit, and what then happens, is in `_settle` and `_commit`; nothing else writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from msgspec import Struct

from perdure.coordinator.assembly import Assembly
from perdure.coordinator.deciding import Deaf, Decided, Deliberation, Hearing, Posted, deliberate
from perdure.coordinator.inbox import Callback, Inbox, Item
from perdure.coordinator.lookup import Found, look_up
from perdure.coordinator.memory import Memory
from perdure.errors import (
    CommitConflict,
    CommitRefused,
    EngineBug,
    EngineStopped,
    Fenced,
    OutcomeUnknown,
    PerdureError,
    QueueFull,
    RunNotWaiting,
    RunOwnedElsewhere,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from perdure.kernel import boxes
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.boxes import Box
from perdure.kernel.decide import Decision
from perdure.kernel.delivery import Delivered, FromCommit, Queued
from perdure.kernel.effects import Begin, Deliver, Drop, Effect, Proceed
from perdure.kernel.ops import (
    Advance,
    Append,
    CancelScope,
    Cooperate,
    Emit,
    Op,
    Prove,
    SetHold,
    Settle,
    Spread,
    UndoScope,
    Wake,
)
from perdure.kernel.records import Engine, Hold, Run
from perdure.kernel.status import ACTIVE, Status
from perdure.ports import LoadedRun, Probe, Store

log = logging.getLogger("perdure")

T = TypeVar("T")

_ONCE_ONLY = (CancelScope, Emit, Settle, UndoScope)
_RECOLLECTED_AT_ONCE = 500
_CONFLICTS_MAX = 100  # in a row, for one batch; with many engines on the same runs, some are nobody's fault
_CONFLICTS_AT_ONCE = 3


class Limits(Struct, frozen=True, kw_only=True):
    """Bounds of the coordinator."""

    inbox_max: int = 10_000
    batch_ops_max: int = 256
    batch_bytes_max: int = 4 * 1024 * 1024
    resend_first_s: float = 0.01
    resend_max_s: float = 1.0
    patience_s: float = 30.0  # after this long without a store, callers from outside are told


class Stats(Struct, kw_only=True):
    """What the coordinator has done so far."""

    ops: int = 0
    commits: int = 0
    resends: int = 0
    largest_batch: int = 0


class Coordinator:
    """Serialises ops. `perform` gets the effects of each batch, in order, in a plain callback after its commit.

    `enroll` registers the engine with the store and returns its row; it is called at start and whenever the engine was
    declared dead, when everything in memory is dropped first. `posted` is told where the answer to a request will be
    that was left for another engine. `lost_track` is told when there may be runs to go on with that only the store
    knows of: after having been declared dead, and after a commit whose outcome was unknown. `hearing` tells
    of runs of operations what they know.
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
        workflows: Container[tuple[str, str]],
        posted: Callable[[str, asyncio.Future[Any]], None],
        hearing: Hearing | None = None,
        probe: Probe | None = None,
    ) -> None:
        self.stats = Stats()
        self._store = store
        self._limits = limits
        self._enroll = enroll
        self._perform = perform
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
        self._memory = Memory()
        self._engine: Engine
        self._number = 0
        self._worker: asyncio.Task[None] | None = None
        self._idle = asyncio.Event()
        self._is_idle = False  # The same without a call.
        self._stopped: BaseException | None = EngineStopped(
            "the engine has not been started: use `async with Engine(…)`"
        )

    @property
    def engine(self) -> Engine:
        """This engine as the store knows it."""
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
        self._inbox.leave()
        self._rest()

    def loaded(self, run_id: str) -> Run | None:
        """A run of this engine as last committed. Eventually consistent, asks nobody."""
        return self._memory.runs.get(run_id)

    def box(self, run_id: str) -> Box:
        """What a run of this engine waits for and has been sent, as last committed."""
        return self._memory.box(run_id)

    def adopt(self, loaded: Iterable[LoadedRun]) -> None:
        """Runs that this engine has just claimed."""
        self._memory.adopt(loaded)

    def mourn(self, engine_ids: Iterable[str]) -> None:
        """Engines that were marked dead: a run that one of them still owns is as good as free."""
        self._memory.dead.update(engine_ids)

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
        if (turn := self._inbox.enter()) is not None:
            await turn
        if self._stopped is not None:
            self._inbox.leave()  # Who waits behind is to hear of it too.
            raise self._stopped
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._put(Item(op, reply, True))
        return reply

    async def insist(self, ops: Sequence[Op]) -> list[Any]:
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
        another engine's to decide, or seems to be."""
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = []
        for op, mail_id in requests:
            if self._worker is not None:
                replies.append(loop.create_future())
                self._put(Item(op, replies[-1], False, mail_id))
        decided = await asyncio.gather(*replies, return_exceptions=True)
        return not any(isinstance(reply, RunOwnedElsewhere) for reply in decided)

    async def prove(self) -> None:
        """Find out whether this engine may still write. If it was declared dead, it has none of its runs afterwards."""
        with suppress(EngineStopped):
            await self.insist([Prove(run_id="", at=self._now())])

    def request(self, op: Op, answered: Callable[[Any, BaseException | None], object]) -> None:
        """Like owe, with a reply: `answered` is called with it and None, or with None and what was raised, before the
        effects of the commit. It is to do little: the commit's other callers wait."""
        if self._worker is None:
            answered(None, self._stopped or EngineStopped("the engine was stopped"))
        else:
            self._put(Item(op, Callback(answered), False))

    def owe(self, op: Op) -> None:
        """An op that the engine itself owes: never refused, no reply."""
        if self._worker is not None:
            if self._probe is not None:
                self._probe.reached(f"{_verb(op)}.submit", op.run_id)
            self._put(Item(op, None, False))

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
                await self._settle(items)
                await asyncio.sleep(0)  # What was committed is done before more is decided.
                if self._probe is not None:
                    await self._come_by(self._probe, "done", items)
                if not len(self._inbox):
                    # Effects are performed in a callback of their own, so one more turn shows whether they owe new ops.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    if not len(self._inbox):
                        loop.call_soon(self._check_idle)
        except asyncio.CancelledError:
            for item in items:
                item.refuse(EngineStopped("the engine was stopped while this was committed; it may have been written"))
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
                found = await self.patiently(partial(look_up, self._store, self._memory.runs, items))
                decided = self._decide(items, found, book)
                assembly = decided.assembly
                if self._probe is not None:
                    await self._come_by(self._probe, "before_commit", items)
                committed = Committed()
                if assembly.writes:
                    committed = await self._commit(assembly.batch)
                    self._number = assembly.batch.number
                    self.stats.commits += 1
                    self.stats.largest_batch = max(self.stats.largest_batch, len(items))
            except CommitConflict as conflict:
                conflicts += 1
                book = conflict.book if conflict.book is not None else book
                if conflicts > _CONFLICTS_MAX:
                    raise EngineBug(f"rows keep changing under the engine: {conflict}") from conflict
                if conflicts > _CONFLICTS_AT_ONCE:
                    await asyncio.sleep(self._limits.resend_first_s)
                self._forget(conflict.run_ids)
                await asyncio.sleep(0)  # Then they are dropped, and what they still did is in the inbox.
                items = self._without_answered(self._without_progress(items, conflict.run_ids), conflict)
                self._inbox.put_back(self._without_progress(self._inbox.empty(), conflict.run_ids))
                await self._reload(conflict.run_ids)
            except CommitRefused as refusal:
                return await self._isolate(items, refusal)
            except StoreUnavailable as error:
                items = [item for item in items if not self._refuse_outside(item, error)]
                self._inbox.put_back([item for item in self._inbox.empty() if not self._refuse_outside(item, error)])
            except Fenced as fenced:
                await self._rejoin(fenced)
                items = self._from_outside(items, fenced)
            else:
                if self._probe is not None:
                    await self._come_by(self._probe, "committed", items)
                if committed.landed:
                    committed = await self.patiently(partial(self._recollect, assembly))
                    self._lost_track()
                return self._conclude(assembly, decided.decided, committed)

    def _decide(self, items: list[Item], found: Found, book: int | None) -> Deliberation:
        deliberation = deliberate(
            items,
            found,
            memory=self._memory,
            workflows=self._workflows,
            engine=self._engine,
            number=self._number + 1,
            now=self._now(),
            hearing=self._hearing,
            book=book,
        )
        self.stats.ops += len(items)
        for op in deliberation.owed:
            self._put(Item(op, None, False))
        return deliberation

    async def _commit(self, batch: Batch) -> Committed:
        """Send a batch until its outcome is known: the very same one, since it may have landed."""
        delay, waited, unknown = self._limits.resend_first_s, 0.0, False
        while True:
            try:
                return await self._store.commit(batch)
            except (StoreBusy, OutcomeUnknown) as error:
                unknown = unknown or isinstance(error, OutcomeUnknown)
                if waited == 0 or delay >= self._limits.resend_max_s:
                    log.warning("batch %d is sent again: %s", batch.number, error)
                if waited >= self._limits.patience_s and not unknown:
                    raise StoreUnavailable(f"the store took nothing for {waited:.0f} s: {error}") from error
            await asyncio.sleep(delay)
            self.stats.resends += 1
            waited += delay
            delay = min(delay * 2, self._limits.resend_max_s)

    async def patiently(self, request: Callable[[], Awaitable[T]]) -> T:
        """Ask the store for something that is asked again while it is busy. Raises StoreUnavailable."""
        delay, waited = self._limits.resend_first_s, 0.0
        while True:
            try:
                return await request()
            except StoreBusy as error:
                if waited >= self._limits.patience_s:
                    raise StoreUnavailable(f"the store has been busy for {waited:.0f} s: {error}") from error
            await asyncio.sleep(delay)
            waited += delay
            delay = min(delay * 2, self._limits.resend_max_s)

    async def _isolate(self, items: list[Item], refusal: CommitRefused) -> None:
        """A batch was refused for good: split it until only the culprit is left, and let that one fail alone."""
        if len(items) > 1:
            middle = len(items) // 2
            await self._settle(items[:middle])
            await self._settle(items[middle:])
            return
        (item,) = items
        op = item.op
        # Who asks for the same twice at the same time is told, and knows what that means.
        level = logging.INFO if isinstance(op, _ONCE_ONLY) else logging.ERROR
        log.log(level, "the store refused an op for run %s: %s", op.run_id, refusal)
        if item.mail:
            await self._settle([Item(Prove(run_id="", at=op.at, error=str(refusal)), item.reply, False, item.mail)])
            return
        item.refuse(refusal)
        if item.outside:
            self._inbox.leave()
        if isinstance(op, (Advance, Cooperate)):
            # The run cannot go on from here, and trying again would only fail again: it waits for a person.
            self._forget({op.run_id})
            hold = Hold(
                kind="blocked", reason=f"the store refused what it did at entry {_entry(op)}: {refusal}", at=op.at
            )
            await self._settle([Item(SetHold(run_id=op.run_id, at=op.at, hold=hold), None, False)])

    def _forget(self, run_ids: Iterable[str]) -> None:
        """What is in memory of these runs is not what is stored: drop it, and all that ran ahead with it."""
        if known := self._memory.forget(run_ids):
            self._effects([Drop(run_id, "the store has another state") for run_id in known])

    def _without_progress(self, items: list[Item], run_ids: frozenset[str]) -> list[Item]:
        """Leave out what these runs did: they begin again from the store, where none of it has happened."""
        kept: list[Item] = []
        for item in items:
            if type(item.op) in (Advance, Append, Cooperate) and item.op.run_id in run_ids:
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

    async def _reload(self, run_ids: Iterable[str]) -> None:
        """Of runs just forgotten, go on with those that are still this engine's, from the store."""
        found = await self.patiently(lambda: self._store.load(list(run_ids)))
        mine = [one for one in found.values() if one.run.owner == self._engine.id and one.run.status in ACTIVE]
        # One that is `created` was claimed a moment ago, and whoever did that takes it up.
        mine = [one for one in mine if one.run.status is not Status.CREATED]
        self.adopt(mine)
        if mine:
            self._effects([Begin(one.run) for one in mine])

    def _refuse_outside(self, item: Item, error: PerdureError) -> bool:
        if item.outside:
            item.refuse(error)
            self._inbox.leave()
        return item.outside

    @staticmethod
    def _from_outside(items: list[Item], fenced: Fenced) -> list[Item]:
        """What callers asked for; what the engine owed to runs that it no longer has is pointless now."""
        for item in items:
            if not item.outside:
                item.refuse(fenced)
        return [item for item in items if item.outside]

    async def _rejoin(self, fenced: Fenced) -> None:
        """Declared dead: nothing in memory counts any more. Register anew; what callers asked for is decided again."""
        log.warning("%s; dropping %d runs and registering anew", fenced, len(self._memory.runs))
        self._forget(list(self._memory.runs))
        self._inbox.put_back(self._from_outside(self._inbox.empty(), fenced))
        while True:
            try:
                await self.patiently(self._rejoin_once)
            except StoreUnavailable as error:
                log.warning("registering anew is tried again: %s", error)
            else:
                break
        self._lost_track()

    async def _rejoin_once(self) -> None:
        # A store that went back to an earlier state takes the engine for alive: nobody else would get its runs.
        await self._store.retire(self._engine.id)
        await self._join()

    async def _recollect(self, assembly: Assembly) -> Committed:
        """A batch had landed without our hearing of it: what it had found out is read from the store. That leaves out
        those whom nobody has in memory."""
        for run_id, run in assembly.runs.items():
            if run.owner == self._engine.id:
                self._memory.runs[run_id] = run
        known = list(self._memory.runs)
        committed = Committed(landed=True)
        for start in range(0, len(known), _RECOLLECTED_AT_ONCE):
            for one in (await self._store.load(known[start : start + _RECOLLECTED_AT_ONCE])).values():
                if one.run.owner == self._engine.id:
                    assembly.runs[one.run.id] = one.run
                    assembly.boxes[one.run.id] = boxes.opened(one.waits, one.events)
                    won = [e for e in one.events if e.position is not None]
                    for event in won:
                        committed.sent[event.id] = (*committed.sent.get(event.id, ()), one.run.id)
                    effects: list[Effect] = [Deliver(one.run.id, e.position or "", e.option, e) for e in won]
                    ends = [wait for wait in one.waits if wait.target is not None and wait.due_at == 0]
                    effects += [Deliver(one.run.id, w.position, w.option, target=w.target) for w in ends]
                    if effects:
                        self._effects(effects)
        return committed

    def _conclude(self, assembly: Assembly, decided: list[Decided], committed: Committed) -> None:
        """The batch is committed: memory follows, callers are answered, effects are performed."""
        self._memory.follow(assembly, committed)
        effects: list[Effect] = []
        for item, decision in decided:
            if type(decision) is Proceed:
                effects.append(decision)
                if item.reply is not None:
                    item.answer(True)
            elif isinstance(decision, Decision):
                effects += decision.effects
                if item.reply is not None:
                    self._answer(item, decision.reply, committed)
            elif isinstance(decision, Posted):
                if isinstance(item.reply, asyncio.Future):
                    self._posted(decision.slot, item.reply)
            elif isinstance(decision, PerdureError):
                item.refuse(decision)
            if item.outside:
                self._inbox.leave()
        if committed.won or committed.spreading:
            effects += self._winners(assembly.batch, committed)
        if effects:
            self._effects(effects)

    def _answer(self, item: Item, reply: Any, committed: Committed) -> None:
        # A second one with the same key has the fate of the first.
        pending = committed.refused.get(reply.event_id) if isinstance(reply, (FromCommit, Queued)) else None
        if pending is not None and isinstance(reply, FromCommit) and reply.strict:
            item.refuse(RunNotWaiting("nobody waits for this event now; leave out strict=True to have it queued"))
        elif pending is not None:
            item.refuse(
                QueueFull(
                    f"{pending} events of this name already wait for somebody to read them, and no more may: "
                    "send fewer, let them expire sooner, or read them",
                    pending=pending,
                )
            )
        elif isinstance(reply, FromCommit):
            run_ids = committed.sent.get(reply.event_id, ())
            item.answer(Delivered(run_ids) if run_ids else Queued(reply.event_id))
        else:
            item.answer(reply)

    def _winners(self, batch: Batch, committed: Committed) -> list[Deliver]:
        """What the transaction found out: deliver to our own runs, wake those that nobody has."""
        now = self._now()
        delivered, unowned = self._memory.win(batch, committed)
        for run_id in unowned:
            self.owe(Wake(run_id=run_id, at=now))
        for event_id in committed.spreading:
            self.owe(Spread(run_id="", at=now, event_id=event_id))
        return delivered

    def _effects(self, effects: list[Effect]) -> None:
        # A plain callback, never this task: workflow code runs on loops of its own, which must not nest in a task.
        asyncio.get_running_loop().call_soon(self._perform, effects)


def _verb(op: Op) -> str:
    return type(op).__name__.lower()


def _entry(op: Advance | Cooperate) -> str:
    if isinstance(op, Cooperate):
        return ", ".join(f"{row.seq} ({row.type} {row.step or ''})" for row in op.added.events)
    return ", ".join(f"{entry.seq} ({entry.kind} {entry.name})" for entry in op.entries) or "its end"
