"""A store on a simulated database. It is the client side of one engine."""

from __future__ import annotations

import asyncio
import builtins
import math
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from msgspec.structs import replace

from perdure.errors import CommitConflict, OutcomeUnknown, PerdureError, StoreBusy
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.rows import Engine, Mail
from perdure.kernel.tasks import Task
from perdure.ports import LoadedRun, Offer
from perdure.storage.memory import MemoryStore
from perdure.testing.proxy import StoreProxy
from perdure.testing.simulate.database import SimulatedDatabase
from perdure.testing.simulate.loop import process_name
from perdure.testing.simulate.transactions import Bug

__all__ = ["SimulatedStore"]

T = TypeVar("T")


class SimulatedStore(StoreProxy):
    """The store of one engine. Each read is one statement. When its answer arrives, it may be out of date."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database
        self._memory = MemoryStore(database.memory)
        self._is_over = False
        self._doubtful: builtins.list[LoadedRun] = []
        self._renewed_at: dict[str, float] = {}  # when the heartbeat of each engine was last renewed
        super().__init__(self._memory)

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        try:
            await self._database.network.arrive()
        except BaseException:
            request.close()
            raise
        self._database.look_for_life()
        answer = await request
        await self._database.network.pass_by()
        return answer

    async def open(self) -> None:
        await self.inner.open()

    async def close(self) -> None:
        self.abandon()

    def abandon(self) -> None:
        self._is_over = True
        self._database.listeners.pop(self, None)
        self._memory.abandon()

    def listen(self, on_change: Callable[[], object]) -> None:
        self._database.listeners[self] = (on_change, copy_context())

    # Writing.

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        asked_at = asyncio.get_running_loop().time()
        given = {"engine_id": engine_id, "host": host, "pid": pid, "workflows": workflows, "at": at}
        engine = await self._through(self._enrolled(given))
        self._renewed_at[engine_id] = asked_at
        self._database.processes[engine_id] = process_name.get()
        self._beat(engine_id)
        return engine

    async def _enrolled(self, given: dict[str, Any]) -> Engine:
        engine = await self._memory.enroll(**given)
        self._database.give_sign(engine.id)
        return engine

    def is_surely_alive(self) -> bool:
        """Return whether the heartbeat of the engine that registered last was renewed less than a lease ago."""
        lease_s = self._database.lease_s
        if lease_s is None:
            return self._memory.is_surely_alive()
        newest = next(reversed(self._renewed_at.values()), None)
        return newest is not None and asyncio.get_running_loop().time() < newest + lease_s

    def withdraw(self, engine_id: str) -> None:
        self._memory.withdraw(engine_id)
        self._renewed_at.pop(engine_id, None)
        self._database.take_back_sign(engine_id)

    def _beat(self, engine_id: str) -> None:
        """Renew the heartbeat as a thread of the engine's process would. While the process is paused, it is not
        renewed.
        """
        lease_s = self._database.lease_s
        if lease_s is None or self._is_over or engine_id not in self._renewed_at:
            return
        loop = asyncio.get_running_loop()
        self._renewed_at[engine_id] = loop.time() if self._database.renew_sign(engine_id) else -math.inf
        loop.call_later(lease_s / 4, self._beat, engine_id)

    async def retire(self, engine_id: str) -> None:
        await self._write(lambda: self._database.retire(engine_id, self._memory.retire))
        self._database.notify_others(self)

    async def mark_dead_engines(self) -> builtins.list[str]:
        return await self._write(self._database.mark_dead_engines)

    async def commit(self, batch: Batch) -> Committed:
        database = self._database
        fate = database.network.fate()
        if not fate.startswith("unknown"):
            await self._arrive()
            committed = await database.serve(database.commit(batch, fate))
            database.notify_others(self)
            await database.network.pass_by()
            return committed
        await self._arrive()
        try:
            if fate == "unknown_late":
                _ = database.start(database.commit(batch, fate))
            else:
                await database.serve(database.commit(batch, fate))
        except PerdureError:
            pass  # The answer is lost.
        await database.network.pass_by()
        if Bug.UNKNOWN_IS_FAILURE in database.bugs:
            raise CommitConflict(frozenset(batch.runs))
        raise OutcomeUnknown("the connection was lost, as drawn by lot")

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> builtins.list[Task]:
        claim = partial(
            self._memory.claim_tasks, queue=queue, worker=worker, lease_us=lease_us, at=at, limit=limit, actor=actor
        )
        return await self._write(lambda: self._database.claim_tasks(claim))

    async def renew_lease(
        self, *, task_id: str, worker: str, at: int, details: str | None = None, actor: str = ""
    ) -> bool:
        wanted: dict[str, Any] = {"worker": worker, "at": at, "details": details, "actor": actor}
        renew = partial(self._memory.renew_lease, task_id=task_id, **wanted)
        return await self._write(lambda: self._database.renew_lease(task_id, renew))

    async def use_token(self, name: str, *, at: int) -> None:
        await self._write(lambda: self._memory.use_token(name, at=at))

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        return await self._write(lambda: self._memory.purge_sessions(at=at, limit=limit))

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        claim = partial(self._memory.claim, engine_id=engine_id, epoch=epoch, offers=offers, limit=limit)
        if self._doubtful and (landed := await self._landed(engine_id)):
            return landed
        return await self._write(lambda: self._database.claim(engine_id, claim), self._doubt)

    def _doubt(self, claimed: builtins.list[LoadedRun]) -> None:
        self._doubtful = claimed

    async def _landed(self, engine_id: str) -> builtins.list[LoadedRun]:
        """Return the runs of a claim whose answer was lost, in their current state. The next claim looks for them
        first.
        """
        found = await self.load([one.run.id for one in self._doubtful])
        doubtful, self._doubtful = self._doubtful, []
        now = [(one, found[one.run.id]) for one in doubtful if one.run.id in found]
        return [
            replace(there, orphaned=one.orphaned)
            for one, there in now
            if (there.run.owner, there.run.claim) == (engine_id, one.run.claim)
        ]

    async def leave_mail(self, mail: Mail) -> int:
        mail_id = await self._write(lambda: self._database.leave_mail(mail))
        self._database.notify_others(self)
        return mail_id

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        # Replies are first read and then deleted. If one statement did both and its answer was lost, the replies would
        # be lost too. Replies that could not be deleted are removed later by `purge`.
        replies = self._database.memory.replies
        await self._arrive()
        found = {slot: replies[slot][0] for slot in slots if slot in replies}
        if found:
            with suppress(StoreBusy):
                await self._write(lambda: self._memory.collect(list(found)))
        return found

    async def purge(self, *, at: int, keys_before: int, limit: int) -> int:
        return await self._write(lambda: self._memory.purge(at=at, keys_before=keys_before, limit=limit))

    async def _write(
        self, work: Callable[[], Coroutine[Any, Any, T]], unheard: Callable[[T], object] = lambda _: None
    ) -> T:
        """Let the database make a write that may be repeated, and return its answer. Raises StoreBusy if the answer is
        lost.
        """
        await self._arrive()
        answer = await self._database.serve(work())
        await self._database.network.pass_by()
        if self._database.network.loses_answer():
            unheard(answer)
            raise StoreBusy("the answer was lost, as drawn by lot")
        return answer

    async def _arrive(self) -> None:
        await self._database.network.arrive()
        await self._memory.engines()  # This raises unless the store is open.
