"""Values that runs publish, and items of their streams: writes inside a commit, and reads in pages."""

from __future__ import annotations

import sqlite3
from functools import partial

from perdure.errors import RunNotFound
from perdure.kernel.batch import Batch
from perdure.kernel.rows import PublishedValue, StreamItem
from perdure.kernel.status import FINISHED
from perdure.ports import STREAM_PAGE_CHARS_MAX, StreamPage
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.queries import INSERT_STREAM_ITEMS, PUT_PUBLISHED, QUERIES
from perdure.storage.sqlite.rows import Row, published_of, stream_item_of
from perdure.storage.sqlite.transaction import snapshot

_LAST = 2**63 - 1  # greater than any index in an activation


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """Write the published values and stream items of a batch. Remove the marks of values and items that its runs may
    publish and append again."""
    if batch.stream_items:
        for sql, variables in INSERT_STREAM_ITEMS.executions(_item_rows(connection, batch)):
            connection.execute(sql, variables)
    if batch.published:
        rows = [(v.run_id, v.key, v.at, *(v.mark or (0, 0)), v.value) for v in batch.published.values()]
        for sql, variables in PUT_PUBLISHED.executions(rows):
            connection.execute(sql, variables)
    for run_id, first, _ in batch.archive:
        _forget(connection, run_id, first, (first - 1, _LAST))
    for run_id, run in batch.runs.items():
        if run.expected_version is not None and run.input is not None:
            _forget(connection, run_id, 0, (-1, 0))


def _item_rows(connection: sqlite3.Connection, batch: Batch) -> list[Row]:
    """Return the rows of the items that are not stored yet, with the next offsets of their streams."""
    said: dict[tuple[str, int], set[int]] = {}
    offsets: dict[tuple[str, str], int] = {}
    rows: list[Row] = []
    for item in batch.stream_items:
        seq: int | None = None
        number: int | None = None
        if item.mark is not None:
            seq, number = item.mark
            known = said.get((item.run_id, seq))
            if known is None:
                key = {"run_id": item.run_id, "seq": seq}
                known = said[item.run_id, seq] = {row[0] for row in connection.execute(QUERIES["said_in"], key)}
            if number in known:
                continue
            known.add(number)
        stream = (item.run_id, item.stream)
        if stream not in offsets:
            key_of = {"run_id": item.run_id, "stream": item.stream}
            offsets[stream] = connection.execute(QUERIES["last_offset"], key_of).fetchone()[0]
        offsets[stream] += 1
        rows.append((*stream, offsets[stream], item.at, item.position, item.attempt, seq, number, item.value))
    return rows


def _forget(connection: sqlite3.Connection, run_id: str, first: int, last: tuple[int, int]) -> None:
    key = {"run_id": run_id, "first": first}
    connection.execute(QUERIES["forget_said"], key)
    connection.execute(QUERIES["outdate_published"], {**key, "seq": last[0], "number": last[1]})


def read_published(connection: sqlite3.Connection, *, run_id: str, key: str | None) -> list[PublishedValue]:
    with snapshot(connection):
        _status(connection, run_id)
        return [published_of(row) for row in connection.execute(QUERIES["published"], {"run_id": run_id, "key": key})]


def read_stream(connection: sqlite3.Connection, *, run_id: str, name: str, after: int, limit: int) -> StreamPage:
    with snapshot(connection):
        has_ended = _status(connection, run_id) in FINISHED
        wanted = {"run_id": run_id, "stream": name, "after": after, "limit": max(0, limit)}
        items: list[StreamItem] = []
        size = 0
        rows = connection.execute(QUERIES["stream"], wanted)
        for row in rows:
            items.append(stream_item_of(row))
            size += len(items[-1].value)
            if size >= STREAM_PAGE_CHARS_MAX:
                break
        rows.close()
        return StreamPage(items=tuple(items), has_ended=has_ended)


def read_streams(connection: sqlite3.Connection, *, run_id: str) -> dict[str, int]:
    with snapshot(connection):
        _status(connection, run_id)
        return dict(connection.execute(QUERIES["streams"], {"run_id": run_id}).fetchall())


def _status(connection: sqlite3.Connection, run_id: str) -> str:
    row = connection.execute(QUERIES["status"], {"run_id": run_id}).fetchone()
    if row is None:
        raise RunNotFound(run_id)
    status: str = row[0]
    return status


class SqliteStreams(SqliteSlice):
    """Published values and streams."""

    async def published(self, run_id: str, key: str | None = None) -> list[PublishedValue]:
        return await self._db.read(partial(read_published, run_id=run_id, key=key))

    async def stream(self, run_id: str, name: str, *, after: int, limit: int) -> StreamPage:
        return await self._db.read(partial(read_stream, run_id=run_id, name=name, after=after, limit=limit))

    async def streams(self, run_id: str) -> dict[str, int]:
        return await self._db.read(partial(read_streams, run_id=run_id))
