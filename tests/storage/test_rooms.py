"""The three stores have equal rooms: a module for each slice of the port, with the methods of that slice."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from perdure import ports
from perdure.ports.store import Store
from perdure.storage.memory import MemoryStore
from perdure.storage.postgres import PostgresStore
from perdure.storage.sqlite import SqliteStore

STORAGE = Path(ports.__file__).parents[1] / "storage"
STORES: dict[str, type[Any]] = {"memory": MemoryStore, "sqlite": SqliteStore, "postgres": PostgresStore}
SLICES = [base for base in Store.__bases__ if base.__module__.startswith("perdure.ports.")]
METHODS_MAX = 10

# What not all stores have, and why.
NOT_EVERYWHERE: dict[str, dict[str, str]] = {
    "memory": {
        "claims": "which runs are free is a query in the others",
    },
    "sqlite": {
        "checkpoints": "of the write-ahead log",
        "faults": "what the database's errors mean",
        "hints": "the log is watched for what other processes have written",
        "insertion": "rows in a caller's transaction",
        "liveness": "lock files beside the database",
        "log_files": "a log can be cut, or be from another time",
        "lost_commits": "a file can be replaced or go back",
        "switch_interval": "the writer's thread shares the interpreter",
        "queries": "the named queries",
        "rows": "values from rows and back",
        "schema": "migrations",
        "runless_rows": "in memory, the tables do that",
        "steps": "transactional steps",
        "thread": "connections of sqlite3 block",
        "transaction": "sqlite3's own are not used",
    },
    "postgres": {
        "address": "a URL with options",
        "clock": "the server's",
        "driver": "asyncpg, as types",
        "faults": "what the database's errors mean",
        "hints": "LISTEN and NOTIFY",
        "insertion": "rows in a caller's transaction",
        "liveness": "leases, renewed in a thread",
        "inserted_run_hints": "runs that callers' transactions bring",
        "pgbouncer": "a pool between engine and server",
        "queries": "the named queries",
        "rights": "roles of the server",
        "rows": "values from rows and back",
        "schema": "migrations",
        "runless_rows": "in memory, the tables do that",
        "steps": "transactional steps",
    },
}


def modules(store: str) -> set[str]:
    return {path.stem for path in (STORAGE / store).glob("*.py") if path.stem != "__init__"}


def public(kind: type[Any]) -> set[str]:
    return {name for name in vars(kind) if not name.startswith("_")}


def noun(slice_: type[Any]) -> str:
    return slice_.__module__.rpartition(".")[2]


@pytest.mark.parametrize("store", STORES)
def test_what_one_store_has_the_others_have_or_there_is_a_reason(store: str) -> None:
    everywhere = set.intersection(*(modules(one) for one in STORES))
    assert modules(store) - everywhere == set(NOT_EVERYWHERE[store])
    assert all(NOT_EVERYWHERE[store].values())


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("slice_", SLICES, ids=noun)
def test_a_slice_is_one_small_class_in_the_module_of_its_noun(store: str, slice_: type[Any]) -> None:
    if noun(slice_) == "commits":
        assert public(slice_) <= public(STORES[store])  # What writes a batch needs all of the store.
        return
    module = import_module(f"perdure.storage.{store}.{noun(slice_)}")
    (made,) = [base for base in STORES[store].__bases__ if base.__module__ == module.__name__]
    assert public(made) == public(slice_)
    assert len(made.__bases__) == 1


def test_a_slice_of_the_port_is_small_and_methods_stand_in_one() -> None:
    assert len(SLICES) == 13
    names = [name for slice_ in SLICES for name in public(slice_)]
    assert len(names) == len(set(names))
    assert {noun(slice_): len(public(slice_)) for slice_ in SLICES if len(public(slice_)) > METHODS_MAX} == {}


@pytest.mark.parametrize("store", STORES)
def test_a_slice_keeps_to_itself(store: str) -> None:
    """It asks the database, and calls none of the store's other methods."""
    everything = {name for slice_ in SLICES for name in public(slice_)}
    for base in STORES[store].__bases__:
        source = inspect.getsource(base)
        called = {name for name in everything if f"self.{name}(" in source}
        assert called <= public(base), base
