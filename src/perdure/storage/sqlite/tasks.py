"""Tasks: writes inside a commit, claims and renewals in transactions of their own, and reads."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from perdure.kernel.tasks import Task, TaskWrites
from perdure.ports import TaskFilter
from perdure.storage.damage import shown_task
from perdure.storage.sqlite.database import SqliteSlice
from perdure.storage.sqlite.lists import within_variables
from perdure.storage.sqlite.queries import load_queries
from perdure.storage.sqlite.rows import Row, json_text
from perdure.storage.sqlite.transaction import transaction

QUERIES: Final = load_queries(Path(__file__).with_name("tasks.sql").read_text("utf-8"))


class TaskTaken(Exception):
    """A task that is to be released or answered is not open, or another worker has claimed it."""


def write(connection: sqlite3.Connection, changes: TaskWrites, at: int) -> None:
    """Write a batch's changes to tasks. Raises TaskTaken."""
    for task in changes.tasks:
        connection.execute(QUERIES["insert_task"], asdict(task))
    for one in changes.released:
        if connection.execute(QUERIES["release_task"], asdict(one)).rowcount != 1:
            raise TaskTaken
    for answer in changes.answers:
        if connection.execute(QUERIES["answer_task"], asdict(answer)).rowcount != 1:
            raise TaskTaken
    for task_id in changes.withdrawn:
        connection.execute(QUERIES["withdraw_task"], {"id": task_id, "at": at})


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def tasks(connection: sqlite3.Connection, *, wanted: TaskFilter) -> list[Task]:
    if wanted.run_id is not None:
        query = "tasks_of_run"
    elif wanted.status in ("open", "claimed"):
        query = "tasks_open_anywhere" if wanted.queue is None else "tasks_open"
    else:
        query = "tasks_all"
    variables = within_variables(wanted)
    return [task_of(row) for row in connection.execute(QUERIES[query], variables)]


def load_tasks(connection: sqlite3.Connection, *, ids: list[str]) -> dict[str, Task]:
    return {row[0]: task_of(row) for row in connection.execute(QUERIES["tasks"], {"ids": json_text(ids)})}


def task_of(row: Row) -> Task:
    """Convert a row to a task. If the row is damaged, the task has a status that reports the damage."""
    return shown_task(dict(zip(Task.__struct_fields__, row, strict=True)), row)


# ---------------------------------------------------------------------------------------------------------------------
# Transactions of their own


def claim_tasks(
    connection: sqlite3.Connection, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str
) -> list[Task]:
    with transaction(connection):
        free = {"queue": queue, "at": at, "limit": max(0, limit)}
        ids = [row[0] for row in connection.execute(QUERIES["free_tasks"], free).fetchall()]
        taken: Mapping[str, Any] = {
            "worker": worker,
            "lease_us": lease_us,
            "lease_until": at + lease_us,
            "at": at,
            "actor": actor,
        }
        for task_id in ids:
            connection.execute(QUERIES["claim_task"], {"id": task_id, **taken})
        claimed = load_tasks(connection, ids=ids)
        return [claimed[task_id] for task_id in ids if claimed[task_id].status == "open"]


def renew_lease(connection: sqlite3.Connection, *, wanted: Mapping[str, Any]) -> bool:
    with transaction(connection):
        return connection.execute(QUERIES["renew_lease"], wanted).rowcount == 1


class SqliteTasks(SqliteSlice):
    """Tasks."""

    async def tasks(self, wanted: TaskFilter) -> list[Task]:
        return await self._db.read(partial(tasks, wanted=wanted))

    async def load_tasks(self, ids: Sequence[str]) -> dict[str, Task]:
        return await self._db.read(partial(load_tasks, ids=[*ids])) if ids else {}

    async def claim_tasks(
        self, *, queue: str, worker: str, lease_us: int, at: int, limit: int, actor: str = ""
    ) -> list[Task]:
        claim = partial(claim_tasks, queue=queue, worker=worker, lease_us=lease_us, at=at, limit=limit, actor=actor)
        return await self._db.write(claim)

    async def renew_lease(
        self, *, task_id: str, worker: str, at: int, details: str | None = None, actor: str = ""
    ) -> bool:
        wanted = {"id": task_id, "worker": worker, "at": at, "details": details, "actor": actor}
        return await self._db.write(partial(renew_lease, wanted=wanted))
