"""The limit of W3 on SQLite: an event comes, wins the wait of its run, is read, and its run ends; see bench/floor.py.

The runs wait before the clock starts. The first commit has the event's row, the mark on the wait and the next number of
the count; the one after it takes both rows away and has the journal entry, the run's row and two audit rows. Who has
sent an event sends the next one as soon as the first of the two is done.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

from msgspec.json import encode

from bench.figures import Figures
from bench.group import Group
from perdure.ports import new_id

INSERT_RUNS = """
    insert into runs (
        id, workflow, workflow_version, model, status, version, revision, owner, claim, tags, attempt, recoveries,
        created_at, started_at, updated_at, spilled, input
    ) values (?, 'waiter', '', 'function', 'suspended', 2, 2, 'floor', 1, '{}', 1, 0, ?, ?, ?, 0, '{}')
"""
INSERT_WAITS = """
    insert into waits (run_id, position, option, kind, name, shape, filter, mode, number, attempts, since)
    values (?, '1', 0, 'event', 'bench.go', '', '', 'after_wait', ?, 0, ?)
"""
MARK_WAITS = "update waits set due_at = 0 where run_id = ? and position = '1'"
DELETE_WAITS = "delete from waits where run_id = ?"
COUNT = "update sequence set value = value + ?"
INSERT_EVENTS = """
    insert into events (
        number, id, run_id, position, option, shared, consumed, name, expires_at, fallback, actor, at, fields, value
    ) values (?, ?, ?, '1', 0, 0, 1, 'bench.go', ?, 'discard', 'api', ?, ?, ?)
"""
DELETE_EVENTS = "delete from events where run_id is not null and run_id = ? and id = ?"
FINISH_RUNS = """
    update runs
    set status = 'succeeded', version = 4, revision = 4, owner = null, updated_at = ?, completed_at = ?, output = ?
    where id = ? and owner = 'floor' and version = 2
"""
INSERT_JOURNAL = """
    insert into journal (run_id, seq, position, kind, name, value, attempts, started_at, at, spilled)
    values (?, 1, '1', 'wait', 'bench.go', ?, 1, ?, ?, 0)
"""
INSERT_AUDIT = """
    insert into audit (run_id, seq, version, was, became, cause, actor, details, at) values (?, ?, ?, ?, ?, ?, ?, '', ?)
"""

_WEEK_US = 7 * 24 * 3600 * 1_000_000


class EventsFloor(Group):
    """Runs that wait for an event, and their events."""

    statements = (
        COUNT, INSERT_RUNS, INSERT_WAITS, INSERT_EVENTS, MARK_WAITS, DELETE_EVENTS, DELETE_WAITS, FINISH_RUNS,
        INSERT_JOURNAL, INSERT_AUDIT,
    )  # fmt: skip

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._number = 0

    def wait(self, run_id: str) -> None:
        """A run that waits."""
        now = time.time_ns() // 1000
        self._number += 1
        rows = self.rows.of
        rows[INSERT_RUNS].append((run_id, now, now, now))
        rows[INSERT_WAITS].append((run_id, self._number, now))
        rows[COUNT].append((1,))
        rows[INSERT_AUDIT].append((run_id, 1, 1, None, "running", "started", "api", now))
        rows[INSERT_AUDIT].append((run_id, 2, 2, "running", "suspended", "waiting", "engine", now))

    async def send(self, run_id: str, number: int) -> None:
        """Its event; what the run then does goes into the commit after that one."""
        now = time.time_ns() // 1000
        event_id, value = new_id(now), encode({"number": number}).decode()
        self._number += 1
        rows = self.rows.of
        fields = encode({"number": str(number)}).decode()
        rows[INSERT_EVENTS].append((self._number, event_id, run_id, now + _WEEK_US, now, fields, value))
        rows[MARK_WAITS].append((run_id,))
        if rows[COUNT]:
            rows[COUNT][0] = (rows[COUNT][0][0] + 1,)
        else:
            rows[COUNT].append((1,))
        await self.durable()
        at = time.time_ns() // 1000
        won = {"option": 0, "event": event_id, "name": "bench.go", "sent_at": now, "value": {"number": number}}
        rows = self.rows.of
        rows[DELETE_EVENTS].append((run_id, event_id))
        rows[DELETE_WAITS].append((run_id,))
        rows[INSERT_JOURNAL].append((run_id, encode(won).decode(), now, at))
        rows[FINISH_RUNS].append((at, at, "1", run_id))
        rows[INSERT_AUDIT].append((run_id, 3, 3, "suspended", "running", "ended", "engine", at))
        rows[INSERT_AUDIT].append((run_id, 4, 4, "running", "succeeded", "ended", "engine", at))


async def measure(folder: Path, *, waiters: int, senders: int) -> Figures:
    floor = EventsFloor(folder / "floor.db")
    ids = [f"waiter-{number:06}" for number in range(waiters)]
    for first in range(0, waiters, 256):  # As many at once as the engine writes.
        for run_id in ids[first : first + 256]:
            floor.wait(run_id)
        await floor.durable()

    async def sender(numbers: Iterator[int]) -> None:
        for number in numbers:
            await floor.send(ids[number], number)

    numbers = iter(range(waiters))
    began = time.perf_counter()
    await asyncio.gather(*[sender(numbers) for _ in range(senders)])
    await floor.durable()
    took = time.perf_counter() - began
    floor.close()
    return {"events_per_s": waiters / took}
