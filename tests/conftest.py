"""`async def` tests run in an event loop of their own, without a plugin, and fail instead of hanging for ever."""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Generator
from typing import Any

import pytest

from tests.storage.postgres.server import Servers

LIMIT_S = float(os.environ.get("TEST_LIMIT_S", "180"))


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
def postgres_servers() -> Generator[Servers]:
    """Postgres servers, started when first asked for, and ended with the session whatever happens in it."""
    servers = Servers()
    yield servers
    servers.end()
