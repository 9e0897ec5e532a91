"""The coordinator has one queue, and decides one op at a time. Each batch has one commit. Replies and effects follow
after the commit.

During a commit, ops queue up. The next batch is decided once the outcome of the commit is known. settlement.py handles
failed commits, store_retries.py repeats requests, and registration.py handles an engine that was marked dead. No other
part of the engine writes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Container, Sequence
from contextlib import suppress
from typing import Any

from perdure.coordinator.caller_patience import call_began
from perdure.coordinator.damage import damage_to
from perdure.coordinator.listener import CoordinatorListener
from perdure.coordinator.parts import Parts, verb
from perdure.coordinator.queued_ops import Callback, Item
from perdure.coordinator.registration import Registration
from perdure.coordinator.settlement import Settlement
from perdure.coordinator.store_retries import StoreRequests
from perdure.errors import EngineStopped, PerdureError, RunOwnedElsewhere, StoreError, StoreMisconfigured
from perdure.kernel.ops import CheckFence, Op, Wake
from perdure.kernel.rows import Engine
from perdure.kernel.runs import Run
from perdure.kernel.wait_matches import Mailbox
from perdure.ports import Clock, LoadedRun, Probe, Store
from perdure.values.limits import Limits

log = logging.getLogger("perdure")


class Coordinator:
    """Decides and commits ops one after the other. After the commit of each batch, the listener gets its effects, in
    order, in plain callbacks.

    `workflows` returns the models, names and versions that this engine can run now.
    """

    def __init__(
        self,
        store: Store,
        *,
        limits: Limits,
        clock: Clock,
        workflows: Callable[[], Container[tuple[str, str, str]]],
        listener: CoordinatorListener,
        probe: Probe | None = None,
    ) -> None:
        self._parts = parts = Parts(store, limits, clock, listener, probe)
        requests = StoreRequests(parts)
        self._registration = Registration(parts, requests)
        self._settlement = Settlement(parts, requests, self._registration, workflows)
        self._put = parts.put
        self._inbox = parts.inbox
        self._memory = parts.memory
        self._effects = parts.effects
        self._probe = probe
        self.callers = parts.callers
        self.stats = parts.stats
        self.limits = limits
        self.stopping = parts.stopping
        self._worker: asyncio.Task[None] | None = None
        self.taken: Callable[[], object] | None = None  # called each time a batch was taken from the queue
        self.firing = parts.inbox.firing  # entered while timers fire
        self.is_cut_off = False  # whether the worker was cancelled from outside, for example because the process ends

    @property
    def engine(self) -> Engine:
        return self._registration.engine

    @property
    def idle(self) -> bool:
        """Whether nothing is queued and nothing is being committed."""
        return self._parts.is_idle

    async def start(self) -> None:
        await self._registration.join()
        self._parts.stopped = None
        self._parts.rest()
        self._worker = asyncio.get_running_loop().create_task(self._work(), name="perdure-coordinator")

    async def stop(self) -> None:
        """Refuse new ops from outside, commit all queued ops, and end. Idempotent."""
        if self._parts.stopped is None:
            self._parts.stopped = EngineStopped("the engine is shutting down")
            if not self._registration.is_restarting:  # If the engine is restarting, nothing can be committed.
                await self._parts.idle.wait()
        self.kill()

    def kill(self) -> None:
        """End at once. Ops that were not committed have no effect."""
        self._parts.stopped = self._parts.stopped or EngineStopped("the engine was stopped")
        if self._worker is not None:
            self._worker.cancel()
            self._worker = None
        for item in self._inbox.empty():
            item.refuse(EngineStopped("the engine was stopped before this was committed; nothing was written"))
        self.callers.rest()
        self._inbox.leave()
        self._effects.stop()
        self._parts.rest()

    def loaded(self, run_id: str) -> Run | None:
        """Return a run of this engine in the state of its last commit. This reads only memory, so the store may have a
        newer state.
        """
        return self._memory.runs.get(run_id)

    def mailbox(self, run_id: str) -> Mailbox:
        """Return the mailbox of a run of this engine in the state of its last commit. It has the events that the run
        waits for and was sent.
        """
        return self._memory.mailbox(run_id)

    async def claim(self, request: Callable[[], Awaitable[list[LoadedRun]]]) -> list[LoadedRun]:
        """Add the runs that the store gives to this engine to memory, except damaged runs. Return all runs that the
        store has given. The caller submits a `Take` for each sound run, and sets the damaged runs aside.

        When the store's answer arrives, it may be out of date. For example, a caller may have cancelled one of the runs
        in the meantime. In that case the newer state in memory counts, and the `Take` is decided on that state.
        """
        memory = self._memory
        changed = memory.changed = set()
        try:
            # If the engine has registered again in the meantime, it no longer owns the runs that it claimed under its
            # old id.
            claimed = [one for one in await request() if one.run.owner == self._registration.engine.id]
        finally:
            memory.changed = None
        sound = [one for one in claimed if damage_to(one) is None]
        memory.adopt(one for one in sound if one.run.id not in changed)
        memory.untaken.update((one.run.id, one.run.claim) for one in sound)
        return claimed

    async def submit(self, op: Op) -> Any:
        """Have an op decided and committed, and return its reply. This waits while the inbox is full."""
        return await (await self._enter(op))

    async def submit_batch(self, ops: Sequence[Op]) -> list[Any]:
        """Submit several ops in a row. They share a commit if they fit one batch. If an op is refused, its error is
        returned in the place of its reply.
        """
        replies: list[asyncio.Future[Any]] = []
        try:
            for op in ops:
                replies.append(await self._enter(op))  # noqa: PERF401 - ops that entered before an error count
        except EngineStopped as stopped:
            answered = await asyncio.gather(*replies, return_exceptions=True)
            return [*answered, *[stopped] * (len(ops) - len(replies))]
        except BaseException:
            for reply in replies:
                reply.cancel()
            raise
        return await asyncio.gather(*replies, return_exceptions=True)

    async def _enter(self, op: Op) -> asyncio.Future[Any]:
        """Queue an op as soon as there is room, and return a future for its reply."""
        if self._probe is not None and (stop := self._probe.reached(f"{verb(op)}.submit", op.run_id)) is not None:
            await stop
        loop = asyncio.get_running_loop()
        since = loop.time() if (call := call_began.get()) is None else call
        refusal: PerdureError | None = None
        if (turn := self._inbox.enter()) is not None:
            await turn
            refusal = self.callers.overdue(since)
        if (refusal := self._parts.stopped or refusal) is not None:
            self._inbox.leave()  # The next caller that waits for room can go on.
            raise refusal
        reply: asyncio.Future[Any] = loop.create_future()
        self._put(Item(op, reply, True, 0, since))
        return reply

    async def submit_internal(self, ops: Sequence[Op]) -> list[Any]:
        """Submit the engine's own ops, as submit_batch does. They are never refused because the inbox is full or the
        store does not answer.
        """
        if self._worker is None:
            raise self._parts.stopped or EngineStopped("the engine was stopped")
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = [loop.create_future() for _ in ops]
        for op, reply in zip(ops, replies, strict=True):
            self._put(Item(op, reply, False))
        return await asyncio.gather(*replies, return_exceptions=True)

    async def decide_mail(self, requests: Sequence[tuple[Op, int]]) -> bool:
        """Decide ops that came by mail, and consume the mail. Return whether all of the mail was consumed. If not,
        another engine owns one of the runs or seems to own it, or this engine has stopped.
        """
        loop = asyncio.get_running_loop()
        replies: list[asyncio.Future[Any]] = []
        for op, mail_id in requests:
            if self._worker is not None:
                replies.append(loop.create_future())
                self._put(Item(op, replies[-1], False, mail_id))
        decided = await asyncio.gather(*replies, return_exceptions=True)
        return self._worker is not None and not any(isinstance(reply, RunOwnedElsewhere) for reply in decided)

    async def check_fence(self) -> None:
        """Find out whether this engine may still write. If it was marked dead, it has dropped all its runs when this
        returns.
        """
        with suppress(EngineStopped):
            await self.submit_internal([CheckFence(run_id="", at=self._parts.clock.now())])

    def request(self, op: Op, answered: Callable[[Any, BaseException | None], object]) -> None:
        """Queue an op as `enqueue` does, and get its reply. `answered` is called with the reply and None, or with None
        and the error. It is called before the effects of the commit are performed. It must return quickly, because the
        other callers of the commit wait.
        """
        if self._worker is None:
            answered(None, self._parts.stopped or EngineStopped("the engine was stopped"))
        else:
            self._put(Item(op, Callback(answered), False, is_due=self._inbox.is_firing))

    def start_over(self, error: StoreMisconfigured) -> None:
        """Drop all runs and register again, because the engine cannot use its store in its present state. Returns at
        once.
        """
        if self._worker is not None and self._registration.unfit is None and not self._registration.is_restarting:
            self._registration.unfit = error
            self.enqueue(CheckFence(run_id="", at=self._parts.clock.now()))

    @property
    def queued_due(self) -> int:  # how many queued ops come from timers
        return self._inbox.due

    def enqueue(self, op: Op, answered: Callable[[Any, BaseException | None], object] | None = None) -> None:
        """Queue an op of the engine itself. It is never refused, and has no reply. `answered` is called in the same way
        as for `request`, unless the engine has stopped.
        """
        if self._worker is not None:
            if self._probe is not None:
                self._probe.reached(f"{verb(op)}.submit", op.run_id)
            self._put(Item(op, None if answered is None else Callback(answered), False, is_due=self._inbox.is_firing))

    def wake(self, op: Wake, seen: LoadedRun, answered: Callable[[Any, BaseException | None], object]) -> None:
        """Queue a Wake as `enqueue` does. The run was just `seen` waiting and without an owner, so it is not read
        again. If the run has changed after that, the commit is refused, because the row is not as expected. Then the
        run is read again.
        """
        if self._worker is not None:
            self._parts.seen[op.run_id] = seen
            self.enqueue(op, answered)

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
                await self._settlement.settle(items)
                await self._effects.performed()  # All effects must be performed before the next batch is decided.
                self._parts.stopping.clear()
                if self._probe is not None:
                    await self._parts.come_by(self._probe, "done", items)
                if not len(self._inbox):
                    # Effects are performed in a callback of their own. After one more turn of the loop, it is known
                    # whether they enqueue new ops.
                    await asyncio.sleep(0)
                    await asyncio.sleep(0)
                    if not len(self._inbox):
                        loop.call_soon(self._check_idle)
        except asyncio.CancelledError:
            for item in items:
                item.refuse(EngineStopped("the engine was stopped while this was committed; it may have been written"))
            self.is_cut_off = self._worker is not None
            # This task may be cancelled together with all tasks of the loop. After that, no caller may wait for this
            # task.
            self.kill()
            raise
        except BaseException as error:  # noqa: BLE001 - every caller that waits must get the error, whatever it is
            self._fail(error, items)

    def _check_idle(self) -> None:
        if not len(self._inbox):
            self._parts.rest()

    def _fail(self, error: BaseException, items: list[Item]) -> None:
        log.error("the engine stops: %s", error, exc_info=not isinstance(error, StoreError))
        stopped = EngineStopped(f"the engine has stopped: {error}")
        stopped.__cause__ = error
        self._parts.stopped = stopped
        for item in [*items, *self._inbox.empty()]:
            item.refuse(stopped)
        self.callers.rest()
        self._inbox.leave()
        self._parts.rest()
        self._worker = None
        self._parts.listener.broken(stopped)
