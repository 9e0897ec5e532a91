"""Artifacts, tasks and records: written inside a commit, or in transactions of their own, and read."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict

from perdure.kernel.batch import Batch
from perdure.kernel.stock import LAP, Artifact, Record, Stock, Task
from perdure.ports import ArtifactFilter, TaskFilter
from perdure.storage.damage import record_of, shown_artifact, shown_task, sound
from perdure.storage.sqlite.queries import load_queries
from perdure.storage.sqlite.rows import Row, json_text
from perdure.storage.sqlite.transaction import transaction

QUERIES: Final = load_queries(Path(__file__).with_name("stock.sql").read_text("utf-8"))


class TaskTaken(Exception):
    """A task that is answered is not open, or another worker has it."""


def write(connection: sqlite3.Connection, batch: Batch) -> None:
    """What the batch does to artifacts and tasks. Raises TaskTaken."""
    stock = batch.stock
    if stock is not None:
        _bring(connection, stock)
    for run_id, first, _ in batch.archive:
        _drop(connection, run_id, first)
    for run_id in batch.continued:
        connection.execute(QUERIES["outdate_artifacts"], {"run_id": run_id, "lap": LAP})
    if stock is not None:
        for run_id, fate in _stocked(connection, stock.fates).items():
            _end(connection, run_id, fate, batch.at)
        for task in stock.tasks:
            connection.execute(QUERIES["insert_task"], asdict(task))
        for answer in stock.answers:
            if connection.execute(QUERIES["answer_task"], asdict(answer)).rowcount != 1:
                raise TaskTaken
        for task_id in stock.withdrawn:
            connection.execute(QUERIES["withdraw_task"], {"id": task_id, "at": batch.at})


def _bring(connection: sqlite3.Connection, stock: Stock) -> None:
    for chunk in stock.chunks:
        connection.execute(QUERIES["insert_chunk"], asdict(chunk))
    for artifact_id in stock.chunks_gone:
        connection.execute(QUERIES["drop_chunks"], {"id": artifact_id})
    for artifact in stock.artifacts:
        if connection.execute(QUERIES["insert_artifact"], asdict(artifact)).rowcount == 0 and artifact.chunks:
            connection.execute(QUERIES["drop_chunks"], {"id": artifact.id})


def _drop(connection: sqlite3.Connection, run_id: str, first: int) -> None:
    if connection.execute(QUERIES["drop_artifacts"], {"run_id": run_id, "first": first}).rowcount:
        connection.execute(QUERIES["drop_stray_chunks"], {"run_id": run_id})


def _stocked(connection: sqlite3.Connection, fates: dict[str, str]) -> dict[str, str]:
    """The fates of those runs that have anything, in the order of the batch: most have nothing."""
    if not fates:
        return fates
    found = connection.execute(QUERIES["stocked"], {"ids": json_text(list(fates))}).fetchall()
    having = {run_id for (run_id,) in found}
    return {run_id: fate for run_id, fate in fates.items() if run_id in having}


def _end(connection: sqlite3.Connection, run_id: str, fate: str, at: int) -> None:
    if fate == "gone":
        connection.execute(QUERIES["drop_artifacts"], {"run_id": run_id, "first": -(2**63)})
    elif fate == "published":
        for artifact_id, name in connection.execute(QUERIES["staged"], {"run_id": run_id}).fetchall():
            connection.execute(QUERIES["publish"], {"id": artifact_id, "name": name, "at": at})
    else:
        connection.execute(QUERIES["move_artifacts"], {"run_id": run_id, "state": fate})
    if fate != "staged":
        connection.execute(QUERIES["drop_stray_chunks"], {"run_id": run_id})


# ---------------------------------------------------------------------------------------------------------------------
# Reading


def artifacts(connection: sqlite3.Connection, *, wanted: ArtifactFilter) -> list[Artifact]:
    if wanted.run_id is not None:
        query = "artifacts_of_run"
    elif wanted.name is not None:
        query = "artifacts_of_name"
    else:
        query = "artifacts_all" if wanted.type is None else "artifacts_of_type"
    variables = _variables(wanted)
    return [artifact_of(row) for row in connection.execute(QUERIES[query], variables)]


def _variables(wanted: ArtifactFilter | TaskFilter) -> dict[str, Any]:
    """The variables of a list's query."""
    within = wanted.within
    return asdict(wanted) | {
        "limit": max(0, wanted.limit),
        "workflows": None if within is None else json_text(within.workflows),
        "tags": None if within is None else json_text(within.tags),
        "within": None,
    }


