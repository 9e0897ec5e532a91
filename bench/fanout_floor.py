"""The limit of W5 on SQLite: a parent, its children and its waits for them; see bench/floor.py.

Four commits: the parent; its children and its waits; their steps and ends, which mark the waits; the parent's entries,
for each of which a wait goes, and its end. The engine commits at most 256 of these at once.
"""

from __future__ import annotations

import time
from pathlib import Path

from msgspec.json import encode

from bench.figures import Figures
from bench.group import Group, digest
from perdure.ports import new_id

INSERT_RUNS = """
    insert into runs (
        id, workflow, workflow_version, model, status, version, revision, owner, claim, parent_id, bond, tags, attempt,
        recoveries, created_at, started_at, updated_at, spilled, input
    ) values (?, ?, '', 'function', 'running', 1, 1, 'floor', 1, ?, ?, '{}', 1, 0, ?, ?, ?, 0, ?)
"""
SUSPEND_RUNS = """
    update runs set status = 'suspended', version = 2, revision = 2, updated_at = ?
    where id = ? and owner = 'floor' and version = 1
"""
FINISH_RUNS = """
    update runs
    set status = 'succeeded', version = ?, revision = ?, owner = null, updated_at = ?, completed_at = ?, output = ?
    where id = ? and owner = 'floor' and version = ?
"""
INSERT_WAITS = """
    insert into waits (run_id, position, option, kind, name, shape, filter, mode, target, number, attempts, since)
    values (?, ?, 0, 'run', 'child', '', '', '', ?, 0, 0, ?)
"""
MARK_WAITS = "update waits set due_at = 0 where run_id = ? and position = ?"
DELETE_WAITS = "delete from waits where run_id = ? and position = ?"
INSERT_JOURNAL = """
    insert into journal (run_id, seq, position, kind, name, value, attempts, started_at, at, digest, spilled)
    values (?, ?, ?, ?, ?, ?, 1, ?, ?, ?, 0)
"""
INSERT_AUDIT = """
    insert into audit (run_id, seq, version, was, became, cause, actor, details, at) values (?, ?, ?, ?, ?, ?, ?, '', ?)
"""


class FanoutFloor(Group):
    """A parent with its children."""

    statements = (
        INSERT_RUNS, SUSPEND_RUNS, FINISH_RUNS, INSERT_WAITS, MARK_WAITS, DELETE_WAITS, INSERT_JOURNAL, INSERT_AUDIT,
    )  # fmt: skip

    async def run(self, count: int) -> None:
        now = time.time_ns() // 1000
        parent = new_id(now)
        self._start(parent, "parent", None, f'{{"children":{count}}}', now)
        await self.durable()
        children = self._fan_out(parent, count)
        await self.durable()
        self._end_children(parent, children)
        await self.durable()
        self._end(parent, len(children))
        await self.durable()

    def _start(self, run_id: str, workflow: str, parent: str | None, input: str, now: int) -> None:
        bond = "" if parent is None else "awaited"
        actor = "api" if parent is None else "engine"
        self.rows.of[INSERT_RUNS].append((run_id, workflow, parent, bond, now, now, now, input))
        self.rows.of[INSERT_AUDIT].append((run_id, 1, 1, None, "running", "started", actor, now))

    def _fan_out(self, parent: str, count: int) -> list[str]:
        now = time.time_ns() // 1000
        children = [new_id(now) for _ in range(count)]
        rows = self.rows.of
        for number, child in enumerate(children):
            self._start(child, "child", parent, f'{{"number":{number}}}', now)
            rows[INSERT_WAITS].append((parent, f"{number + 1}.1", child, now))
        rows[SUSPEND_RUNS].append((now, parent))
        rows[INSERT_AUDIT].append((parent, 2, 2, "running", "suspended", "waiting", "engine", now))
        return children

    def _end_children(self, parent: str, children: list[str]) -> None:
        rows = self.rows.of
        for number, child in enumerate(children):
            started_at, value = time.time_ns() // 1000, encode({"ok": True, "n": number}).decode()
            now = time.time_ns() // 1000
            rows[INSERT_JOURNAL].append((child, 1, "1", "step", "small", value, started_at, now, digest(number)))
            rows[FINISH_RUNS].append((2, 2, now, now, "1", child, 1))
            rows[INSERT_AUDIT].append((child, 2, 2, "running", "succeeded", "ended", "engine", now))
            rows[MARK_WAITS].append((parent, f"{number + 1}.1"))

    def _end(self, parent: str, count: int) -> None:
        rows = self.rows.of
        now = time.time_ns() // 1000
        for number in range(1, count + 1):
            now = time.time_ns() // 1000
            rows[INSERT_JOURNAL].append(
                (parent, number, f"{number}.1", "child", "child", "1", now, now, digest(number - 1))
            )
            rows[DELETE_WAITS].append((parent, f"{number}.1"))
        rows[INSERT_AUDIT].append((parent, 3, 3, "suspended", "running", "child over", "engine", now))
        rows[INSERT_AUDIT].append((parent, 4, 4, "running", "succeeded", "ended", "engine", now))
        rows[FINISH_RUNS].append((4, 4, now, now, str(count), parent, 2))


async def measure(folder: Path, *, children: int) -> Figures:
    floor = FanoutFloor(folder / "floor.db")
    began = time.perf_counter()
    await floor.run(children)
    took = time.perf_counter() - began
    floor.close()
    return {"children_per_s": children / took}
