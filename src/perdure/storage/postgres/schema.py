"""The tables: the version of a schema, and the migrations that upgrade it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import asyncpg

from perdure.errors import SchemaTooNew, StoreBroken
from perdure.storage.postgres.driver import Connection


def _load_migrations() -> Mapping[int, str]:
    files = (Path(__file__).parent / "migrations").glob("*.sql")
    return {int(file.name[:4]): file.read_text("utf-8") for file in files}


MIGRATIONS: Final = dict(sorted(_load_migrations().items()))
SCHEMA_VERSION: Final = max(MIGRATIONS)
TABLES: Final = frozenset(
    name for text in MIGRATIONS.values() for name in re.findall(r"^create table (\w+)", text, re.MULTILINE)
)


async def migrate(connection: Connection, schema: str) -> None:
    """Create the schema if it does not exist, and apply the missing migrations. Each migration has a transaction of its
    own.

    Several processes may call this at the same time. The process that gets the lock second finds the work done. A crash
    leaves no half-done migration. Raises SchemaTooNew. Raises StoreBroken if the schema has tables that are not
    Perdure's, or if this user lacks the rights.
    """
    version = await inspect(connection, schema)
    if version == SCHEMA_VERSION:
        return
    try:
        await _apply(connection, schema)
    except asyncpg.InsufficientPrivilegeError as error:
        what = f"version {version}, and this Perdure needs {SCHEMA_VERSION}" if version else "no tables yet"
        what = f"the schema {schema!r} has {what}" if version is not None else f"there is no schema {schema!r}"
        raise StoreBroken(
            f"{what}, and this user has not the rights to change that ({error}); have the owner of the schema, or of"
            " the database, do it with perdure.storage.postgres.upgrade",
            schema=schema,
            version=version,
        ) from error


async def _apply(connection: Connection, schema: str) -> None:
    for number, text in MIGRATIONS.items():
        async with connection.transaction():
            await connection.execute(f'set local search_path to "{schema}"')
            await connection.execute("select pg_advisory_xact_lock(hashtextextended('perdure:' || $1, 0))", schema)
            version = await inspect(connection, schema)
            if version is None:
                await connection.execute(f'create schema "{schema}"')
            if (version or 0) < number:
                await connection.execute(text)
                await connection.execute("delete from perdure_schema")
                await connection.execute("insert into perdure_schema (version) values ($1)", number)


async def inspect(connection: Connection, schema: str) -> int | None:
    """Return the version of the schema. It is 0 if the schema is empty, and None if the schema does not exist.

    Raises SchemaTooNew, StoreBroken.
    """
    if not await connection.fetchval("select exists (select 1 from pg_namespace where nspname = $1)", schema):
        return None
    tables = await connection.fetch("select tablename from pg_tables where schemaname = $1", schema)
    if "perdure_schema" not in {table[0] for table in tables}:
        if tables:
            raise StoreBroken(
                f"the schema {schema!r} has tables that Perdure did not make; give Perdure a schema of its own with"
                " ?schema=… in the URL",
                schema=schema,
            )
        return 0
    query = f'select max(version) from "{schema}".perdure_schema'  # noqa: S608 - a schema's name has no quotes in it
    version: int | None = await connection.fetchval(query)
    if version is None or version < 1:
        raise StoreBroken(
            f"the schema {schema!r} has lost its version: perdure_schema.version is {version}; restore it from a"
            " backup",
            schema=schema,
        )
    if version > SCHEMA_VERSION:
        raise SchemaTooNew(
            f"the schema {schema!r} has version {version}, and this Perdure knows versions up to {SCHEMA_VERSION};"
            " upgrade Perdure, or restore a backup from before the upgrade",
            schema=schema,
            version=version,
            known=SCHEMA_VERSION,
        )
    return version
