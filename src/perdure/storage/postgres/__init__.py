"""The store in a Postgres database."""

from perdure.storage.postgres.connection import Address
from perdure.storage.postgres.store import PostgresStore

__all__ = ["Address", "PostgresStore"]
