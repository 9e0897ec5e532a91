"""Only commits write, and what docs/decisions lists with a reason: looked for in each store in its own way."""

from __future__ import annotations

import dis
import inspect
import pickle
import re
import sqlite3
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest

from perdure.ports import Store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.storage.postgres import PostgresStore
from perdure.storage.sqlite import SqliteStore
from perdure.testing.conformance import StoreConformance

LIST = Path(__file__).resolve().parents[2] / "docs" / "decisions" / "0076-what-writes-beside-the-coordinator.md"
LISTED = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", LIST.read_text("utf-8"), re.MULTILINE))
METHODS = {name for kind in inspect.getmro(Store) for name in vars(kind) if not name.startswith("_")}
READING = METHODS - LISTED.keys() - {"commit"}


def test_each_exception_is_a_method_of_the_store_and_has_a_reason() -> None:
    assert LISTED.keys() <= METHODS
    assert all(len(reason) > 20 for reason in LISTED.values())
    assert len(LISTED) == len(re.findall(r"^\| `", LIST.read_text("utf-8"), re.MULTILINE))


# ---------------------------------------------------------------------------------------------------------------------
# SQLite: the reader's connection cannot write, so what writes uses something else


WAYS_TO_WRITE = re.compile(
    r"self\._db\.(write\(|writer|open\(|close\(|abandon\(|signs\.withdraw)|\binsertion\(|_steps\b"
)


def source_of(kind: type[Any], name: str) -> str:
    """The source of a method, with that of the private methods that it calls."""
    found = inspect.getattr_static(kind, name)
    if not isinstance(found, FunctionType):
        return ""
    text = inspect.getsource(found)
    body = text.partition(":\n")[2] or text
    return body + "".join(source_of(kind, one) for one in re.findall(r"self\.(_\w+)\b", body) if hasattr(kind, one))


def test_the_methods_of_sqlite_that_write_are_those_that_are_listed() -> None:
    writing = {name for name in METHODS if WAYS_TO_WRITE.search(source_of(SqliteStore, name))}
    assert writing == LISTED.keys() | {"commit"}


async def test_what_reads_in_sqlite_could_not_write(tmp_path: Path) -> None:
    store = SqliteStore(tmp_path / "runs.db")
    await store.open()
    try:
        with pytest.raises(Exception, match="readonly"):
            await store._db.read(_delete)
    finally:
        await store.close()


def _delete(connection: sqlite3.Connection) -> None:
    connection.execute("delete from runs")


# ---------------------------------------------------------------------------------------------------------------------
# Postgres: the queries that a method comes to


WRITING_SQL = re.compile(r"\b(insert\s+into|update\s+\w+\s+set|delete\s+from|\w+_v\d+\s*\()", re.IGNORECASE)


def functions_of(function: FunctionType, seen: set[str]) -> Iterator[FunctionType]:
    """A function, and those of the store's modules that it calls."""
    if (place := f"{function.__module__}.{function.__qualname__}") in seen:
        return
    seen.add(place)
    yield function
    for code in codes_of(function.__code__):
        for step in dis.get_instructions(code):
            used = function.__globals__.get(step.argval) if step.opname == "LOAD_GLOBAL" else None
            if isinstance(used, FunctionType) and used.__module__.startswith("perdure.storage.postgres"):
                yield from functions_of(used, seen)


def codes_of(code: CodeType) -> Iterator[CodeType]:
    yield code
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield from codes_of(one)


def queries_of(method: FunctionType) -> dict[str, str]:
    """The texts of the named queries that a method may come to, by name."""
    found: dict[str, str] = {}
    for function in functions_of(method, set()):
        known = function.__globals__.get("QUERIES", {})
        for code in codes_of(function.__code__):
            found |= {one: known[one].sql for one in code.co_consts if isinstance(one, str) and one in known}
    return found


@pytest.mark.parametrize("name", sorted(READING))
def test_a_method_of_postgres_that_is_not_listed_has_no_query_that_writes(name: str) -> None:
    method = inspect.getattr_static(PostgresStore, name, None)
    if isinstance(method, FunctionType):
        writing = [one for one, sql in queries_of(method).items() if WRITING_SQL.search(sql)]
        assert not writing, f"make {name} an op, or list it in {LIST.name}"


def test_queries_are_found_wherever_they_hide() -> None:
    def writes(name: str) -> set[str]:
        found = queries_of(inspect.getattr_static(PostgresStore, name))
        return {one for one, sql in found.items() if WRITING_SQL.search(sql)}

    assert writes("claim_tasks") == {"claim_tasks"}
    assert writes("retire") == {"retire", "forget_engine"}
    assert writes("collect") == {"delete_replies"}
    assert "children" in queries_of(inspect.getattr_static(PostgresStore, "hierarchy"))


# ---------------------------------------------------------------------------------------------------------------------
# Memory: the tables before and after each call of the whole suite


class WatchedStore(MemoryStore):
    """Compares the tables before and after each request that is not listed."""

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if name in READING and inspect.iscoroutinefunction(found):
            return self._watched(name, found)
        return found

    def _watched(self, name: str, request: Callable[..., Coroutine[Any, Any, Any]]) -> Callable[..., Any]:
        async def watched(*args: Any, **options: Any) -> Any:
            before = self._tables()
            answer = await request(*args, **options)
            assert self._tables() == before, f"{name} writes: make it an op, or list it in {LIST.name}"
            return answer

        return watched

    def _tables(self) -> bytes:
        database = self.database
        fields = set(MemoryDatabase.__struct_fields__) - {"lock", "listeners"}
        return pickle.dumps({name: _plain(getattr(database, name)) for name in sorted(fields)})


def _plain(table: Any) -> Any:
    fields = getattr(table, "__struct_fields__", None)
    return table if fields is None else {name: getattr(table, name) for name in fields}


class TestMemoryIsOnlyWrittenByWhatIsListed(StoreConformance):
    @pytest.fixture(autouse=True)
    def database(self) -> None:
        self.shared = MemoryDatabase()

    def make_store(self) -> MemoryStore:
        return WatchedStore(self.shared)


async def test_a_write_in_memory_that_is_not_listed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = WatchedStore()
    await store.open()
    monkeypatch.setitem(globals(), "READING", {*READING, "enroll"})
    with pytest.raises(AssertionError, match="enroll writes"):
        await store.enroll(engine_id="e", host="h", pid=1, workflows=[], at=1)
    await store.close()
