"""`async def` tests run in an event loop of their own, without a plugin, and fail instead of hanging for ever.

Tests of what is the same for every store ask for a `source`, or for `fresh` if they need many: they run on memory and
on SQLite, some of them on Postgres.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from perdure.ports import Store
from perdure.storage import open_store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.storage.sqlite.connection import connect_writer
from perdure.testing.environment import StoreSource
from tests.storage.postgres.server import Servers

# How long an example takes says more about the machine than about the code.
settings.register_profile("perdure", deadline=None)
settings.load_profile("perdure")

# Nodes of graphs reach servers that the tests have on this machine, which engines do not allow by themselves.
os.environ.setdefault("PERDURE_NETWORK_ALLOW", "127.0.0.1,localhost")

LIMIT_S = float(os.environ.get("TEST_LIMIT_S", "380"))
# Tables of its own take a test on Postgres a while, so only those run there too that do most with a store, unless all
# are asked for.
ALL_ON_POSTGRES = bool(os.environ.get("PERDURE_ALL_ON_POSTGRES"))
ON_POSTGRES = {
    "test_at_once",
    "test_standstills",
    "test_backlog",
    "test_blame",
    "test_blame_waiting",
    "test_calls",
    "test_changed_arguments",
    "test_changed_waits",
    "test_cancellation_tokens",
    "test_cancelling",
    "test_cancelled_calls",
    "test_children",
    "test_chosen_children",
    "test_claims",
    "test_clocks",
    "test_client",
    "test_commits",
    "test_continue_as",
    "test_mail_crashes",
    "test_marks",
    "test_mcp",
    "test_token_crashes",
    "test_undone_emissions",
    "test_control",
    "test_cut_shutdowns",
    "test_diagnosing",
    "test_durations",
    "test_events",
    "test_fingerprints",
    "test_artifact_ids",
    "test_behaviours",
    "test_bounds",
    "test_branches",
    "test_graph_programs",
    "test_stored_definitions",
    "test_task_nodes",
    "test_token_views",
    "test_record_nodes",
    "test_metrics",
    "test_recovery",
    "test_retried_children",
    "test_retry_crashes",
    "test_retrying",
    "test_retrying_at_once",
    "test_same_start",
    "test_sending",
    "test_answers",
    "test_artifacts",
    "test_attempts",
    "test_cooperation_engine",
    "test_causes",
    "test_cost",
    "test_meeting",
    "test_misused_scopes",
    "test_misfits",
    "test_local_hints",
    "test_notices",
    "test_operation_keys",
    "test_pieces",
    "test_forgetting",
    "test_functions",
    "test_changed_steps",
    "test_holds",
    "test_hostile_reads",
    "test_identity",
    "test_late",
    "test_many_runs",
    "test_roots",
    "test_limits",
    "test_set_aside",
    "test_shared_rows",
    "test_tasks",
    "test_together",
    "test_undoing",
    "test_unfit_store",
    "test_versions",
    "test_waking",
    "test_wide_recovery",
    "test_same_names",
}
MEMORY = Path("/dev/shm")
MEMORY_MIN_BYTES = 2**29  # a container often has less, which might not do


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    asyncio.run(_within_limit(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names})))
    return True


async def _within_limit(test: Any) -> None:
    async with asyncio.timeout(LIMIT_S):
        await test


@pytest.fixture(scope="session")
def postgres_servers() -> Iterator[Servers]:
    """Postgres servers, started when first asked for, and ended with the session whatever happens in it."""
    servers = Servers()
    yield servers
    servers.end()


@pytest.fixture
def empty_schema(postgres_servers: Servers) -> Iterator[Callable[[], str]]:
    """Gives the URL of a Postgres schema with nothing in its tables at each call; the next test has it after this."""
    yield postgres_servers.empty
    postgres_servers.take_back()


@pytest.fixture(scope="session")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with all tables and nothing in them, to be copied: migrating one takes longer than most trials."""
    path = tmp_path_factory.mktemp("empty") / "empty.db"
    connect_writer(path).close()
    return path


@pytest.fixture
def quick_path() -> Iterator[Path]:
    """A folder in memory if the system has one. An engine that dies in a test takes no machine with it."""
    has_room = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_MIN_BYTES
    # Threads of engines that were killed may still close their files.
    with tempfile.TemporaryDirectory(
        prefix="perdure-", dir=MEMORY if has_room else None, ignore_cleanup_errors=True
    ) as folder:
        yield Path(folder)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    marks = metafunc.definition.iter_markers("parametrize")
    if "fresh" in metafunc.fixturenames and not any(mark.args[0] == "fresh" for mark in marks):
        # Who asks for `source` needs one set of tables, who asks for `fresh` itself may need a hundred.
        module = metafunc.definition.path.stem
        is_telling = (module in ON_POSTGRES or ALL_ON_POSTGRES) and "source" in metafunc.fixturenames
        backends = ["memory", "sqlite", "postgres"] if is_telling else ["memory", "sqlite"]
        metafunc.parametrize("fresh", backends, indirect=True)


@pytest.fixture
def fresh(request: pytest.FixtureRequest, empty_file: Path, quick_path: Path) -> Callable[[], StoreSource]:
    """Gives new data, of which there is none yet, at each call. Every test that asks for it runs on several stores."""
    if request.param == "memory":
        return lambda: partial(MemoryStore, MemoryDatabase())
    if request.param == "postgres":
        new: Callable[[], str] = request.getfixturevalue("empty_schema")
        return new
    numbers = count()
    return lambda: f"sqlite:///{shutil.copyfile(empty_file, quick_path / f'{next(numbers)}.db')}"


@pytest.fixture
def source(fresh: Callable[[], StoreSource]) -> StoreSource:
    """Stores made from it see the same data. Every test that asks for it runs on several backends."""
    return fresh()


@pytest.fixture
def make_store(source: StoreSource) -> Callable[[], Store]:
    """Makes stores, not opened, that see the same data."""
    return (lambda: open_store(source)) if isinstance(source, str) else source or MemoryStore
