"""Artifacts, tasks and records: what a batch does to them, and reading them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import asdict, astuple

from perdure.kernel.batch import Batch
from perdure.kernel.stock import Artifact, Record, Stock, Task
from perdure.ports import ArtifactFilter, TaskFilter
from perdure.storage.damage import record_of, shown_artifact, shown_task
from perdure.storage.postgres.connection import Connection
from perdure.storage.postgres.queries import load_queries

QUERIES: Final = load_queries(Path(__file__).with_name("stock.sql").read_text("utf-8"))
_NONE: Final = Stock()


def has_stock(batch: Batch) -> bool:
    """Whether the batch does anything to artifacts or tasks."""
    return batch.stock is not None or bool(batch.archive) or bool(batch.continued)


def stock_of(batch: Batch) -> dict[str, Any]:
    """The parts of the type stock_v1 that a batch does not have anyway."""
    stock = batch.stock or _NONE
    return {
        "stock_at": batch.at,
        "chunks": [astuple(chunk) for chunk in stock.chunks],
        "chunks_gone": stock.chunks_gone,
        "artifacts": [astuple(artifact) for artifact in stock.artifacts],
        "fates": list(stock.fates.items()),
        "tasks": [astuple(task)[:-1] for task in stock.tasks],  # A new one has no actor yet.
        "answers": [astuple(answer) for answer in stock.answers],
        "withdrawn": stock.withdrawn,
    }


async def fetch(connection: Connection, query: str, **variables: Any) -> Sequence[Sequence[Any]]:
    """The rows of a named query."""
    named = QUERIES[query]
    return await connection.fetch(named.sql, *named.arguments(variables))


def listing_of_artifacts(wanted: ArtifactFilter) -> tuple[str, dict[str, Any]]:
    """The query for a filter and its variables."""
    if wanted.run_id is not None:
        query = "artifacts_of_run"
    elif wanted.name is not None:
        query = "artifacts_of_name"
    else:
        query = "artifacts_all" if wanted.type is None else "artifacts_of_type"
    return query, _variables(wanted)


def _variables(wanted: ArtifactFilter | TaskFilter) -> dict[str, Any]:
    """The variables of a list's query."""
    within = wanted.within
    return asdict(wanted) | {
        "limit": max(0, wanted.limit),
        "workflows": None if within is None else [*within.workflows],
        "tag_keys": [] if within is None else [key for key, _ in within.tags],
        "tag_values": [] if within is None else [value for _, value in within.tags],
    }


def search_of_artifact(id: str | None, name: str, version: int | None) -> tuple[str, dict[str, Any]]:
    if id is not None:
        return "artifact", {"id": id}
    return ("newest_artifact" if version is None else "artifact_version"), {"name": name, "version": version}


def listing_of_tasks(wanted: TaskFilter) -> tuple[str, dict[str, Any]]:
    if wanted.run_id is not None:
        query = "tasks_of_run"
    elif wanted.status in ("open", "claimed"):
        query = "tasks_open_anywhere" if wanted.queue is None else "tasks_open"
    else:
        query = "tasks_all"
    return query, _variables(wanted)


def artifact_of(row: Sequence[Any]) -> Artifact:
    return shown_artifact(dict(zip(Artifact.__struct_fields__, row, strict=False)), row)


def task_of(row: Sequence[Any]) -> Task:
    """A task. One whose row is damaged has a status that says so."""
    return shown_task(dict(zip(Task.__struct_fields__, row, strict=True)), row)


def stored_record_of(row: Sequence[Any]) -> Record:
    """Raises RowDamaged."""
    return record_of(Record, dict(zip(Record.__struct_fields__, row, strict=True)), row)
