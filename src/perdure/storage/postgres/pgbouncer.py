"""Connections through PgBouncer in transaction mode, where a session lasts no longer than a transaction.

So every statement names the schema and sets its own settings: with the `begin` of a transaction, or in the call if the
call is a transaction of its own. No statement is prepared.
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
_VERSIONED: Final = re.compile(r"(?<![\w.])(\w+_v\d+)\b")  # functions and types; nothing else has names like these
_OF_SESSIONS: Final = {"application_name", "default_transaction_isolation", "tcp_user_timeout"}
_CALL: Final = re.compile(r"select \w+_v\d+\(")


@lru_cache(maxsize=1024)
def qualified(sql: str, schema: str) -> str:
    """Return a statement of queries.sql with the schema before each name that belongs to it."""
    sql = _TABLE.sub(rf'\1\2"{schema}".\3', sql)
    sql = _SEQUENCE.sub(rf"""nextval('"{schema}".\1')""", sql)
    return _VERSIONED.sub(rf'"{schema}".\1', sql)


@lru_cache(maxsize=1024)
def rewritten(sql: str, schema: str, settings: tuple[tuple[str, str], ...]) -> str:
    """Return the text to send for a statement. Its settings hold until the end of the transaction."""
    if sql.startswith("begin"):
        sql = sql if sql != "begin" else "begin isolation level read committed"
        return ";".join([sql, *(f"set local {name} = '{value}'" for name, value in settings)])
    if _CALL.match(sql):
        # The statements in a function are planned when the function is called. The settings are made before that.
        made = ", ".join(f"set_config('{name}', '{value}', true)" for name, value in settings)
        return f"{qualified(sql, schema)} from (select {made}) as settings"
    return qualified(sql, schema)


def settings_of(settings: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the settings that can be set in a transaction that has begun."""
    return tuple((name, value) for name, value in settings.items() if name not in _OF_SESSIONS)
