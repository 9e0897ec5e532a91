"""The schema of a store: read its version, or upgrade it, without opening the store.

An engine or a client that opens an older store upgrades it. After that, older versions of Perdure refuse the store. So
a program that only reads should check the version here first.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import Misuse
from perdure.storage import lacking, open_store, schema_of


class SchemaView(Struct, frozen=True, kw_only=True):
    """The version of a store's schema. `found` is 0 if the store has no tables yet, and None if the store does not
    exist. `known` is the version that this version of Perdure needs.
    """

    found: int | None
    known: int
    lacks: tuple[str, ...] = ()  # missing tables, and rights that are missing on tables

    @property
    def is_current(self) -> bool:
        return self.found == self.known


async def look(store: str) -> SchemaView:
    """Return the version of a store's schema.

    This writes nothing. Raises Misuse, StoreBusy, StoreBroken, SchemaTooNew.
    """
    found, known = await schema_of(store)
    return SchemaView(found=found, known=known)


async def examine(store: str) -> SchemaView:
    """Return the version of a store's schema, and the tables and rights that it lacks. Raises the same errors as
    `look`."""
    schema = await look(store)
    return replace(schema, lacks=tuple(await lacking(store))) if schema.is_current else schema


class FileView(Struct, frozen=True, kw_only=True):
    """The state of an SQLite file. It has the version of SQLite in this process, whether that version has the WAL-reset
    bug, and the lost commits that were found. Each lost commit has a report file, and counts until somebody deletes the
    report.
    """

    sqlite_version: str
    has_reset_bug: bool
    lost: list[tuple[Path, str]]


def look_at_file(file: Path) -> FileView:
    """Return the state of an SQLite file, without reading its tables."""
    import sqlite3

    from perdure.storage.sqlite.lost_commits import has_reset_bug, known_losses

    has_bug = has_reset_bug(sqlite3.sqlite_version_info)
    return FileView(sqlite_version=sqlite3.sqlite_version, has_reset_bug=has_bug, lost=known_losses(file.resolve()))


async def upgrade(store: str, *, runtime_role: str | None = None, caller_role: str | None = None) -> SchemaView:
    """Create a store, or upgrade its schema. Return the schema as it was before the upgrade. On Postgres,
    `runtime_role` gets the rights that engines need. `caller_role` gets only the rights to start runs in transactions
    of its own. The call may be repeated at any time. Each migration is one transaction, so a crash leaves no half-done
    migration. Raises the same errors as `look`, and Misuse if you pass a role for a store that has no roles.
    """
    before = await look(store)
    if store.startswith(("postgres://", "postgresql://")):
        from perdure.storage.postgres import upgrade as upgrade_postgres

        await upgrade_postgres(store, runtime_role=runtime_role, caller_role=caller_role)
    elif runtime_role is not None or caller_role is not None:
        raise Misuse("roles can be granted on Postgres only")
    elif not before.is_current:
        opened = open_store(store)
        try:
            await opened.open()
        finally:
            await opened.close()
    return before


__all__ = ["FileView", "SchemaView", "examine", "look", "look_at_file", "upgrade"]
