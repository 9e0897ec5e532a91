"""Which schema a store has, and bringing it up to date: without opening it, which an engine or a client does by itself.

Whoever only wants to look should look here first: opening an older store brings it up to date, and from then on an
older Perdure refuses it.
"""

from __future__ import annotations

from msgspec import Struct

from perdure.errors import Misuse
from perdure.storage import open_store, schema_of


class SchemaView(Struct, frozen=True, kw_only=True):
    """`found` is the version of a store's schema, 0 if it has none yet, None if there is no store; `known` is the one
    that this Perdure writes."""

    found: int | None
    known: int

    @property
    def is_current(self) -> bool:
        return self.found == self.known


async def look(store: str) -> SchemaView:
    """What a store's URL leads to; writes nothing. Raises Misuse, StoreBusy, StoreBroken, SchemaTooNew."""
    found, known = await schema_of(store)
    return SchemaView(found=found, known=known)


async def upgrade(store: str, *, runtime_role: str | None = None) -> SchemaView:
    """Make a store, or bring it up to date; what it was before. With `runtime_role`, on Postgres only, grant that role
    what engines need. It may be done again at any time; a crash leaves whole migrations. Raises as `look`, and Misuse
    if there are no roles."""
    before = await look(store)
    if store.startswith(("postgres://", "postgresql://")):
        from perdure.storage.postgres import upgrade as upgrade_postgres

        await upgrade_postgres(store, runtime_role=runtime_role)
    elif runtime_role is not None:
        raise Misuse("only a database on Postgres has roles to grant something to")
    elif not before.is_current:
        opened = open_store(store)
        try:
            await opened.open()
        finally:
            await opened.close()
    return before


__all__ = ["SchemaView", "look", "upgrade"]
