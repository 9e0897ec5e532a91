"""What must be true when a simulated fleet has come to rest."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from typing import Any

from perdure.errors import InvariantViolated
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.events import options_of
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing.invariants import check_store
from perdure.testing.simulate.workload import Job, News, Plan, Told, matches, outcome

__all__ = ["Expected", "check_rest"]


class Expected:
    """What a scenario sent and started."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}  # run id -> what it must have done
        self.victims: set[str] = set()  # those of them that may have been cancelled
        self.jobs: set[int] = set()
        self.news: set[int] = set()
        self.told: dict[str, int] = {}  # run id -> how often


async def check_rest(database: MemoryDatabase, expected: Expected, now: int) -> None:
    """Raises InvariantViolated with all that is wrong."""
    wrong = [*_runs(database, expected), *_events(database, expected), *_leftovers(database)]
    store = MemoryStore(database)
    await store.open()
    try:
        await check_store(store, now=now)
    except InvariantViolated as error:
        wrong.append(str(error))
    await store.close()
    if wrong:
        raise InvariantViolated("\n".join(wrong))


def _runs(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    for run_id, plan in expected.plans.items():
        stored = database.runs.get(run_id)
        if stored is None:
            yield f"run {run_id!r} was never started"
        elif stored.run.status is Status.SUCCEEDED:
            found = json.loads(stored.outcome.output or "null")
            if not matches(wanted := outcome(plan), found):
                yield f"run {run_id!r} came to {found} instead of {wanted}"
        elif stored.run.status is not Status.CANCELLED or run_id not in expected.victims:
            yield f"run {run_id!r} is {stored.run.status}, with {stored.outcome.failure}"


def _events(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    read = [*_read(database)]
    jobs = Counter(number for _, name, number in read if name == _name(Job))
    queue = list(database.tables.events.get("", {}).values())
    jobs += Counter(json.loads(event.value)["number"] for event in queue if event.name == _name(Job))
    if doubled := sorted(number for number, times in jobs.items() if times > 1):
        yield f"jobs {doubled} were read more than once, or are still there"
    if lost := sorted(expected.jobs - jobs.keys()):
        yield f"jobs {lost} were lost"
    news = Counter((run_id, number) for run_id, name, number in read if name == _name(News))
    if doubled_news := sorted(key for key, times in news.items() if times > 1):
        yield f"news was read more than once by the same run: {doubled_news}"
    kept = {json.loads(event.value)["number"] for event in queue if event.name == _name(News)}
    if lost := sorted(expected.news - kept):
        yield f"news {lost} was lost"
    for run_id, times in expected.told.items():
        heard = [number for one, name, number in read if one == run_id and name == _name(Told)]
        if run_id not in expected.victims and sorted(heard) != list(range(times)):
            yield f"run {run_id!r} heard {heard} of the {times} words to it"


def _read(database: MemoryDatabase) -> Iterator[tuple[str, str, int]]:
    """Run, name and number of each event that was read, by all journals."""
    for run_id, entries in database.journal.items():
        for entry in entries.values():
            if entry.kind == "wait" and entry.value is not None:
                won: dict[str, Any] = json.loads(entry.value)
                if "name" in won:
                    yield run_id, won["name"], won["value"]["number"]


def _name(kind: type[Job | News | Told]) -> str:
    return options_of(kind).name


def _leftovers(database: MemoryDatabase) -> Iterator[str]:
    for stored in database.runs.values():
        run = stored.run
        if run.status not in FINISHED:
            yield f"run {run.id!r} ({run.workflow}) is still {run.status}, owned by {run.owner}, with hold {run.hold}"
    for mail in database.mail.values():
        yield f"mail {mail.id} for run {mail.run_id!r} was never read: {mail.op}"
