"""Reads of artifacts."""

from __future__ import annotations

from perdure.kernel.artifacts import Artifact
from perdure.ports import ArtifactFilter
from perdure.storage.memory.connection import MemorySlice


class MemoryArtifacts(MemorySlice):
    """Artifacts."""

    async def artifacts(self, wanted: ArtifactFilter) -> list[Artifact]:
        database = self._db.opened()
        with database.lock:
            return database.artifacts.list_artifacts(wanted, database.runs)

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        database = self._db.opened()
        with database.lock:
            return database.artifacts.artifact(id, name, version)

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        return self._db.opened().artifacts.chunk(artifact_id, number)
