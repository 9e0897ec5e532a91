"""Cells of a furnished store, drawn by lot, and rubbish to put there: on SQLite and on Postgres."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from random import Random
from typing import Any, Protocol
from urllib.parse import urlsplit

import asyncpg
from msgspec import Struct

from perdure.storage.sqlite.schema import OUR_TABLES
from tests.engine.damaged_world import furnish
from tests.storage.postgres.server import PostgresServer

Row = dict[str, Any]

# A few texts for every kind of column: no JSON, JSON of another kind, JSON that is too deep, nothing, very much.
TEXTS = ["garbage", "{garbage", "", "null", "5", "[]", '{"a": 1}', '"\\ud800"', "[" * 5_000, "x" * 5_000, "\ufffe'\"--"]
NUMBERS = [-5, 0, 1, 2**31 - 1, 2**62, 2**63 - 1, -(2**63)]
NO_TEXT = sqlite3.Binary(b"no utf-8 \xff")  # SQLite takes it for text all the same.
ON_SQLITE = [*TEXTS, *NUMBERS, 3.5, b"\xff\xfe", b"", NO_TEXT, None]
ON_POSTGRES: dict[str, list[Any]] = {
    "text": TEXTS,
    "bigint": NUMBERS,
    "integer": [-5, 0, 2**31 - 1, -(2**31)],
    "boolean": [True, False],
    "bytea": [b"", b"\xff\xfe", b"{garbage"],
    "timestamp with time zone": ["infinity", "-infinity", "epoch", "290000-01-01"],
    "interval": ["0", "-1 hour", "100000 years"],
    "text[]": ["{}", '{"",garbage}'],
}


class Column(Struct, frozen=True):
    table: str
    name: str
    type: str

    @property
    def place(self) -> str:
        return f"{self.table}.{self.name}"


class DamagedStore(Protocol):
    """A store that is furnished once, and copied for each cell that is damaged."""

    async def furnish(self) -> None: ...

    async def columns(self) -> list[Column]: ...

    async def copy(self) -> str:
        """A new copy, whole. Returns its URL."""
        ...

    async def rows(self, table: str) -> list[Row]: ...

    def rubbish(self, column: Column) -> list[Any]: ...

    async def change(self, column: Column, row: Row, value: Any) -> bool:
        """Whether the database let it be changed."""
        ...


class SqliteDamage:
    def __init__(self, folder: Path) -> None:
        self._whole, self._copy = folder / "whole.db", folder / "copy.db"

    async def furnish(self) -> None:
        path = self._whole.with_name("furnished.db")
        await furnish(f"sqlite:///{path}")
        with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(self._whole)) as copy:
            connection.backup(copy)

    async def columns(self) -> list[Column]:
        with closing(sqlite3.connect(self._whole)) as connection:
            return [
                Column(table, name, kind.lower())
                for table in sorted(OUR_TABLES - {"new_runs", "new_waits"})
                for _, name, kind, *_ in connection.execute(f"pragma table_info({table})")
            ]

    async def copy(self) -> str:
        for path in self._copy.parent.glob("copy.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copyfile(self._whole, self._copy)
        return f"sqlite:///{self._copy}"

    async def rows(self, table: str) -> list[Row]:
        with closing(sqlite3.connect(self._copy)) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(row) for row in connection.execute(f"select * from {table}")]

    def rubbish(self, column: Column) -> list[Any]:
        return ON_SQLITE

    async def change(self, column: Column, row: Row, value: Any) -> bool:
        condition = " and ".join(f'"{name}" is ?' for name in row)
        given = "cast(? as text)" if value is NO_TEXT else "?"
        with closing(sqlite3.connect(self._copy)) as connection, connection:
            if column.name == "tags":  # The trigger reads them.
                connection.execute("drop trigger run_tags_update")
            statement = f'update {column.table} set "{column.name}" = {given} where {condition}'
            try:
                return connection.execute(statement, (value, *row.values())).rowcount > 0
            except sqlite3.IntegrityError:
                return False


class PostgresDamage:
    """A database of its own, which is the template of its copies."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._base = server.url.removesuffix(urlsplit(server.url).path)
        self._number = 0

    async def furnish(self) -> None:
        await self._admin("drop database if exists furnished with (force)", "create database furnished")
        await furnish(f"{self._base}/furnished?schema=perdure")
        end = "select pg_terminate_backend(pid) from pg_stat_activity where datname = 'furnished'"
        await self._admin(end, "alter database furnished with allow_connections false")

    async def columns(self) -> list[Column]:
        await self.copy()
        text = """select table_name, column_name, case data_type when 'ARRAY' then 'text[]' else data_type end
            from information_schema.columns join information_schema.tables using (table_schema, table_name)
            where table_schema = 'perdure' and table_type = 'BASE TABLE' order by table_name, ordinal_position"""
        return [Column(*row) for row in await self._fetch(text)]

    async def copy(self) -> str:
        if self._number:
            await self._admin(f"drop database copy{self._number} with (force)")
        self._number += 1
        await self._admin(f"create database copy{self._number} template furnished")
        return f"{self._base}/copy{self._number}?schema=perdure"

    async def rows(self, table: str) -> list[Row]:
        return [dict(row) for row in await self._fetch(f"select ctid, * from {table}")]

    def rubbish(self, column: Column) -> list[Any]:
        return ON_POSTGRES[column.type]

    async def change(self, column: Column, row: Row, value: Any) -> bool:
        if column.name == "tags":  # The trigger reads them.
            await self._fetch("alter table runs disable trigger run_tags_update")
        quoted = f"cast($1::text as {column.type})" if isinstance(value, str) else "$1"
        try:
            statement = f'update {column.table} set "{column.name}" = {quoted} where ctid = $2 returning 1'
            return bool(await self._fetch(statement, value, row["ctid"]))
        except (asyncpg.IntegrityConstraintViolationError, asyncpg.ProgramLimitExceededError):
            return False

    async def _fetch(self, text: str, *values: Any) -> list[Any]:
        settings = {"search_path": "perdure"}
        connection: Any = await asyncpg.connect(f"{self._base}/copy{self._number}", server_settings=settings)
        try:
            found: list[Any] = await connection.fetch(text, *values)
        finally:
            await connection.close()
        return found

    async def _admin(self, *statements: str) -> None:
        connection: Any = await asyncpg.connect(self._server.url)
        try:
            for text in statements:
                await connection.execute(text)
        finally:
            await connection.close()


def _mentions(row: Row, words: Iterable[str]) -> bool:
    cells = [cell for cell in row.values() if isinstance(cell, str)]
    return any(word in cell for word in words for cell in cells)


async def victims(store: DamagedStore, who: str = "victim") -> list[str]:
    """The ids of the runs that may be damaged, with those that they began."""
    runs, found = await store.rows("runs"), [who]
    while more := [run["id"] for run in runs if run["id"] not in found and _mentions(run, found)]:
        found += more
    return found[1:]


async def drawn_row(store: DamagedStore, table: str, draw: Random, mine: list[str], others: list[str]) -> Row | None:
    """Any row of those that may be damaged; of a table without them any row that is nobody's."""
    rows = [row for row in await store.rows(table) if not _mentions(row, ["other", *others])]
    best = [row for row in rows if _mentions(row, ["victim", *mine])] or rows
    return draw.choice(best) if best else None
