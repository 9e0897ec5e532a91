"""Settling a batch: its ops are decided, committed and answered, or refused, whatever the outcome of the commit is.

After a conflict, the affected runs are read again, and the remaining ops are decided again. A batch that is refused for
good is split until only the op that causes the refusal is left. If a batch was committed but the answer was lost, its
result is read from the store.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Container, Iterable, Mapping
from functools import partial

from msgspec.structs import replace

from perdure.coordinator.batch_builder import BatchBuilder
from perdure.coordinator.batch_context import BatchContext
from perdure.coordinator.batch_decisions import Decided, DecidedBatch, Mailed, decide_in_pieces
from perdure.coordinator.context_loader import load_context
from perdure.coordinator.damaged_runs import set_aside
from perdure.coordinator.decision_inputs import Knowledge
from perdure.coordinator.notices import entries_of, note_hold
from perdure.coordinator.parts import Parts
from perdure.coordinator.queued_ops import Item, from_outside, without_mail
from perdure.coordinator.registration import Registration
from perdure.coordinator.replies import answer
from perdure.coordinator.store_retries import StoreRequests
from perdure.coordinator.turns import in_turns
from perdure.errors import (
    CommitConflict,
    CommitRefused,
    EngineBug,
    Fenced,
    PerdureError,
    RowDamaged,
    StoreMisconfigured,
    StoreUnavailable,
)
from perdure.kernel import wait_matches
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.decision import Decision
from perdure.kernel.effects import Begin, Deliver, Effect, Proceed
from perdure.kernel.ops import (
    Advance,
    Append,
    CancelScope,
    CheckFence,
    Cooperate,
    Count,
    Emit,
    SetHold,
    Settle,
    Spread,
    Take,
    UndoScope,
    Wake,
)
from perdure.kernel.runs import Hold
from perdure.kernel.status import ACTIVE, Status

log = logging.getLogger("perdure")

_ONCE_ONLY = (CancelScope, Emit, Settle, UndoScope)
_RECOLLECTED_AT_ONCE = 500
# conflicts in a row for one batch; if many engines work on the same runs, some conflicts are normal
_CONFLICTS_MAX = 100
_CONFLICTS_AT_ONCE = 3


class Settlement:
    """Settles batches, one after the other."""

    def __init__(
        self,
        parts: Parts,
        requests: StoreRequests,
        registration: Registration,
        workflows: Callable[[], Container[tuple[str, str, str]]],
    ) -> None:
        self._parts = parts
        self._store = parts.store
        self._clock = parts.clock
        self._memory = parts.memory
        self._inbox = parts.inbox
        self._callers = parts.callers
        self._effects = parts.effects
        self._probe = parts.probe
        self._requests = requests
        self._registration = registration
        self._workflows = workflows

    async def settle(self, items: list[Item]) -> None:
        """Have these ops committed and answered, or refused. Raises the errors that stop the engine."""
        conflicts = 0
        registry_version: int | None = None
        while True:
            try:
                if self._registration.unfit is not None:
                    self._callers.asking("read", items)
                    raise self._registration.unfit
                found = await self._requests.read(
                    partial(load_context, self._store, self._memory.runs, items, self._parts.seen), items
                )
                if found.runs:
                    await self._requests.read(
                        partial(
                            set_aside,
                            self._store,
                            self._registration.engine.id,
                            self._clock.now(),
                            found.runs.values(),
                        ),
                        items,
                    )
                items = self._callers.waiting(items)
                decided = await self._decide(items, found, registry_version)
                builder = decided.builder
                if self._probe is not None:
                    await self._parts.come_by(self._probe, "before_commit", items)
                committed = Committed()
                if builder.writes:
                    committed = await self._requests.commit(builder.batch)
                    self._registration.number = builder.batch.number
                    self._parts.stats.commits += 1
                    self._parts.stats.largest_batch = max(self._parts.stats.largest_batch, len(items))
            except CommitConflict as conflict:
                conflicts += 1
                registry_version = (
                    conflict.registry_version if conflict.registry_version is not None else registry_version
                )
                if conflicts > _CONFLICTS_MAX:
                    raise EngineBug(f"rows keep changing under the engine: {conflict}") from conflict
                if conflicts > _CONFLICTS_AT_ONCE:
                    await asyncio.sleep(self._parts.limits.resend_first_s)
                claims = {id: run.claim for id in conflict.run_ids if (run := self._memory.runs.get(id)) is not None}
                self._parts.forget(conflict.run_ids)
                # From here on, the runs are dropped, and their last ops are in the inbox.
                await self._effects.performed()
                items = without_mail(self._without_progress(items, conflict.run_ids), conflict.mail_ids, conflict)
                self._inbox.put_back(self._without_progress(self._inbox.empty(), conflict.run_ids))
                await self._reload(conflict.run_ids, claims)
            except (CommitRefused, RowDamaged) as refusal:
                return await self._isolate(items, refusal)
            except StoreUnavailable:
                items = self._callers.waiting(items)
            except (Fenced, StoreMisconfigured) as error:
                fenced = await self._registration.renew(error)
                items = from_outside(self._callers.waiting(items), fenced)
            else:
                if self._probe is not None:
                    await self._parts.come_by(self._probe, "committed", items)
                if committed.landed:
                    committed = await self._requests.read(partial(self._recollect, builder))
                    self._parts.listener.lost_track()
                return self._conclude(builder, decided.decided, committed)

    async def _decide(self, items: list[Item], found: BatchContext, registry_version: int | None) -> DecidedBatch:
        memory = self._memory
        known = Knowledge(
            memory=memory,
            workflows=self._workflows(),
            engine=self._registration.engine,
            number=self._registration.number + 1,
            now=self._clock.now(),
            registry_version=registry_version,
        )
        batch = await in_turns(decide_in_pieces(items, found, known))
        self._parts.stopping.update(batch.stopped)
        self._parts.stats.ops += len(items)
        for op, bug in batch.bugs:
            log.error("an op for run %s could not be decided", op.run_id, exc_info=bug)
            if memory.runs.pop(op.run_id, None) is not None:  # A bug that affects one run must not stop all other runs.
                hold = Hold(kind="blocked", reason=f"engine bug: {bug}", at=op.at)
                self._parts.put(Item(SetHold(run_id=op.run_id, at=op.at, hold=hold), None, False))
        return batch

    async def _isolate(self, items: list[Item], refusal: CommitRefused | RowDamaged) -> None:
        """Split a batch that was refused for good until only the op that causes the refusal is left. Then only this op
        fails.
        """
        if len(items) > 1:
            middle = len(items) // 2
            await self.settle(items[:middle])
            await self.settle(items[middle:])
            return
        (item,) = items
        op = item.op
        if isinstance(op, Wake) and op.then is not None:
            # The store refuses the progress that the run made before it was claimed. Once the run is claimed, it
            # repeats that progress, and is held then.
            await self.settle([Item(replace(op, then=None), item.reply, False, is_due=item.is_due)])
            return
        # Two callers may send such an op at the same time. The second caller gets the refusal, and knows what it means.
        level = logging.INFO if isinstance(op, _ONCE_ONLY) else logging.ERROR
        log.log(level, "the store refused an op for run %s: %s", op.run_id, refusal)
        if item.mail:
            await self.settle([Item(CheckFence(run_id="", at=op.at, error=str(refusal)), item.reply, False, item.mail)])
            return
        item.refuse(refusal)
        if isinstance(op, Take):
            self._memory.taken(op.run_id, op.claim)
        if item.outside:
            self._inbox.leave()
        if isinstance(op, (Advance, Cooperate)):
            # The run cannot go on from here, and a retry would fail again. So it is held until a person resumes it.
            self._parts.forget({op.run_id})
            hold = Hold(
                kind="blocked", reason=f"the store refused what it did at entry {entries_of(op)}: {refusal}", at=op.at
            )
            await self.settle([Item(SetHold(run_id=op.run_id, at=op.at, hold=hold), None, False)])

    def _without_progress(self, items: list[Item], run_ids: frozenset[str]) -> list[Item]:
        """Return the items without the progress of these runs. These runs begin again from the store, which has none of
        that progress.
        """
        kept: list[Item] = []
        for item in items:
            if type(item.op) in (Advance, Append, Cooperate, Count) and item.op.run_id in run_ids:
                item.answer(False)
                if item.outside:
                    self._inbox.leave()
            else:
                kept.append(item)
        return kept

    async def _reload(self, run_ids: Iterable[str], claims: Mapping[str, int]) -> None:
        """Load runs that were just dropped from memory. Go on with those runs that this engine still owns. `claims` are
        the claims that the runs had in memory. If a recovery has claimed a run, the recovery goes on with it. Otherwise
        the run would begin twice.
        """
        found = await self._requests.read(lambda: self._store.load(list(run_ids)))
        memory = self._memory
        mine = [
            one
            for one in found.values()
            if one.run.owner == self._registration.engine.id
            and one.run.status in ACTIVE
            and one.run.status is not Status.CREATED
            and one.run.id not in memory.untaken
            and (memory.changed is None or claims.get(one.run.id) == one.run.claim)
        ]
        mine = await self._requests.read(
            partial(set_aside, self._store, self._registration.engine.id, self._clock.now(), mine)
        )
        memory.adopt(mine)
        if mine:
            self._effects.add([Begin(one.run) for one in mine])

    async def _recollect(self, builder: BatchBuilder) -> Committed:
        """Read the results of a commit from the store, because the answer to the commit was lost. Runs that this engine
        does not have in memory are left out.
        """
        for run_id, run in builder.runs.items():
            if run.owner == self._registration.engine.id:
                self._memory.runs[run_id] = run
        known = list(self._memory.runs)
        committed = Committed(landed=True)
        for start in range(0, len(known), _RECOLLECTED_AT_ONCE):
            for one in (await self._store.load(known[start : start + _RECOLLECTED_AT_ONCE])).values():
                if one.run.owner == self._registration.engine.id:
                    builder.runs[one.run.id] = one.run
                    builder.mailboxes[one.run.id] = wait_matches.opened(one.waits, one.events)
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
        """Conclude a committed batch: update memory, reply to callers, and perform effects."""
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
                        note_hold(decision.run, decision.run.hold, decision.audit[-1], self._parts.stats.holds)
                    if item.reply is not None:
                        answer(item, decision.reply, committed)
                case Mailed():
                    if isinstance(item.reply, asyncio.Future):
                        self._parts.listener.posted(decision.slot, item.reply)
                case PerdureError():
                    item.refuse(decision)
            if item.outside:
                self._inbox.leave()
        if committed.won or committed.spreading:
            effects += self._winners(builder.batch, committed)
        self._effects.add(effects)

    def _winners(self, batch: Batch, committed: Committed) -> list[Deliver]:
        now = self._clock.now()
        delivered, unowned = self._memory.win(batch, committed)
        for run_id in unowned:
            self._parts.enqueue(Wake(run_id=run_id, at=now))
        for event_id in committed.spreading:
            self._parts.enqueue(Spread(run_id="", at=now, event_id=event_id))
        return delivered


__all__ = ["Settlement"]
