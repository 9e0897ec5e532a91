"""The backends. This module turns a URL into a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from perdure.errors import Misuse

if TYPE_CHECKING:
    from perdure.ports import Store

__all__ = ["open_store", "schema_of"]

_FORMS = "use memory://, sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://user@host/database"


def open_store(url: str) -> Store:
    """Return the store that a URL names. The store is not open yet.

    Raises Misuse if the URL names no store. The message lists the possible forms.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        shown = _without_password(url)
        raise Misuse(f"{shown!r} is not a store's URL; {_FORMS}", url=shown)
    if scheme == "memory":
        if rest:
            raise Misuse(f"memory:// takes nothing after it, but the URL is {url!r}", url=url)
        # Backends are imported late, so that a program loads only the backend that it uses.
        from perdure.storage.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        path = _sqlite_path(url, rest)
        from perdure.storage.sqlite import SqliteStore

        return SqliteStore(path)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    raise Misuse(f"no store has the scheme {scheme!r}; {_FORMS}", url=_without_password(url))


async def schema_of(url: str) -> tuple[int | None, int]:
    """Return the schema version of the store that a URL names, and the schema version that this version of Perdure
    writes.

    The first version is 0 if the file or the Postgres schema has no tables yet. It is None if the file or the schema
    does not exist. This creates and changes nothing. Raises Misuse, StoreBusy, StoreBroken, SchemaTooNew.
    """
    open_store(url)  # This checks that the URL is valid.
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from perdure.storage.sqlite.connection import schema_version
        from perdure.storage.sqlite.schema import SCHEMA_VERSION

        return schema_version(Path(_sqlite_path(url, rest))), SCHEMA_VERSION
    if scheme in ("postgresql", "postgres"):
        from perdure.storage.postgres.rights import schema_version as postgres_version
        from perdure.storage.postgres.schema import SCHEMA_VERSION as POSTGRES_VERSION

        return await postgres_version(url), POSTGRES_VERSION
    return None, 0


async def lacking(url: str) -> list[str]:
    """Return the tables, and the rights on tables, that are missing in a store with the newest schema. They are texts
    for people.

    This creates and changes nothing. Raises the same errors as `schema_of`.
    """
    scheme, _, rest = url.partition("://")
    if scheme == "sqlite":
        from perdure.storage.sqlite.connection import lacking_tables

        return lacking_tables(Path(_sqlite_path(url, rest)))
    if scheme in ("postgresql", "postgres"):
        from perdure.storage.postgres.rights import lacking as lacking_rights

        return await lacking_rights(url)
    return []


def _sqlite_path(url: str, rest: str) -> str:
    path = rest.removeprefix("/")
    if path in ("", ":memory:"):
        raise Misuse(f"{url!r} names no file; for a store in memory use memory://", url=url)
    if not rest.startswith("/"):
        raise Misuse(f"{url!r} lacks a slash: a relative path is written sqlite:///{rest}", url=url)
    if "?" in path:
        raise Misuse(f"a sqlite URL takes no options, but {url!r} has some", url=url)
    return path


def _postgres(url: str) -> Store:
    try:
        from perdure.storage.postgres import PostgresStore, parse
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise Misuse("Postgres needs asyncpg: pip install 'perdure[postgres]'", url=_without_password(url)) from error
    return PostgresStore(parse(url))


def _without_password(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    if not separator:
        return f"…{url.rpartition('@')[2]}" if "@" in url else url
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
