"""Artifacts: writing the batch's changes, and reading."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from msgspec.structs import astuple

from perdure.kernel.artifacts import Artifact, ArtifactWrites
from perdure.kernel.batch import Batch
from perdure.ports import ArtifactFilter
from perdure.storage.damage import shown_artifact
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.lists import within_variables
from perdure.storage.postgres.queries import load_queries

_NONE: Final = ArtifactWrites()

QUERIES: Final = load_queries(Path(__file__).with_name("artifacts.sql").read_text("utf-8"))


def has_artifacts(batch: Batch) -> bool:
    """Return whether the batch changes artifacts."""
    return batch.artifacts is not None or bool(batch.archive) or bool(batch.continued)


def artifacts_of(batch: Batch) -> dict[str, Any]:
    """Return the parts of the type stock_v1 that are about artifacts."""
    added = batch.artifacts or _NONE
    return {
        "chunks": [astuple(chunk) for chunk in added.chunks],
        "chunks_gone": added.chunks_gone,
        "artifacts": [astuple(artifact) for artifact in added.artifacts],
        "fates": list(added.fates.items()),
    }


def listing_of_artifacts(wanted: ArtifactFilter) -> tuple[str, dict[str, Any]]:
    """Return the query for a filter, and its variables."""
    if wanted.run_id is not None:
        query = "artifacts_of_run"
    elif wanted.name is not None:
        query = "artifacts_of_name"
    else:
        query = "artifacts_all" if wanted.type is None else "artifacts_of_type"
    return query, within_variables(wanted)


def search_of_artifact(id: str | None, name: str, version: int | None) -> tuple[str, dict[str, Any]]:
    if id is not None:
        return "artifact", {"id": id}
    return ("newest_artifact" if version is None else "artifact_version"), {"name": name, "version": version}


def artifact_of(row: Sequence[Any]) -> Artifact:
    return shown_artifact(dict(zip(Artifact.__struct_fields__, row, strict=False)), row)


class PostgresArtifacts(PostgresSlice):
    """Artifacts."""

    async def artifacts(self, wanted: ArtifactFilter) -> list[Artifact]:
        query, variables = listing_of_artifacts(wanted)
        return [artifact_of(row) for row in await self._db.read(QUERIES[query], **variables)]

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        query, variables = search_of_artifact(id, name, version)
        rows = await self._db.read(QUERIES[query], **variables)
        return artifact_of(rows[0]) if rows else None

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        rows = await self._db.read(QUERIES["chunk"], artifact_id=artifact_id, number=number)
        return rows[0][0] if rows else None