def artifact(connection: sqlite3.Connection, *, id: str | None, name: str, version: int | None) -> Artifact | None:
    if id is not None:
        query = "artifact"
    else:
        query = "newest_artifact" if version is None else "artifact_version"
    row = connection.execute(QUERIES[query], {"id": id, "name": name, "version": version}).fetchone()
    return None if row is None else artifact_of(row)


def chunk(connection: sqlite3.Connection, *, artifact_id: str, number: int) -> bytes | None:
    row = connection.execute(QUERIES["chunk"], {"artifact_id": artifact_id, "number": number}).fetchone()
    return None if row is None else row[0]


def tasks(connection: sqlite3.Connection, *, wanted: TaskFilter) -> list[Task]:
    if wanted.run_id is not None:
        query = "tasks_of_run"
    elif wanted.status in ("open", "claimed"):
        query = "tasks_open_anywhere" if wanted.queue is None else "tasks_open"
    else:
        query = "tasks_all"
    variables = _variables(wanted)
    return [task_of(row) for row in connection.execute(QUERIES[query], variables)]


def load_tasks(connection: sqlite3.Connection, *, ids: list[str]) -> dict[str, Task]:
    return {row[0]: task_of(row) for row in connection.execute(QUERIES["tasks"], {"ids": json_text(ids)})}


def record(connection: sqlite3.Connection, *, kind: str, name: str, version: int | None) -> Record | None:
    query = "newest_record" if version is None else "record"
    row = connection.execute(QUERIES[query], {"kind": kind, "name": name, "version": version}).fetchone()
    return None if row is None else _record_of(row)


def records(connection: sqlite3.Connection, *, kind: str, after: str | None, limit: int) -> list[Record]:
    wanted = {"kind": kind, "after": after, "limit": max(0, limit)}
    return sound(_record_of, connection.execute(QUERIES["records"], wanted))


def record_versions(
    connection: sqlite3.Connection, *, since: int, after: tuple[str, str, int], limit: int
) -> list[Record]:
    kind, name, version = after
    wanted = {"since": since, "kind": kind, "name": name, "version": version, "limit": max(0, limit)}
    return sound(_record_of, connection.execute(QUERIES["record_versions"], wanted))


def artifact_of(row: Row) -> Artifact:
    return shown_artifact(dict(zip(Artifact.__struct_fields__, row, strict=False)), row)


def task_of(row: Row) -> Task:
    """A task. One whose row is damaged has a status that says so."""
    return shown_task(dict(zip(Task.__struct_fields__, row, strict=True)), row)


def _record_of(row: Row) -> Record:
    """Raises RowDamaged."""
    return record_of(Record, dict(zip(Record.__struct_fields__, row, strict=True)), row)


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


def hold_task(connection: sqlite3.Connection, *, wanted: Mapping[str, Any]) -> bool:
    with transaction(connection):
        return connection.execute(QUERIES["hold_task"], wanted).rowcount == 1


def put_record(connection: sqlite3.Connection, *, record: Record) -> int:
    with transaction(connection):
        row = connection.execute(QUERIES["newest_record"], {"kind": record.kind, "name": record.name}).fetchone()
        newest = None if row is None else _record_of(row)
        if newest is not None and newest.digest == record.digest:
            return newest.version
        version = 1 if newest is None else newest.version + 1
        connection.execute(QUERIES["insert_record"], asdict(record) | {"version": version})
        return version
