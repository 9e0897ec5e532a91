"""Checks of the stored data after a simulated fleet has finished its work."""

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
from perdure.testing.simulate.mix import SLEEP_S, said_in
from perdure.testing.simulate.workload import LOG, Job, Notice, Plan, Word, matches, outcome

__all__ = ["Expected", "check_rest"]

_LATE_MAX_S = 10.0  # clocks differ, and an engine looks for due runs every few seconds


class Expected:
    """The events that a scenario has sent and the runs that it has started, with the expected results."""

    def __init__(self) -> None:
        self.plans: dict[str, Plan] = {}  # run id -> the plan that the run must have carried out
        self.victims: set[str] = set()  # runs that may have been cancelled
        self.jobs: set[int] = set()
        self.notices: set[int] = set()
        self.words: dict[str, int] = {}  # run id -> how many Word events were sent to it
        self.graphs: dict[str, Any] = {}  # run id -> the output that it must have, for `matches`
        # run id -> the work that it must undo, and how it must end
        self.journeys: dict[str, tuple[list[Any], str]] = {}
        self.deadlines: set[str] = set()  # runs that must end by their deadline
        self.letters: set[int] = set()  # letters whose sender got a reply
        self.turns: set[str] = set()  # runs of the graph "turns", whose tokens pass its two nodes one after the other
        self.sleepers: set[str] = set()  # runs that sleep for SLEEP_S from their start on


async def check_rest(database: MemoryDatabase, expected: Expected, now: int) -> None:
    """Check all stored data. Raises InvariantViolated with a list of all problems."""
    wrong = [
        *_runs(database, expected),
        *_journeys(database, expected),
        *_events(database, expected),
        *_letters(database, expected),
        *_sleepers(database, expected),
        *_turns(database, expected),
        *_said(database, expected),
        *_leftovers(database),
    ]
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
    wanted_of = {run_id: outcome(plan) for run_id, plan in expected.plans.items()} | expected.graphs
    for run_id, wanted in wanted_of.items():
        stored = database.runs.get(run_id)
        if stored is None:
            yield f"run {run_id!r} was never started"
        elif stored.run.status is Status.SUCCEEDED:
            found = json.loads(stored.outcome.output or "null")
            if not matches(wanted, found):
                yield f"run {run_id!r} returned {found} instead of {wanted}"
        elif stored.run.status is not Status.CANCELLED or run_id not in expected.victims:
            yield f"run {run_id!r} is {stored.run.status}, with {stored.outcome.failure}"


def _journeys(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    for run_id in expected.deadlines:
        stored = database.runs[run_id]
        if stored.run.status is not Status.FAILED and run_id not in expected.victims:
            yield f"run {run_id!r} is {stored.run.status}, and was to fail by its deadline"
    for run_id, (stations, end) in expected.journeys.items():
        run = database.runs[run_id].run
        entries = list(database.journal.get(run_id, {}).values())
        done = sum(entry.kind == "compensate" for entry in entries)
        undone = [
            json.loads(entry.value or "null") for entry in entries if (entry.kind, entry.name) == ("step", "undo")
        ]
        if run.status is Status.SUCCEEDED:
            if end != "arrives" or undone:
                yield f"run {run_id!r} has arrived, after it undid {undone}"
        elif run.status is Status.CANCELLED and not done and run_id in expected.victims:
            continue
        elif run.status is not Status.ROLLED_BACK or (end == "arrives" and run_id not in expected.victims):
            yield f"run {run_id!r} is {run.status}"
        elif undone != [number for number, *_ in reversed(stations[:done])]:
            yield f"run {run_id!r} undid {undone}, of {done} of {stations}"


def _letters(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    """Check that each event that was never read has become exactly one dead letter."""
    found = Counter(json.loads(letter.value)["number"] for letter in database.tables.letters.values())
    if doubled := sorted(number for number, times in found.items() if times > 1):
        yield f"letters {doubled} are there more than once"
    if lost := sorted(expected.letters - found.keys()):
        yield f"letters {lost} were lost"


def _sleepers(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    """Check that each sleep ended in time. Its end was fixed when it began, whatever happened to its engine since."""
    for run_id in expected.sleepers:
        began = database.runs[run_id].run.started_at or 0
        for entry in database.journal.get(run_id, {}).values():
            slept_s = (entry.at - began) / 1_000_000
            if entry.kind == "timer" and abs(slept_s - SLEEP_S) > _LATE_MAX_S:
                yield f"run {run_id!r} slept for {slept_s} s instead of {SLEEP_S} s"


def _turns(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    """Check that no token came between two exclusive nodes of another token."""
    for run_id in expected.turns:
        entries = sorted(database.journal.get(run_id, {}).values(), key=lambda entry: entry.seq)
        kinds = [entry.kind for entry in entries if entry.kind in ("step", "timer")]
        if any(kind != ("step", "timer")[place % 2] for place, kind in enumerate(kinds)):
            yield f"run {run_id!r} has done {kinds}, which are not in turns"


def _said(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    for run_id, plan in expected.plans.items():
        items = [json.loads(item.value) for item in database.streams.items.get(run_id, {}).get(LOG, [])]
        for label, times in said_in(plan):
            found = [number for one, number in items if one == label]
            is_whole = run_id not in expected.victims
            if found != list(range(times if is_whole else len(found))):
                yield f"run {run_id!r} said {found} of {times} items"


def _events(database: MemoryDatabase, expected: Expected) -> Iterator[str]:
    read = [*_read(database)]
    jobs = Counter(number for _, name, number in read if name == _name(Job))
    queue = list(database.tables.events.get("", {}).values())
    jobs += Counter(json.loads(event.value)["number"] for event in queue if event.name == _name(Job))
    if doubled := sorted(number for number, times in jobs.items() if times > 1):
        yield f"jobs {doubled} were read more than once, or are still there"
    if lost := sorted(expected.jobs - jobs.keys()):
        yield f"jobs {lost} were lost"
    notices = Counter((run_id, number) for run_id, name, number in read if name == _name(Notice))
    if doubled_notices := sorted(key for key, times in notices.items() if times > 1):
        yield f"notices were read more than once by the same run: {doubled_notices}"
    kept = {json.loads(event.value)["number"] for event in queue if event.name == _name(Notice)}
    if lost := sorted(expected.notices - kept):
        yield f"notices {lost} were lost"
    for run_id, times in expected.words.items():
        received = [number for one, name, number in read if one == run_id and name == _name(Word)]
        if run_id not in expected.victims and sorted(received) != list(range(times)):
            yield f"run {run_id!r} received {received} of the {times} words to it"


def _read(database: MemoryDatabase) -> Iterator[tuple[str, str, int]]:
    """Yield the run, the name and the number of each event that was read, from all journals."""
    for run_id, entries in database.journal.items():
        for entry in entries.values():
            if entry.kind == "wait" and entry.value is not None:
                won: dict[str, Any] = json.loads(entry.value)
                if "name" in won:
                    yield run_id, won["name"], won["value"]["number"]


def _name(kind: type[Job | Notice | Word]) -> str:
    return options_of(kind).name


def _leftovers(database: MemoryDatabase) -> Iterator[str]:
    for stored in database.runs.values():
        run = stored.run
        if run.status not in FINISHED:
            yield f"run {run.id!r} ({run.workflow}) is still {run.status}, owned by {run.owner}, with hold {run.hold}"
    for mail in database.mail.values():
        yield f"mail {mail.id} for run {mail.run_id!r} was never read: {mail.op}"
