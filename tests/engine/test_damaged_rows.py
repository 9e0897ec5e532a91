"""One damaged cell in the store: one run is held, or one row is shown as damaged, and everybody else goes on.

Each column of each table is damaged in turn, in every way that its type allows: SQLite keeps any value in any column.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StoreBroken
from perdure.storage import damage as storage_damage
from perdure.storage.sqlite.schema import OUR_TABLES
from tests.engine.damaged_checks import go_on, opened, read_lists, read_victims, wake_victims
from tests.engine.damaged_world import furnish
from tests.storage.postgres.meddler import meddler

JSON = {
    "tags", "hold", "fields", "workflows", "filter", "input", "output", "failure", "value", "payload", "schema", "body",
}  # fmt: skip
WORDS = {("waits", "kind"), ("waits", "mode"), ("message_event", "type")}
# Columns that only find, order or count rows. What is wrong there is never read, and changes no other row.
UNREAD = {
    "artifacts.state", "engines.ended_at", "events.reached", "event_keys", "event_reads", "published.seq",
    "published.number", "queues", "run_tags", "runs.born", "runs.hold_kind", "runs.hold_fingerprint",
    "stream_items.number", "stream_items.seq",
    "waits.shape",
    # Nobody looks into these before the run goes on with them.
    "messages.payload", "return_value.value", "waits.details", "waits.failure",
}  # fmt: skip
# A row that belongs to nobody: by its key it cannot be found, or it is another one's now.
KEYS = {
    "artifacts.id", "audit.run_id", "events.run_id", "journal.run_id", "journal_archive.run_id",
    "message_event.message_id", "message_event.scope", "messages.id", "payloads.run_id", "payloads.slot",
    "published.run_id", "records.kind",
    "records.name", "return_value.scope", "stream_items.run_id", "stream_items.stream", "waits.run_id",
}  # fmt: skip
FOR_ALL = {"perdure_schema", "sequence", "handler_book"}  # No run can go on without these.
SHOWN_AS = {"payloads.data": "journal.value", "journal_archive.attempt": "journal_archive.seq"}
Cell = tuple[str, str, Any, bool]  # table, column, value, and whether that is surely no value of that column


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("furnished") / "runs.db"
    asyncio.run(furnish(f"sqlite:///{path}"))
    whole = path.with_name("whole.db")
    with closing(sqlite3.connect(path)) as connection, closing(sqlite3.connect(whole)) as copy:
        connection.backup(copy)
    return whole


def cells(path: Path, table: str) -> Iterator[Cell]:
    with closing(sqlite3.connect(path)) as connection:
        columns = connection.execute(f"pragma table_info({table})").fetchall()
    for _, name, declared, is_required, _, is_key in columns:
        kind = declared.lower()
        is_time = kind == "integer" and (name.endswith("at") or name in ("since", "deadline"))
        yield table, name, b"\xff\xfe", True
        yield table, name, sqlite3.Binary(b"no utf-8 \xff") if kind == "text" else "garbage", kind != "text"
        if name in JSON:
            yield table, name, "{garbage", True
        if (table, name) in WORDS:
            yield table, name, "garbage", True
        if (table, name) == ("engines", "id"):  # No file can have a name of it.
            yield table, name, "x" * 5_000, False
        if kind == "integer":
            yield table, name, -5, False
            yield table, name, 2**62, is_time and name not in ("expires_at", "created_at") and table != "event_keys"
        if not is_required and not is_key:
            yield table, name, None, False


def damage(path: Path, cell: Cell) -> bool:
    """Change one cell of a row of a run that may be damaged, if the table has one; whether SQLite let it be changed."""
    table, column, value, _ = cell
    with closing(sqlite3.connect(path)) as connection, connection:
        info = connection.execute(f"pragma table_info({table})").fetchall()
        names = [name for _, name, *_ in info]
        keys = ", ".join(f'"{name}"' for _, name, _, _, _, place in info if place) or "rowid"
        owner = next((name for name in ("run_id", "scope", "id", "name") if name in names), None)
        first = "" if owner is None else f"order by {owner} not like 'victim%'"
        if table == "message_event":
            first = "order by message_id not like 'victim%', type = 'EMITTED'"
        elif table == "return_value":
            first = "order by value not like '%victim%'"
        row = connection.execute(f"select {keys} from {table} {first} limit 1").fetchone()
        if row is None:
            return False
        if column == "tags":  # It has the tags in a table of their own, too, and would not take these.
            connection.execute("drop trigger run_tags_update")
        condition = " and ".join(f"{key} is ?" for key in keys.split(", "))
        given = "cast(? as text)" if isinstance(value, memoryview) else "?"
        try:
            connection.execute(f'update {table} set "{column}" = {given} where {condition}', (value, *row))
        except sqlite3.IntegrityError:
            return False
    return True


async def problem_of(path: Path, cell: Cell, log: pytest.LogCaptureFixture) -> str:
    """What is wrong with how an engine lives with a damaged cell; empty if nothing is."""
    table, column, _, is_damage = cell
    place = f"{table}.{column}"
    log.clear()
    try:
        async with opened(f"sqlite:///{path}") as engine:
            async with asyncio.timeout(20):
                await go_on(engine)
                said = await read_lists(engine) + await read_victims(engine)
                left = await wake_victims(engine)
                said += await read_lists(engine) + await read_victims(engine)
    except StoreBroken as broken:
        return "" if table in FOR_ALL and (place in str(broken) or "schema version" in str(broken)) else repr(broken)
    except Exception as error:  # noqa: BLE001 - all of them are listed
        return repr(error)
    if left:
        return f"these neither go on nor are held: {left}"
    places = {place, SHOWN_AS.get(place, place)}
    if is_damage and not {place, table} & (UNREAD | KEYS) and not any(one in said + log.text for one in places):
        return "nobody names it"
    return ""


@pytest.mark.parametrize("table", sorted(OUR_TABLES - {"new_runs", "new_waits"}))
async def test_a_damaged_cell_holds_one_run_and_is_named(
    table: str, furnished: Path, quick_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    problems: list[str] = []
    for number, cell in enumerate(cells(furnished, table)):
        path = quick_path / f"{number}.db"
        shutil.copyfile(furnished, path)
        if damage(path, cell) and (problem := await problem_of(path, cell, caplog)):
            problems.append(f"{cell[0]}.{cell[1]} = {cell[2]!r}: {problem}")
        path.unlink()
    assert not problems, "\n".join(problems)


# Cells of rows with which runs go on. Postgres has types, so less can be wrong there: a text that is not JSON, an
# unknown word, an impossible time.
OF_ALL_STORES = [
    ("runs", "tags", '{"who": 5}', "id = 'victim-wait'"),
    ("runs", "status", "garbage", "id = 'victim-short'"),
    ("runs", "created_at", 2**62, "id = 'victim-wait'"),
    ("runs", "started_at", 2**62, "id = 'victim-wait'"),
    ("runs", "input", "{garbage", "id = 'victim-wait'"),
    ("runs", "output", "{garbage", "id = 'victim-short'"),
    ("waits", "filter", "{garbage", "run_id = 'victim-wait' and kind = 'event'"),
    ("waits", "due_at", 2**62, "run_id = 'victim-wait' and kind = 'timer'"),
    ("waits", "kind", "garbage", "run_id = 'victim-wait' and kind = 'event'"),
    ("message_event", "type", "garbage", "message_id like 'victim%' and type = 'SEEN'"),
    ("journal", "value", "{garbage", "run_id = 'victim-wait' and seq = 1"),
    ("events", "fields", "{garbage", "run_id = 'victim-wait'"),
    ("dead_letters", "fields", "{garbage", "run_id = 'victim-unread'"),
    ("tasks", "payload", "{garbage", "run_id = 'victim-ask'"),
    ("tasks", "created_at", 2**62, "run_id = 'victim-ask'"),
    ("records", "body", "{garbage", "name = 'victim'"),
    ("audit", "at", 2**62, "run_id = 'victim-wait' and seq = 1"),
    ("engines", "workflows", "{garbage", "true"),
]


async def check_damaged(url: str, place: str, log: pytest.LogCaptureFixture) -> None:
    storage_damage._noted.clear()  # Damage is logged once per process, and copies of one file have the same ids.
    async with opened(url) as engine, asyncio.timeout(60):
        await go_on(engine)
        said = await read_lists(engine) + await read_victims(engine)
        assert await wake_victims(engine) == {}
        said += await read_lists(engine) + await read_victims(engine)
    assert place in said + log.text


@pytest.mark.parametrize(("table", "column", "value", "where"), OF_ALL_STORES)
async def test_a_damaged_cell_on_postgres_holds_one_run_and_is_named(
    table: str,
    column: str,
    value: object,
    where: str,
    empty_schema: Callable[[], str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    url = empty_schema()
    await furnish(url)
    async with meddler(url) as other:
        assert await other.execute(f'update {table} set "{column}" = $1 where {where}', value) != "UPDATE 0"
    await check_damaged(url, f"{table}.{column}", caplog)


# The sweep above takes the first row of each table, which may be one that nobody goes on with.
@pytest.mark.parametrize(("table", "column", "value", "where"), OF_ALL_STORES)
async def test_a_damaged_cell_of_a_run_that_goes_on_holds_it_on_sqlite(
    table: str,
    column: str,
    value: object,
    where: str,
    furnished: Path,
    quick_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = Path(shutil.copyfile(furnished, quick_path / "runs.db"))
    with closing(sqlite3.connect(path)) as connection, connection:
        if column == "tags":  # It has the tags in a table of their own, too, and would not take these.
            connection.execute("drop trigger run_tags_update")
        assert connection.execute(f'update {table} set "{column}" = ? where {where}', (value,)).rowcount > 0
    await check_damaged(f"sqlite:///{path}", f"{table}.{column}", caplog)
