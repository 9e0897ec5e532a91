"""Transactional steps that read two lists and append to both. Their results tell what they did, and the checker of
transactions (perdure.testing.list_append) tells whether some order of the steps explains all of them.

A step appends the same value however often it is tried, so one that was committed twice shows as a value twice.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from perdure import current_step
from perdure.testing.list_append import Append, Read, Transaction, check

LISTS = "chaos_lists"
TABLE = f"create table if not exists {LISTS} (key integer, place integer, value text)"
WORKFLOW, STEP = "keeps_ledger", "enter"
ENTRIES = 2  # of each run, one after the other
_RUNS_PER_LISTS = 48  # Runs with numbers near each other share lists; results of later steps stay small.
_LISTS_AT_ONCE = 3

_READ = f"select value from {LISTS} where key = {{key}} order by place"
_APPEND = f"insert into {LISTS} (key, place, value) values "


class Entered(Struct):
    """What a step has read and appended."""

    keys: tuple[int, int]
    values: tuple[tuple[str, ...], tuple[str, ...]]
    appended: str


def _keys(number: int) -> tuple[int, int]:
    """Two different lists, the smaller first: all steps lock them in this order."""
    first, base = number % _LISTS_AT_ONCE, number // _RUNS_PER_LISTS * _LISTS_AT_ONCE
    second = (first + 1 + number // _LISTS_AT_ONCE % (_LISTS_AT_ONCE - 1)) % _LISTS_AT_ONCE
    return base + min(first, second), base + max(first, second)


def _value() -> str:
    me = current_step()
    return f"{me.run_id} {me.position}"


def enter_plain(number: int) -> Entered:
    connection, keys, value = current_step().connection, _keys(number), _value()
    found = [tuple(row[0] for row in connection.execute(_READ.format(key="?"), (key,))) for key in keys]
    for key, values in zip(keys, found, strict=True):
        connection.execute(f"{_APPEND} (?, ?, ?)", (key, len(values), value))
    return Entered(keys, (found[0], found[1]), value)


async def enter_async(number: int) -> Entered:
    connection, keys, value = current_step().connection, _keys(number), _value()
    for key in keys:
        await connection.execute("select pg_advisory_xact_lock($1)", key)
    found = [tuple(row[0] for row in await connection.fetch(_READ.format(key="$1"), key)) for key in keys]
    for key, values in zip(keys, found, strict=True):
        await connection.execute(f"{_APPEND} ($1, $2, $3)", key, len(values), value)
    return Entered(keys, (found[0], found[1]), value)


def anomalies(results: dict[str, str], rows: list[tuple[Any, ...]]) -> list[str]:
    """Return what no order of the steps explains. `results` are the journaled results of steps, by the values that they
    appended; `rows` is all of the table, in the order of places."""
    history = [_transaction(name, msgspec.json.decode(text, type=Entered)) for name, text in results.items()]
    lists: dict[int, tuple[str, ...]] = {}
    for key, _, value in rows:
        lists[key] = (*lists.get(key, ()), value)
    reads = tuple(Read(key, values) for key, values in lists.items())
    return [f"the ledger: {one}" for one in check([*history, Transaction(id="the end", did=reads, began=3, ended=4)])]


def _transaction(name: str, entered: Entered) -> Transaction:
    reads = [Read(key, values) for key, values in zip(entered.keys, entered.values, strict=True)]
    appends = [Append(key, entered.appended) for key in entered.keys]
    return Transaction(id=name, did=(*reads, *appends), began=1, ended=2)
