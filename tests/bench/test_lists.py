"""Listings are measured as they are documented: every filter, on both databases. Here nothing is judged."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench.lists import LIMIT_MS, filters, on_postgres, on_sqlite
from perdure.api.runs import Runs

RUNS = 2_000


@pytest.mark.parametrize("on_database", [on_sqlite, on_postgres])
async def test_every_filter_has_a_line_and_a_plan(
    on_database: Callable[..., Awaitable[bool]], capsys: pytest.CaptureFixture[str]
) -> None:
    # Not below pytest's own folder, which another user, as a server of Postgres may be, cannot enter.
    with TemporaryDirectory(prefix="perdure-bench-") as folder:
        await on_database(Path(folder), runs=RUNS, samples=1)
    printed = capsys.readouterr().out
    assert LIMIT_MS == 100
    lines = printed.splitlines()
    for name in filters(RUNS):
        plan = lines[lines.index(f"{name}:") + 1]
        assert sum(line.startswith(f"{name} ") for line in lines) == 1
        assert plan.strip()
    assert "Seq Scan on" not in printed
    assert "B-TREE" not in printed


def test_every_filter_that_there_is_is_measured() -> None:
    there_are = set(inspect.signature(Runs.list).parameters) - {"self", "limit", "cursor"}
    assert {name for given in filters(RUNS).values() for name in given} == there_are
