"""The backends, and the one place where a URL becomes a store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, quote, urlsplit

from perdure.errors import Misuse

if TYPE_CHECKING:
    from perdure.ports import Store

__all__ = ["open_store"]

_FORMS = "use memory://, sqlite:///relative.db, sqlite:////absolute/path.db or postgresql://user@host/database"
_LEASE_MIN_S = 0.5


def open_store(url: str) -> Store:
    """The store a URL names, not opened yet. Raises Misuse, with the forms there are, if it names none."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        raise Misuse(f"{url!r} is not a store's URL; {_FORMS}", url=url)
    if scheme == "memory":
        if rest:
            raise Misuse(f"memory:// takes nothing after it, but the URL is {url!r}", url=url)
        # Backends are imported late, so that a program loads only the one that it uses.
        from perdure.storage.memory import MemoryStore

        return MemoryStore()
    if scheme == "sqlite":
        path = _sqlite_path(url, rest)
        from perdure.storage.sqlite import SqliteStore

        return SqliteStore(path)
    if scheme in ("postgresql", "postgres"):
        return _postgres(url)
    raise Misuse(f"no store has the scheme {scheme!r}; {_FORMS}", url=_without_password(url))


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
    """Of the options, `schema` and `lease` are ours; the others are asyncpg's, or settings of the server."""
    name = _without_password(url).partition("?")[0]
    options = dict(parse_qsl(urlsplit(url).query, keep_blank_values=True))
    schema = options.pop("schema", "perdure")
    if not re.fullmatch(r"[a-z_][a-z0-9_]{0,49}", schema) or schema.startswith("pg_"):
        raise Misuse(f"{schema!r} cannot be the schema: up to 50 of a-z, 0-9 and _, no digit first, not pg_…", url=name)
    try:
        lease_s = float(options.pop("lease", "10"))
    except ValueError:
        lease_s = 0.0
    if not _LEASE_MIN_S <= lease_s < float("inf"):
        raise Misuse(f"lease= is a number of seconds, {_LEASE_MIN_S} or more", url=name)
    try:
        from perdure.storage.postgres import Address, PostgresStore
    except ModuleNotFoundError as error:
        if error.name != "asyncpg":
            raise
        raise Misuse("Postgres needs asyncpg: pip install 'perdure[postgres]'", url=name) from error
    query = "&".join(f"{quote(key, safe='')}={quote(value, safe='')}" for key, value in options.items())
    own_url = url.partition("?")[0] + (f"?{query}" if query else "")
    return PostgresStore(Address(url=own_url, name=name, schema=schema, lease_s=lease_s))


def _without_password(url: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}://…@{rest.rpartition('@')[2]}" if "@" in rest else url
