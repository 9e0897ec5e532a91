"""Engines that share a database: which runs each engine owns, and whether there is work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from perdure.errors import StoreBroken, StoreBusy
from perdure.kernel.rows import Engine
from perdure.ports import LoadedRun, Offer, WorkFound
from perdure.storage.claims import better_models, models_of, versions_of
from perdure.storage.postgres.commit import check_fence
from perdure.storage.postgres.database import Database, PostgresSlice
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.faults import is_lost
from perdure.storage.postgres.hints import ANYBODY
from perdure.storage.postgres.liveness import now
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.reads import fetch, load_now
from perdure.storage.postgres.rows import engine_of, json_text


def offered(offers: Sequence[Offer]) -> dict[str, Any]:
    """Return the variables that tell a query which runs fit the offers."""
    rows = [
        (offer.workflow, offer.version, stored, offer.fingerprint, *models_of(offer), offer.begun)
        for offer in offers
        for stored in versions_of(offer)
    ]
    columns = ("workflows", "versions", "stored_versions", "fingerprints", "models", "or_models", "begun")
    return {column: [row[place] for row in rows] for place, column in enumerate(columns)}


async def look(connection: Connection, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
    rows = await fetch(connection, "look", engine_id=engine_id, at=at, **offered(offers))
    mail, dead, stray, blocked = rows[0]
    return WorkFound(mail=mail, dead=dead, stray=stray, blocked=blocked)


class Claims:
    """Takes over runs. If the commit of a claim was not acknowledged, the next claim first finds out whether it was
    committed.
    """

    def __init__(self) -> None:
        self._doubtful: dict[str, LoadedRun] = {}

    async def claim(
        self, connection: Connection, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> list[LoadedRun]:
        if self._doubtful and (landed := await self._landed(connection, engine_id)):
            return landed
        await connection.execute("begin")
        try:
            rows = await fetch(connection, "fence", id=engine_id)
            check_fence(engine_id, epoch, rows[0] if rows else None)
            claimed = await _claim(connection, engine_id, offers, max(0, limit))
        except Exception as error:
            if not is_lost(error):
                await connection.execute("rollback")
            raise
        try:
            await connection.execute("commit")
        except Exception as error:
            if is_lost(error):
                self._doubtful = {one.run.id: one for one in claimed}
            raise
        return claimed

    async def _landed(self, connection: Connection, engine_id: str) -> list[LoadedRun]:
        """Return the runs that the unacknowledged claim has taken, in their current state. Others may have sent them
        events in the meantime.
        """
        found = {one.run.id: one for one in await load_now(connection, [*self._doubtful])}
        doubtful, self._doubtful = self._doubtful, {}
        return [
            replace(found[run_id], orphaned=one.orphaned)
            for run_id, one in doubtful.items()
            if run_id in found and (found[run_id].run.owner, found[run_id].run.claim) == (engine_id, one.run.claim)
        ]


async def _claim(connection: Connection, engine_id: str, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
    wanted = {**offered(offers), "limit": limit}
    owners = [owner for (owner,) in await fetch(connection, "owners")]
    found = [*await fetch(connection, "claimable", **wanted)]
    if owners:
        found += await fetch(connection, "claimable_orphans", **wanted, owners=owners)
    if known := [offer for offer in offers if offer.fingerprint]:
        found += await fetch(connection, "claimable_blocked", **offered(known), limit=limit)
    orphaned = {run_id: is_orphaned for _, run_id, is_orphaned in sorted(map(tuple, found))[:limit]}
    if not orphaned:
        return []
    ids = [*orphaned]
    await fetch(connection, "take_over", owner=engine_id, ids=ids)
    loaded = {one.run.id: one for one in await load_now(connection, ids)}
    if models := better_models([one.run for one in loaded.values()], offers):
        await fetch(connection, "put_models", ids=[*models], models=[*models.values()])
        for run_id, model in models.items():
            loaded[run_id] = replace(loaded[run_id], run=replace(loaded[run_id].run, model=model))
    return [replace(loaded[run_id], orphaned=orphaned[run_id]) for run_id in ids]


class PostgresFleet(PostgresSlice):
    """Engines."""

    def __init__(self, db: Database) -> None:
        super().__init__(db)
        self._claims = Claims()

    def listen(self, on_change: Callable[[], object]) -> None:
        self._db.listener.listen(on_change)
        self._db.neighbour.listen(on_change)

    async def look(self, *, engine_id: str, offers: Sequence[Offer], at: int) -> WorkFound:
        self._db.check_open()
        async with self._db.lanes.use() as connection:
            return await look(connection, engine_id=engine_id, offers=offers, at=at)

    async def enroll(
        self, *, engine_id: str, host: str, pid: int, workflows: Sequence[tuple[str, str]], at: int
    ) -> Engine:
        row = {"id": engine_id, "host": host, "pid": pid, "workflows": json_text([*workflows]), "started_at": at}
        asked_at = now()
        rows = await self._db.write(QUERIES["enroll"], **row, lease=timedelta(seconds=self._db.address.lease_s))
        self._db.signs.give(engine_id, asked_at)
        self._db.listener.answer_to(engine_id)
        return engine_of(rows[0])

    async def retire(self, engine_id: str) -> None:
        await self._db.write(QUERIES["retire"], id=engine_id)
        await self._db.write(QUERIES["forget_engine"], id=engine_id)
        self._db.notifier.notify([], [ANYBODY])  # The runs of this engine have no owner now.
        self._db.neighbour.notify()

    def withdraw(self, engine_id: str) -> None:
        self._db.signs.withdraw(engine_id)

    def is_surely_alive(self) -> bool:
        return self._db.signs.is_lasting()

    async def mark_dead_engines(self) -> list[str]:
        try:
            rows = await self._db.write(QUERIES["mark_dead_engines"])
        except StoreBusy as busy:
            await self._db.cut_off(busy)
            raise
        # This is done for all dead engines and not only for engines that were marked now. An engine that marks another
        # engine may die before it gets here.
        with suppress(StoreBroken):  # Without the right to end sessions, wait until the server ends them.
            await self._db.write(QUERIES["end_dead_steps"])
        return list(rows[0][0])

    async def engines(self, *, living: bool = False) -> list[Engine]:
        return [engine_of(row) for row in await self._db.read(QUERIES["living_engines" if living else "engines"])]

    async def claim(self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int) -> list[LoadedRun]:
        self._db.check_open()
        async with self._db.lanes.use() as connection:
            return await self._claims.claim(connection, engine_id=engine_id, epoch=epoch, offers=offers, limit=limit)
