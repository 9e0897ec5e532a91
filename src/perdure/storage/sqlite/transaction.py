"""Transactions on a connection that is otherwise in autocommit mode."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commit all writes of this block or none: commit at the end, or roll back if anything is raised. The connection
    can be used afterwards."""
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        roll_back(connection)
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """Read several times from one state of the database."""
    connection.execute("begin")
    try:
        yield
    finally:
        roll_back(connection)


def roll_back(connection: sqlite3.Connection) -> None:
    """Roll a transaction back, if one is open."""
    # After some errors, a full disk among them, SQLite itself rolls back.
    if connection.in_transaction:
        connection.rollback()
