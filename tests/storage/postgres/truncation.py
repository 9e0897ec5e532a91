"""Tables that a test leaves, emptied for the next: making them anew takes longer than most tests."""

from __future__ import annotations

import psycopg
from psycopg import sql

PRISTINE = "pristine"  # a schema that nobody writes to: what tables hold after their migrations


def empty(url: str, schema: str, name: str) -> bool:
    """Make a schema that was used as good as new, under another name: whoever still has the old one in mind, a
    heartbeat that goes on for one, finds nothing. False if somebody holds on to its rows."""
    try:
        with psycopg.connect(url, options="-c lock_timeout=1000 -c session_replication_role=replica") as connection:
            _rename(connection, schema, name)
            _clear(connection, name)
    except psycopg.errors.LockNotAvailable:
        return False
    return True


def _rename(connection: psycopg.Connection, schema: str, name: str) -> None:
    connection.execute(sql.SQL("alter schema {} rename to {}").format(sql.Identifier(schema), sql.Identifier(name)))
    bound = connection.execute(
        "select oid::regprocedure::text from pg_proc where pronamespace = %s::regnamespace"
        " and array_to_string(proconfig, ' ') like '%%search_path=%%'",
        [name],
    )
    for (function,) in bound.fetchall():
        connection.execute(
            sql.SQL("alter function {} set search_path = {}").format(sql.SQL(function), sql.Identifier(name))
        )


def _clear(connection: psycopg.Connection, name: str) -> None:
    tables = connection.execute("select tablename from pg_tables where schemaname = %s", [PRISTINE]).fetchall()
    for (table,) in tables:
        places = {"used": sql.Identifier(name, table), "new": sql.Identifier(PRISTINE, table)}
        connection.execute(sql.SQL("delete from {used}").format(**places))
        connection.execute(sql.SQL("insert into {used} overriding system value table {new}").format(**places))
    sequences = connection.execute("select sequencename from pg_sequences where schemaname = %s", [PRISTINE]).fetchall()
    for (sequence,) in sequences:
        place = f'"{name}"."{sequence}"'
        new = sql.Identifier(PRISTINE, sequence)
        connection.execute(sql.SQL("select setval(%s::regclass, last_value, is_called) from {}").format(new), [place])
