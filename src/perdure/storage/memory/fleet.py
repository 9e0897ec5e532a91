"""Engines that share a database: which engines are alive, and which runs each engine owns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from msgspec.structs import replace

from perdure.errors import CommitRefused
from perdure.kernel.rows import Engine
from perdure.ports import LoadedRun, Offer, WorkFound
from perdure.storage.claims import better_models
from perdure.storage.memory.claims import claimable, free_runs, may_be_unblocked, runs_due
from perdure.storage.memory.commit import check_fence, check_storable
from perdure.storage.memory.connection import MemorySlice
from perdure.storage.memory.database import MemoryDatabase
from perdure.storage.memory.mail import is_for
from perdure.storage.memory.reads import loaded

_SIGNED_OFF: Final = 0  # stored instead of the time at which an engine was found dead


class MemoryFleet(MemorySlice):
    """Engines."""

    def listen(self, on_change: Callable[[], object]) -> None:
        self._db.listen(on_change)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        database = self._db.opened()
        with database.lock:
            return WorkFound(
                mail=any(is_for(database, mail, engine_id) for mail in database.mail.values()),
                dead=any(engine.alive and engine.id not in database.living for engine in database.engines.values()),
                stray=bool(claimable(database, offers) or runs_due(database, offers, at + 1)),
                blocked=any(may_be_unblocked(run, offer) for run, offer in free_runs(database, offers)),
            )

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        database = self._db.opened()
        check_storable(engine_id, host, pid, at, *(text for pair in workflows for text in pair))
        with database.lock:
            if engine_id in database.engines:
                raise CommitRefused(f"engine {engine_id!r} is enrolled already; every engine needs its own id")
            engine = Engine(
                id=engine_id,
                epoch=1 + max((known.epoch for known in database.engines.values()), default=0),
                alive=True,
                batch=0,
                host=host,
                pid=pid,
                workflows=[*workflows],
                started_at=at,
            )
            database.engines[engine_id] = engine
            database.living.add(engine_id)
            self._db.enrolled.add(engine_id)
        return engine

    async def retire(self, engine_id: str) -> None:
        database = self._db.opened()
        with database.lock:
            if engine := database.engines.get(engine_id):
                database.engines[engine_id] = replace(engine, alive=False)
            for run_id in database.active:
                stored = database.runs[run_id]
                if stored.run.owner == engine_id:
                    database.runs[run_id] = replace(stored, run=replace(stored.run, owner=None))
            if engine is not None:
                database.ended[engine_id] = _SIGNED_OFF
                _forget_signed_off(database)
        self._db.notify_others()

    def withdraw(self, engine_id: str) -> None:
        with self._db.database.lock:
            self._db.enrolled.discard(engine_id)
            self._db.database.living.discard(engine_id)

    def is_surely_alive(self) -> bool:
        return bool(self._db.enrolled)

    async def mark_dead_engines(self) -> list[str]:
        database = self._db.opened()
        with database.lock:
            dead = [e for e in database.engines.values() if e.alive and e.id not in database.living]
            database.engines.update({engine.id: replace(engine, alive=False) for engine in dead})
        return [engine.id for engine in dead]

    async def engines(self, *, living: bool = False) -> list[Engine]:
        found = [engine for engine in self._db.opened().engines.values() if engine.alive or not living]
        return sorted(found, key=lambda engine: engine.epoch)

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        database = self._db.opened()
        with database.lock:
            check_fence(database, engine_id, epoch)
            claimed: list[LoadedRun] = []
            for was in claimable(database, offers)[: max(0, limit)]:
                model = better_models([was], offers).get(was.id, was.model)
                run = replace(was, owner=engine_id, claim=was.claim + 1, model=model)
                database.runs[run.id] = replace(database.runs[run.id], run=run)
                claimed.append(replace(loaded(database, run), orphaned=was.owner is not None))
            return claimed


def is_needless(database: MemoryDatabase, engine: Engine) -> bool:
    """Return whether a dead engine can be forgotten. It must own nothing, and it must not be the last engine that
    registered. A later engine must have the same code.
    """
    later = [one for one in database.engines.values() if one.epoch > engine.epoch]
    return (
        not engine.alive
        and bool(later)
        and (not engine.workflows or any(one.workflows == engine.workflows for one in later))
        and all(database.runs[run_id].run.owner != engine.id for run_id in database.active)
    )


def _forget_signed_off(database: MemoryDatabase) -> None:
    """Forget engines that have signed off. The engine that registered last stays until another engine has signed
    off.
    """
    signed_off = [id for id, ended_at in database.ended.items() if ended_at == _SIGNED_OFF]
    for engine_id in signed_off:
        if is_needless(database, database.engines[engine_id]):
            del database.engines[engine_id], database.ended[engine_id]
