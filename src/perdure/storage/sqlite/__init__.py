"""The store in one SQLite file."""

from perdure.storage.sqlite.rows import INLINE_MAX_BYTES
from perdure.storage.sqlite.store import SqliteStore

__all__ = ["INLINE_MAX_BYTES", "SqliteStore"]
