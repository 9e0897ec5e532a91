"""Rows that belong to no run: records, tokens, sessions and handlers. They are written inside a commit."""

from __future__ import annotations

import sqlite3

from msgspec.structs import asdict

from perdure.kernel.runless_rows import SharedWrites
from perdure.storage.sqlite import access, cooperation, records


class SomebodyElseWasFaster(Exception):
    """Another process has already written this version of a record or a token, or has already retired this handler."""


def write(connection: sqlite3.Connection, shared: SharedWrites, at: int) -> None:
    """Write a batch's records, tokens, sessions and handlers. Raises SomebodyElseWasFaster."""
    for record in shared.records:
        if connection.execute(records.QUERIES["insert_record"], asdict(record)).rowcount != 1:
            raise SomebodyElseWasFaster
    for token in shared.tokens:
        if connection.execute(access.QUERIES["insert_token"], asdict(token)).rowcount != 1:
            raise SomebodyElseWasFaster
    for session_id, session in shared.sessions:
        if session is None:
            connection.execute(access.QUERIES["end_session"], {"id": session_id})
        else:
            connection.execute(access.QUERIES["put_session"], asdict(session))
    for change in shared.handlers:
        query = cooperation.QUERIES["register" if change.is_expected else "unregister"]
        if connection.execute(query, {"topic": change.topic, "name": change.name, "at": at}).rowcount:
            connection.execute(cooperation.QUERIES["turn_page"])
        elif not change.is_expected:
            raise SomebodyElseWasFaster
