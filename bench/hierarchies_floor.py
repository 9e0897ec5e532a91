"""The limit of W11 on SQLite: the rows that the hierarchies need, committed in groups with fsync on, and nothing else.

Per message its row and EMITTED; per run a row at its start and an update at its end, SEEN, an event per step and
COMMITTED; for the root two updates more, when it waits and when it goes on; per change of status one audit row.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bench.figures import Figures
from bench.group import Group
from perdure.ports import new_id

INSERT_RUNS = """
    insert into runs (
        id, workflow, workflow_version, model, status, version, revision, owner, claim, parent_id, bond, origin, tags,
        attempt, recoveries, created_at, started_at, updated_at, spilled, input
    ) values (?, ?, ?, 'operation', 'running', 1, 1, 'floor', 1, ?, 'awaited', ?, '{}', 1, 0, ?, ?, ?, 0, ?)
"""
MOVE_RUNS = """
    update runs set status = ?, version = ?, revision = ?, updated_at = ?
    where id = ? and owner = 'floor' and version = ?
"""
FINISH_RUNS = """
    update runs
    set status = 'succeeded', version = ?, revision = ?, owner = null, updated_at = ?, completed_at = ?, output = 'null'
    where id = ? and owner = 'floor' and version = ?
"""
INSERT_MESSAGES = "insert into messages (id, topic, payload, created_at) values (?, ?, ?, ?)"
INSERT_EVENTS = """
    insert into message_event (
        scope, seq, id, message_id, type, key, coroutine_name, coroutine_identifier, step, cooperation_lineage,
        created_at, context
    ) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
"""
INSERT_AUDIT = """
    insert into audit (run_id, seq, version, was, became, cause, actor, details, at) values (?, ?, ?, ?, ?, ?, ?, '', ?)
"""
STEPS = ("first", "second", "third")


class Floor(Group):
    """Hierarchies, one after the other."""

    statements = (INSERT_RUNS, MOVE_RUNS, FINISH_RUNS, INSERT_MESSAGES, INSERT_EVENTS, INSERT_AUDIT)

    async def hierarchy(self, number: int) -> None:
        root = new_id(_now())
        top = _Run(self, "root", (root,), self._emit("root", (root,), None, number))
        await self.durable()
        children = [
            _Run(self, name, top.lineage, self._emit(name, top.lineage, top, number)) for name in ("left", "right")
        ]
        top.step(0)
        top.move("suspended")
        await self.durable()
        await asyncio.gather(*[self._through(child, 0) for child in children])
        top.move("running")
        await self._through(top, 1)

    async def _through(self, run: _Run, first: int) -> None:
        for number in range(first, len(STEPS)):
            run.step(number)
            if number < len(STEPS) - 1:
                await self.durable()
        run.finish()
        await self.durable()

    def _emit(self, topic: str, lineage: tuple[str, ...], by: _Run | None, number: int) -> str:
        now = _now()
        message_id = new_id(now)
        self.rows.of[INSERT_MESSAGES].append((message_id, topic, f'{{"n":{number}}}', now))
        if by is None:
            self.rows.of[INSERT_EVENTS].append(
                (
                    lineage[-1],
                    1,
                    new_id(now),
                    message_id,
                    "EMITTED",
                    "EMITTED",
                    None,
                    None,
                    None,
                    lineage[-1],
                    now,
                    "{}",
                )
            )
        else:
            by.happened("EMITTED", message_id, "EMITTED", "first")
        return message_id


class _Run:
    def __init__(self, floor: Floor, name: str, above: tuple[str, ...], message_id: str) -> None:
        now = _now()
        self.floor, self.name, self.message_id = floor, name, message_id
        self.id = new_id(now)
        self.lineage = (*above, self.id)
        self.seq, self.version, self.status = 0, 1, "running"
        origin = f"{'/'.join(self.lineage)} {message_id}"
        of = floor.rows.of
        of[INSERT_RUNS].append(
            (self.id, name, name, above[-1], origin, now, now, now, f'{{"topic":"{name}","message":"{message_id}"}}')
        )
        of[INSERT_AUDIT].append((self.id, 1, 1, None, "running", "started", "engine", now))
        self.happened("SEEN", message_id, f"SEEN/{name}", None)

    def happened(self, kind: str, message_id: str, key: str | None, step: str | None) -> None:
        now = _now()
        self.seq += 1
        row: tuple[Any, ...] = (
            self.id, self.seq, new_id(now), message_id, kind, key, self.name, self.id, step, "/".join(self.lineage),
            now, None if kind == "COMMITTED" else "{}",
        )  # fmt: skip
        self.floor.rows.of[INSERT_EVENTS].append(row)

    def step(self, number: int) -> None:
        self.happened("SUSPENDED", self.message_id, None, STEPS[number])

    def move(self, status: str) -> None:
        now = _now()
        of = self.floor.rows.of
        of[MOVE_RUNS].append((status, self.version + 1, self.version + 1, now, self.id, self.version))
        self._changed(status, now, {"suspended": "suspended", "running": "notified: news"}[status])

    def finish(self) -> None:
        now = _now()
        self.happened("COMMITTED", self.message_id, f"COMMITTED/{self.name}", STEPS[-1])
        of = self.floor.rows.of
        of[FINISH_RUNS].append((self.version + 1, self.version + 1, now, now, self.id, self.version))
        self._changed("succeeded", now, "committed")

    def _changed(self, status: str, now: int, cause: str) -> None:
        self.version += 1
        of = self.floor.rows.of
        of[INSERT_AUDIT].append((self.id, self.version, self.version, self.status, status, cause, "engine", now))
        self.status = status


def _now() -> int:
    return time.time_ns() // 1000


async def measure(folder: Path, *, hierarchies: int, in_flight: int) -> Figures:
    floor = Floor(folder / "floor.db")
    numbers = iter(range(hierarchies))

    async def client() -> None:
        for number in numbers:
            await floor.hierarchy(number)

    began = time.perf_counter()
    await asyncio.gather(*[client() for _ in range(in_flight)])
    took = time.perf_counter() - began
    floor.close()
    return {"hierarchies_per_s": hierarchies / took}
