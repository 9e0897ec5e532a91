"""Transactions on a connection that is otherwise in autocommit mode."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def transaction(connection: sqlite3.Connection) -> Generator[None]:
    """Commit all writes of this block, or roll all of them back if an exception is raised. The connection can be used
    afterwards.
    """
    connection.execute("begin immediate")
    try:
        yield
        connection.execute("commit")
    except BaseException:
        roll_back(connection)
        raise


@contextmanager
def snapshot(connection: sqlite3.Connection) -> Generator[None]:
    """In this block, all reads see the same state of the database."""
    connection.execute("begin")
    try:
        yield
    finally:
        roll_back(connection)


def roll_back(connection: sqlite3.Connection) -> None:
    """If a transaction is open, roll it back."""
    # After some errors, such as a full disk, SQLite itself has already rolled back.
    if connection.in_transaction:
        connection.rollback()
