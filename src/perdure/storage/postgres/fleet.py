"""Engines that share a database: who owns what, and what there is to do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from perdure.ports import LoadedRun, News, Offer
from perdure.storage.claims import better_models, models_of, versions_of
from perdure.storage.postgres.commit import check_fence
from perdure.storage.postgres.connection import Connection
from perdure.storage.postgres.faults import is_lost
from perdure.storage.postgres.reads import fetch, load_now


def offered(offers: Sequence[Offer]) -> dict[str, Any]:
    """Which runs fit, for a query."""
    rows = [
        (offer.workflow, offer.version, stored, offer.fingerprint, *models_of(offer), offer.begun)
        for offer in offers
        for stored in versions_of(offer)
    ]
    columns = ("workflows", "versions", "stored_versions", "fingerprints", "models", "or_models", "begun")
    return {column: [row[place] for row in rows] for place, column in enumerate(columns)}


async def look(connection: Connection, *, engine_id: str, offers: Sequence[Offer], at: int) -> News:
    rows = await fetch(connection, "look", engine_id=engine_id, at=at, **offered(offers))
    mail, dead, stray, blocked = rows[0]
    return News(mail=mail, dead=dead, stray=stray, blocked=blocked)


class Claims:
    """Taking runs over. A claim whose commit was not answered is found out before the next one."""

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
        """As they are by now: others may have sent them something since."""
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
