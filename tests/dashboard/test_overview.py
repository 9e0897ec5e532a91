"""The figures of the overview: exact, or with a sign that there are more."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from perdure import Client
from perdure.dashboard.pages.overview import counts, lateness, throughput
from perdure.dashboard.plots import Window
from perdure.engine import AnyClient
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.conformance.base import Author, a_run, insert

BEGIN = datetime(2026, 11, 16, 12, tzinfo=UTC)
WINDOW = Window(BEGIN, BEGIN + timedelta(hours=1), 4)


def some(number: int, status: Status, minute: float) -> list[Run]:
    """Runs that were started at one moment."""
    at = round((BEGIN + timedelta(minutes=minute)).timestamp() * 1_000_000)
    return [a_run(f"{status} {minute} {one}", status=status, created_at=at) for one in range(number)]


@asynccontextmanager
async def client_of(*runs: list[Run]) -> AsyncGenerator[AnyClient]:
    database = MemoryDatabase()
    store = MemoryStore(database)
    await store.open()
    await (await Author.enroll(store)).commit(*[insert(run) for one in runs for run in one])
    async with Client(MemoryStore(database), poll_s=None) as client:
        yield client
    await store.close()


async def test_runs_are_counted_by_when_they_were_started_and_how_they_stand() -> None:
    early, late = some(3, Status.SUCCEEDED, -0.1), some(4, Status.SUCCEEDED, 60)
    inside = [some(999, Status.SUCCEEDED, 0), some(999, Status.SUCCEEDED, 59.9), some(2, Status.ROLLBACK_FAILED, 20)]
    async with client_of(early, late, *inside, some(1, Status.SUSPENDED, 20), some(5, Status.CANCELLED, 31)) as client:
        found = await throughput(client, WINDOW)
    assert found.counts == [
        ("good", "1,998 succeeded"),
        ("bad", "2 failed"),
        ("ended", "5 cancelled or undone"),
        ("running", "1 not ended"),
    ]
    assert not found.is_bounded
    assert "1,998 succeeded, 2 failed" in found.plot


async def test_of_too_many_in_a_bar_it_is_said_that_there_are_more() -> None:
    async with client_of(some(1_500, Status.FAILED, 1), some(10, Status.FAILED, 30)) as client:
        found = await throughput(client, WINDOW)
    assert found.is_bounded
    assert [text for _, text in found.counts][:2] == ["0 succeeded", "1,010+ failed"]


async def test_counts_are_exact_up_to_a_bound() -> None:
    async with client_of(some(1_234, Status.FAILED, 1), some(5_001, Status.SUSPENDED, 2)) as client:
        found = {one.title: one.text for one in await counts(client, 0)}
    assert (found["failed"], found["waiting"], found["running"]) == ("1,234", "5,000+", "0")


async def test_of_timers_it_is_said_what_they_are_a_sample_of() -> None:
    async with client_of(some(99, Status.SUCCEEDED, 1)) as client:
        assert (await lateness(client, WINDOW)).text == "no timer has fired"
    async with client_of(some(101, Status.SUCCEEDED, 1)) as client:
        assert (await lateness(client, WINDOW)).text == "no timer of the newest 100 runs has fired; others are not read"
