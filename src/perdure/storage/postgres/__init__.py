"""The store in a Postgres database."""

from perdure.storage.postgres.address import Address, parse
from perdure.storage.postgres.rights import caller_grants, grants, upgrade
from perdure.storage.postgres.store import PostgresStore

__all__ = ["Address", "PostgresStore", "caller_grants", "grants", "parse", "upgrade"]
