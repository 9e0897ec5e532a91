"""Artifacts: reading them."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from perdure.kernel.artifacts import Artifact
from perdure.ports.runs import Within


class ArtifactFilter(Struct, frozen=True, kw_only=True):
    """Which artifacts to list: all that match every given field, by id, the greatest first, strictly below `after`.
    Staged artifacts are listed only if `staged` is set. Artifacts set aside are never listed. With `within`, only
    artifacts of these runs are listed."""

    name: str | None = None
    run_id: str | None = None
    type: str | None = None
    staged: bool = False
    within: Within | None = None
    after: str | None = None
    limit: int = 100


class ArtifactStore(Protocol):
    """Artifacts."""

    async def artifacts(self, wanted: ArtifactFilter) -> list[Artifact]:
        """Return artifacts without content, by keyset."""

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        """Return one artifact, with its content unless that is in chunks. It is found by id, if it is staged or
        published, or by name and version (None: the newest), if it is published."""

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        """Return one chunk of an artifact."""
