"""The store in a Postgres database."""

from perdure.storage.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
