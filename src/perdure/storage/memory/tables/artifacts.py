"""Artifacts of the store in memory."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.artifacts import LAP, Artifact, ArtifactWrites, Chunk
from perdure.kernel.batch import Batch
from perdure.ports import ArtifactFilter, StoredRun
from perdure.storage.memory.lists import is_within


class ArtifactTables(Struct, eq=False):
    """The tables."""

    artifacts: dict[str, Artifact] = field(default_factory=dict)
    chunks: dict[str, dict[int, Chunk]] = field(default_factory=dict)  # by artifact

    def apply(self, batch: Batch) -> None:
        if batch.artifacts is not None:
            self._add(batch.artifacts)
        for run_id, first, _ in batch.archive:
            self._remove([one for one in self._unpublished(run_id) if one.seq >= first])
        for run_id in batch.continued:
            for one in self._unpublished(run_id):
                self.artifacts[one.id] = replace(one, seq=one.seq - LAP)
        if batch.artifacts is not None:
            for run_id, fate in batch.artifacts.fates.items():
                self._end(run_id, fate, batch.at)

    def _add(self, added: ArtifactWrites) -> None:
        for chunk in added.chunks:
            self.chunks.setdefault(chunk.artifact_id, {})[chunk.number] = chunk
        for artifact_id in added.chunks_gone:
            if artifact_id not in self.artifacts:
                self.chunks.pop(artifact_id, None)
        known = {_mark(one) for one in self.artifacts.values()} if added.artifacts else set()
        for artifact in added.artifacts:
            if (mark := _mark(artifact)) is not None and mark in known:
                if artifact.id not in self.artifacts:
                    self.chunks.pop(artifact.id, None)
            else:
                self.artifacts[artifact.id] = artifact
                known.add(mark)

    def _unpublished(self, run_id: str) -> list[Artifact]:
        return [one for one in self.artifacts.values() if one.run_id == run_id and one.state != "published"]

    def _remove(self, artifacts: list[Artifact]) -> None:
        for one in artifacts:
            del self.artifacts[one.id]
            self.chunks.pop(one.id, None)

    def _end(self, run_id: str, fate: str, at: int) -> None:
        mine = self._unpublished(run_id)
        if fate == "gone":
            self._remove(mine)
        elif fate == "published":
            newest = {one.name: 0 for one in mine}
            for one in self.artifacts.values() if mine else ():
                if one.name in newest:
                    newest[one.name] = max(newest[one.name], one.version or 0)
            for one in sorted(mine, key=lambda one: (one.seq, not one.position, one.number or 0, one.id)):
                newest[one.name] = version = newest[one.name] + 1
                published = replace(one, state="published", version=version, published_at=at)
                self.artifacts[one.id] = published
        else:
            self.artifacts |= {one.id: replace(one, state=fate) for one in mine}
        if fate != "staged":
            for artifact_id, chunks in list(self.chunks.items()):
                if artifact_id not in self.artifacts and any(chunk.run_id == run_id for chunk in chunks.values()):
                    del self.chunks[artifact_id]

    # Reading.

    def list_artifacts(self, wanted: ArtifactFilter, runs: Mapping[str, StoredRun]) -> list[Artifact]:
        found = [
            replace(one, content=None)
            for one in self.artifacts.values()
            if (one.state == "published" or (wanted.staged and one.state == "staged"))
            and wanted.name in (None, one.name)
            and wanted.run_id in (None, one.run_id)
            and wanted.type in (None, one.type)
            and (wanted.after is None or one.id < wanted.after)
            and is_within(one.run_id, wanted.within, runs)
        ]
        return sorted(found, key=lambda one: one.id, reverse=True)[: max(0, wanted.limit)]

    def artifact(self, id: str | None, name: str, version: int | None) -> Artifact | None:
        if id is not None:
            found = self.artifacts.get(id)
            return None if found is None or found.state == "aside" else found
        named = [one for one in self.artifacts.values() if one.name == name and one.version is not None]
        fitting = [one for one in named if version in (None, one.version)]
        return max(fitting, key=lambda one: one.version or 0, default=None)

    def chunk(self, artifact_id: str, number: int) -> bytes | None:
        found = self.chunks.get(artifact_id, {}).get(number)
        return None if found is None else found.data


def _mark(artifact: Artifact) -> tuple[str, int, int] | None:
    """Return the mark that identifies an artifact of workflow code. If the code stages the artifact again, the mark is
    the same. Artifacts of steps have no mark.
    """
    if artifact.position or artifact.number is None:
        return None
    return (artifact.run_id, artifact.seq, artifact.number)
