"""Three database roles instead of one.

An owner creates and changes the tables. A role for engines only reads and writes the tables. A role for callers can
start runs in transactions of its own, and nothing else.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import asyncpg

from perdure.errors import Misuse
from perdure.storage.postgres.address import parse
from perdure.storage.postgres.connection import connect
from perdure.storage.postgres.faults import FAULTS, store_fault
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.schema import TABLES, inspect, migrate

_GRANTS: Final = Path(__file__).with_name("grants.sql").read_text("utf-8")
_CALLER_GRANTS: Final = Path(__file__).with_name("caller_grants.sql").read_text("utf-8")


def grants(role: str, schema: str = "perdure") -> str:
    """Return the SQL that gives a role all rights that an engine needs, and no other rights. It can be repeated at any
    time.
    """
    return _GRANTS.format(schema=_quoted(schema), role=_quoted(role))


def caller_grants(role: str, schema: str = "perdure") -> str:
    """Return the SQL with which a role can start runs and emit messages in transactions of its own (`connection=`).

    The SQL removes every other right in the schema from the role. It can be repeated at any time.
    """
    return _CALLER_GRANTS.format(schema=_quoted(schema), role=_quoted(role))


async def upgrade(url: str, *, runtime_role: str | None = None, caller_role: str | None = None) -> None:
    """Create or upgrade the schema, and grant rights. Call it as the owner of the schema.

    `runtime_role` gets all rights that an engine needs. `caller_role` gets only the rights that `start(connection=…)`
    and `emit(connection=…)` need.

    Engines that connect as the owner upgrade the schema themselves. If an engine connects as another role, call this
    before the engine starts, and after each upgrade of Perdure. It can be repeated at any time. A crash leaves no
    half-done migration, and the rights as they were. Raises Misuse, StoreBusy, StoreBroken, SchemaTooNew.
    """
    address = parse(url)
    if runtime_role is not None and runtime_role == caller_role:
        raise Misuse(
            f"the role {runtime_role!r} cannot be both: a role for engines may start runs in its own transactions,"
            " and caller_role= would take its other rights"
        )
    try:
        connection = await connect(address.direct, "migration", patient=True)
        try:
            await migrate(connection, address.schema)
            async with connection.transaction():
                if runtime_role is not None:
                    await connection.execute(grants(runtime_role, address.schema))
                if caller_role is not None:
                    await connection.execute(caller_grants(caller_role, address.schema))
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise store_fault(error, address.name) from error


async def schema_version(url: str) -> int | None:
    """Return the version of the schema. It is 0 if the schema is empty, and None if the schema does not exist.

    This changes nothing. Raises Misuse, StoreBusy, StoreBroken, SchemaTooNew.
    """
    address = parse(url)
    try:
        connection = await connect(address.direct, "look")
        try:
            return await inspect(connection, address.schema)
        finally:
            await connection.close()
    except (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError) as error:
        raise store_fault(error, address.name) from error


async def lacking(url: str) -> list[str]:
    """Return the tables, and the rights on tables, that a store needs and this user does not have. They are texts for
    people.

    This changes nothing. Raises the same errors as `schema_version`.
    """
    address = parse(url)
    query = QUERIES["lacking"]
    try:
        connection = await connect(address.direct, "look")
        try:
            wanted = {"schema": address.schema, "tables": sorted(TABLES)}
            rows = await connection.fetch(query.sql, *query.arguments(wanted))
        finally:
            await connection.close()
    except FAULTS as error:
        raise store_fault(error, address.name) from error
    return [f"rights on table {name}" if is_there else f"table {name}" for name, is_there in rows]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
