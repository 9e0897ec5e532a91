"""Connections through PgBouncer in transaction mode. There, a session lasts only as long as a transaction.

So every statement names the schema and sets its own settings. The settings come with the `begin` of a transaction. If a
call is a transaction of its own, they are in the call. Statements are never prepared.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from perdure.storage.postgres.schema import MIGRATIONS

_MADE: Final = re.compile(r"^create (table|sequence) (\w+)", re.MULTILINE)
_NAMES: Final = {kind: set[str]() for kind in ("table", "sequence")}
for _text in MIGRATIONS.values():
    for _kind, _name in _MADE.findall(_text):
        _NAMES[_kind].add(_name)

_TABLE: Final = re.compile(rf"\b(from|join|into|update|using)(\s+)({'|'.join(_NAMES['table'])})\b")
_SEQUENCE: Final = re.compile(rf"\bnextval\('({'|'.join(_NAMES['sequence'])})'\)")
# functions and types with a version; no other name has this form
_VERSIONED: Final = re.compile(r"(?<![\w.])(\w+_v\d+)\b")
_OF_SESSIONS: Final = {"application_name", "default_transaction_isolation", "tcp_user_timeout"}
_CALL: Final = re.compile(r"select \w+_v\d+\(")


@lru_cache(maxsize=1024)
def qualified(sql: str, schema: str) -> str:
    """Return a statement of queries.sql. Each name that belongs to the schema is prefixed with it."""
    sql = _TABLE.sub(rf'\1\2"{schema}".\3', sql)
    sql = _SEQUENCE.sub(rf"""nextval('"{schema}".\1')""", sql)
    return _VERSIONED.sub(rf'"{schema}".\1', sql)


@lru_cache(maxsize=1024)
def rewritten(sql: str, schema: str, settings: tuple[tuple[str, str], ...]) -> str:
    """Return the text that is sent for a statement. Its settings are valid until the end of the transaction."""
    if sql.startswith("begin"):
        sql = sql if sql != "begin" else "begin isolation level read committed"
        return ";".join([sql, *(f"set local {name} = '{value}'" for name, value in settings)])
    if _CALL.match(sql):
        # The statements inside a function are planned when the function is called. So the settings are made before the
        # call.
        made = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings)
        return f"{qualified(sql, schema)} from (select {made}) as settings"
    return qualified(sql, schema)


def settings_of(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return those settings that can be set after a transaction has begun."""
    return tuple((name, value) for name, value in settings.items() if name not in _OF_SESSIONS)
