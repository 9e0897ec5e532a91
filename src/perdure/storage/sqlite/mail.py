"""Mail and replies. commit.py writes mail that a batch leaves or consumes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from functools import partial

from perdure.kernel.rows import Mail
from perdure.storage.sqlite.commit import posting
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.queries import QUERIES
from perdure.storage.sqlite.rows import json_text, mail_of
from perdure.storage.sqlite.transaction import transaction


class SqliteMail(SqliteSlice):
    """Mail and replies."""

    async def leave_mail(self, mail: Mail) -> int:
        mail_id = await self._db.write(partial(_post, mail=mail))
        self._db.neighbour.notify()
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        variables = {"engine_id": engine_id, "limit": max(0, limit)}
        return [mail_of(row) for row in await self._db.fetch("mail", variables)]

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        # An engine that waits for a reply asks often. The writer's lock is taken only if a reply has arrived.
        there = [slot for (slot,) in await self._db.fetch("replies", {"ids": json_text([*slots])})]
        return await self._db.write(partial(_collect, slots=there)) if there else {}


def _post(connection: sqlite3.Connection, *, mail: Mail) -> int:
    with transaction(connection):
        left = connection.execute(*posting(mail))
        return (left.lastrowid or 0) if left.rowcount else 0


def _collect(connection: sqlite3.Connection, *, slots: list[str]) -> dict[str, str]:
    with transaction(connection):
        return dict(connection.execute(QUERIES["take_replies"], {"ids": json_text(slots)}).fetchall())
