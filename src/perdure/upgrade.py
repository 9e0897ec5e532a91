"""Which schema a store has, and bringing it up to date: without opening it, which an engine or a client does by itself.

Whoever only wants to look should look here first: opening an older store brings it up to date, and from then on an
older Perdure refuses it.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from perdure.errors import Misuse
from perdure.storage import lacking, open_store, schema_of


class SchemaView(Struct, frozen=True, kw_only=True):
    """`found` is the version of a store's schema, 0 if it has none yet, None if there is no store; `known` is the one
    that this Perdure writes."""

    found: int | None
    known: int
    lacks: tuple[str, ...] = ()  # tables, or rights on them, that the newest version needs

    @property
    def is_current(self) -> bool:
        return self.found == self.known


async def look(store: str) -> SchemaView:
    """What a store's URL leads to; writes nothing. Raises Misuse, StoreBusy, StoreBroken, SchemaTooNew."""
    found, known = await schema_of(store)
    return SchemaView(found=found, known=known)


async def examine(store: str) -> SchemaView:
    """The same, and whether all is there that the newest version needs. Raises as `look`."""
    schema = await look(store)
    return replace(schema, lacks=tuple(await lacking(store))) if schema.is_current else schema


class FileView(Struct, frozen=True, kw_only=True):
    """An SQLite file: the version of SQLite here, whether that has the WAL-reset bug, and what was found to be lost,
    each with the file that says so until somebody deletes it."""

    sqlite_version: str
    has_reset_bug: bool
    lost: list[tuple[Path, str]]


def look_at_file(file: Path) -> FileView:
    """What is known of an SQLite file beside what is in it."""
    import sqlite3

    from perdure.storage.sqlite.losses import has_reset_bug, known_losses

    has_bug = has_reset_bug(sqlite3.sqlite_version_info)
    return FileView(sqlite_version=sqlite3.sqlite_version, has_reset_bug=has_bug, lost=known_losses(file.resolve()))


async def upgrade(store: str, *, runtime_role: str | None = None, caller_role: str | None = None) -> SchemaView:
    """Make a store, or bring it up to date; what it was before. With `runtime_role`, on Postgres only, grant that role
    what engines need; `caller_role` gets only what starts in transactions of its own need. It may be done again at any
    time; a crash leaves whole migrations. Raises as `look`, and Misuse if there are no roles."""
    before = await look(store)
    if store.startswith(("postgres://", "postgresql://")):
        from perdure.storage.postgres import upgrade as upgrade_postgres

        await upgrade_postgres(store, runtime_role=runtime_role, caller_role=caller_role)
    elif runtime_role is not None or caller_role is not None:
        raise Misuse("only a database on Postgres has roles to grant something to")
    elif not before.is_current:
        opened = open_store(store)
        try:
            await opened.open()
        finally:
            await opened.close()
    return before


__all__ = ["FileView", "SchemaView", "examine", "look", "look_at_file", "upgrade"]
