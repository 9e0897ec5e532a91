"""Reads of artifacts."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from perdure.kernel.artifacts import Artifact
from perdure.ports.runs import Within


class ArtifactFilter(Struct, frozen=True, kw_only=True):
    """A filter of artifacts. It selects the artifacts that match every given field and whose id is lower than `after`.
    They are listed by id, the greatest first. Staged artifacts are listed only if `staged` is set. Artifacts that were
    set aside are never listed. With `within`, only artifacts of these runs are listed.
    """

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
        """Return the artifacts that match a filter, without their content."""

    async def artifact(self, *, id: str | None = None, name: str = "", version: int | None = None) -> Artifact | None:
        """Return one artifact. Its content is included unless it is in chunks. By id, staged and published artifacts
        are found. By name and version, only published artifacts are found. None means the newest version.
        """

    async def chunk(self, artifact_id: str, number: int) -> bytes | None:
        """Return one chunk of an artifact."""
