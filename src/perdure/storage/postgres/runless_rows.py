"""Rows that belong to no run: records, tokens, sessions and handlers. They are written inside a commit.

They are rare, so each row has a statement of its own in the batch's transaction.
"""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from perdure.errors import CommitConflict
from perdure.kernel.runless_rows import SharedWrites
from perdure.storage.postgres import access, cooperation, records
from perdure.storage.postgres.driver import Connection
from perdure.storage.postgres.queries import Query


async def write(connection: Connection, shared: SharedWrites, at: int) -> None:
    """Write a batch's records, tokens, sessions and handlers. Raises CommitConflict if another engine has already
    written one of them.
    """
    # Rows are always locked in this order. So engines that write the same names do not deadlock.
    for record in sorted(shared.records, key=lambda one: (one.kind, one.name, one.version)):
        if not await _execute(connection, records.QUERIES["insert_record"], **asdict(record)):
            raise CommitConflict(frozenset())
    for token in sorted(shared.tokens, key=lambda one: (one.name, one.version)):
        if not await _execute(connection, access.QUERIES["insert_token"], **asdict(token)):
            raise CommitConflict(frozenset())
    for session_id, session in shared.sessions:
        if session is None:
            await _execute(connection, access.QUERIES["end_session"], id=session_id)
        else:
            await _execute(connection, access.QUERIES["put_session"], **asdict(session))
    for change in shared.handlers:
        if change.is_expected:
            handlers = [(change.topic, change.name)]
            await _execute(connection, cooperation.QUERIES["register"], handlers=handlers, at=at)
        else:
            wanted = {"topic": change.topic, "name": change.name, "at": at}
            if not await _execute(connection, cooperation.QUERIES["unregister"], **wanted):
                raise CommitConflict(frozenset())


async def _execute(connection: Connection, query: Query, **variables: Any) -> bool:
    """Execute a statement, and return whether it returned a row."""
    return bool(await connection.fetch(query.sql, *query.arguments(variables)))
