"""The named queries of queries.sql, and statements that take many rows at once."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import msgspec

from perdure.errors import InvariantViolated

_VALUE = r"(?:\?|nullif\(\?, (?:0|'')\)|'\w*'|\d+)"
_GROUP = re.compile(rf"\({_VALUE}(?:, {_VALUE})*(?:, \(select [^()]*\) - \?)?\)")
_FRAGMENT = re.compile(r"\{(\w+)\}")

# A batch is split into pieces with these numbers of rows. So only a few different statements are prepared, and a
# hundred rows need seven executions. The widest statement has 128 * 25 variables; SQLite allows 32,766.
_WIDTHS = (128, 32, 8, 1)

Execution = tuple[str, list[object]]
Row = tuple[Any, ...]

_decode_rows: Final = msgspec.json.Decoder(list[Row]).decode


def load_queries(text: str) -> Mapping[str, str]:
    """Return queries by name. Comments are removed, and fragments are filled in. A fragment must come before its first
    use.
    """
    queries: dict[str, str] = {}
    for block in text.split("-- name:")[1:]:
        name, _, body = block.partition("\n")
        lines = (line for line in body.splitlines() if not line.startswith("--"))
        sql = _FRAGMENT.sub(lambda match: queries[match[1]], "\n".join(lines).strip())
        if name.strip() in queries:
            raise InvariantViolated(f"two queries are named {name.strip()!r}")
        queries[name.strip()] = sql
    return queries


QUERIES: Final = load_queries(Path(__file__).with_name("queries.sql").read_text("utf-8"))


class WideStatement:
    """A statement with one group of question marks. The group is repeated, so that one execution takes many rows.

    For every execution, sqlite3 releases the GIL and takes it again. `executemany` executes the statement once for each
    row. With a busy main thread, 100 journal rows took 8.9 ms with executemany and 1.4 ms with this class. If no other
    thread is busy, both take the same time. Filling up with rows of nulls to the next width, to need only one
    execution, took a third longer.
    """

    __slots__ = ("_sql",)

    def __init__(self, sql: str) -> None:
        groups = _GROUP.findall(sql)
        if len(groups) != 1:
            raise InvariantViolated(f"a statement for many rows has one group of question marks, not {len(groups)}")
        self._sql = {width: sql.replace(groups[0], ", ".join(groups * width)) for width in _WIDTHS}

    def executions(self, rows: Sequence[tuple[object, ...]]) -> list[Execution]:
        """Return the statements to execute for all rows, in order. Without rows, there are none."""
        found: list[Execution] = []
        start, count = 0, len(rows)
        for width in _WIDTHS:
            while count - start >= width:
                found.append((self._sql[width], list(chain.from_iterable(rows[start : start + width]))))
                start += width
        return found


class GatheredRows:
    """A query that returns all its rows as one JSON text, if possible.

    For every row, sqlite3 releases the GIL and takes it again. This slows down a busy main thread and the reader. With
    this class, a thousand runs that were woken after a restart ended after 0.58 s instead of 0.67 s.
    """

    __slots__ = ("_gathering", "sql")

    def __init__(self, sql: str) -> None:
        self.sql = sql
        self._gathering = ""

    def fetch(self, connection: sqlite3.Connection, variables: Mapping[str, object]) -> list[Row]:
        """Return all rows. Raises sqlite3.Error."""
        try:
            (text,) = connection.execute(self.gathering(connection, variables), variables).fetchone()
            return [] if text is None else _decode_rows(text)
        except (sqlite3.DataError, sqlite3.OperationalError, msgspec.DecodeError, UnicodeDecodeError) as error:
            # The rows are too long for one text, have no JSON form, or are damaged. Reading and converting the rows one
            # by one shows which row is damaged.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
            if code not in (sqlite3.SQLITE_TOOBIG, sqlite3.SQLITE_ERROR):
                raise
            return connection.execute(self.sql, variables).fetchall()

    def gathering(self, connection: sqlite3.Connection, variables: Mapping[str, object]) -> str:
        """Return the query that gives the text. It gives null if there are no rows."""
        if self._gathering:
            return self._gathering
        columns = connection.execute(f"select * from ({self.sql}) limit 0", variables).description  # noqa: S608 - our own
        names = ", ".join(f'"{name}"' for name, *_ in columns)
        # The rows are in the order of the query. SQLite keeps that order when it concatenates rows, but not when it
        # counts them.
        self._gathering = f"select '[' || group_concat(json_array({names})) || ']' from ({self.sql})"  # noqa: S608
        return self._gathering


RUNS: Final = GatheredRows(QUERIES["runs"])
WAITS: Final = GatheredRows(QUERIES["waits"])
EVENTS: Final = GatheredRows(QUERIES["events"])
INPUTS: Final = GatheredRows(QUERIES["inputs"])
JOURNALS: Final = GatheredRows(QUERIES["journals"])
STAGED: Final = GatheredRows(QUERIES["staged"])

INSERT_RUNS: Final = WideStatement(QUERIES["insert_runs"])
INSERT_BEGINNING_RUNS: Final = WideStatement(QUERIES["insert_beginning_runs"])
UPDATE_RUNS: Final = WideStatement(QUERIES["update_runs"])
UPDATE_RUNS_WITH_OUTCOME: Final = WideStatement(QUERIES["update_runs_with_outcome"])
UPDATE_RUNS_BRIEFLY: Final = WideStatement(QUERIES["update_runs_briefly"])
UPDATE_RUNS_BRIEFLY_WITH_OUTCOME: Final = WideStatement(QUERIES["update_runs_briefly_with_outcome"])
UPDATE_SUCCEEDING_RUNS: Final = WideStatement(QUERIES["update_succeeding_runs"])
INSERT_JOURNAL: Final = WideStatement(QUERIES["insert_journal"])
INSERT_STEPS: Final = WideStatement(QUERIES["insert_steps"])
INSERT_PAYLOADS: Final = WideStatement(QUERIES["insert_payloads"])
CLEAR_WAITS: Final = WideStatement(QUERIES["clear_waits"])
DROP_WAITS: Final = WideStatement(QUERIES["drop_waits"])
CLEAR_STAGED: Final = WideStatement(QUERIES["clear_staged"])
DROP_STAGED: Final = WideStatement(QUERIES["drop_staged"])
PUT_WAITS: Final = WideStatement(QUERIES["put_waits"])
INSERT_AUDIT: Final = WideStatement(QUERIES["insert_audit"])
REPLY_MAIL: Final = WideStatement(QUERIES["reply_mail"])
DELETE_MAIL: Final = WideStatement(QUERIES["delete_mail"])
MARK_WAITS: Final = WideStatement(QUERIES["mark_waits"])
MARK_CONSUMED: Final = WideStatement(QUERIES["mark_consumed"])
PUT_KEYS: Final = WideStatement(QUERIES["put_keys"])
INSERT_EVENTS: Final = WideStatement(QUERIES["insert_events"])
NOTE_READS: Final = WideStatement(QUERIES["note_reads"])
READ_EVENTS: Final = WideStatement(QUERIES["read_events"])
FORGET_READS: Final = WideStatement(QUERIES["forget_reads"])
PUT_PUBLISHED: Final = WideStatement(QUERIES["put_published"])
INSERT_STREAM_ITEMS: Final = WideStatement(QUERIES["insert_stream_items"])
DELETE_LETTERS: Final = WideStatement(QUERIES["delete_letters"])
