"""Artifacts as values: named results of runs, their chunks, and the changes that a commit makes to them.

Times are microseconds since the epoch. Payloads are text that the codec has encoded. The kernel does not read them.
"""

from __future__ import annotations

from typing import Final

from msgspec import Struct, field

# When a run continues, LAP is subtracted from the `seq` of its staged artifacts. No run has LAP entries or more, so
# these artifacts sort before all entries of the next life.
LAP: Final = 2**40


class Artifact(Struct, frozen=True, kw_only=True, gc=False):
    """A named result of a run. Others see it once it is `published`. That happens in the commit in which the run
    succeeds.

    `seq` is the number of the journal entry with which the artifact was staged. `number` is the artifact's index among
    the artifacts of that entry. An artifact of workflow code has no `position`. If the code stages it again after a
    crash, it has the same `seq` and `number`. If the run fails, its artifacts are set `aside` for a retry. Small text
    is in `content`; other content is in chunks.
    """

    id: str
    run_id: str
    name: str
    type: str
    form: str  # json | text | bytes: the form in which code passed the content
    media_type: str
    size: int  # the size of the content in bytes
    digest: str  # the SHA-256 of the content, in hex
    workflow: str
    step: str = ""  # the name of the step or the node
    position: str = ""
    attempt: int = 0
    seq: int = 0
    number: int | None = None
    state: str = "staged"  # staged | aside | published
    version: int | None = None  # 1, 2, 3, … for each name; the store sets it when it publishes the artifact
    staged_at: int
    published_at: int | None = None
    chunks: int = 0
    content: str | None = None


class Chunk(Struct, frozen=True, kw_only=True, gc=False):
    """A part of an artifact's content. A chunk may be stored before its artifact. Until the artifact is stored, the
    chunk has no effect.
    """

    run_id: str
    artifact_id: str
    number: int  # counted from 0
    data: bytes


class ArtifactWrites(Struct, kw_only=True):
    """The changes that an op, a decision or a batch makes to artifacts. `fates` says what happens to the staged
    artifacts of each run: they are published, set aside, removed ("gone"), or staged again. A store applies the fields
    in their order.
    """

    chunks: list[Chunk] = field(default_factory=list)
    # artifacts that were never completed; their chunks are removed
    chunks_gone: list[str] = field(default_factory=list)
    artifacts: list[Artifact] = field(default_factory=list)
    fates: dict[str, str] = field(default_factory=dict)  # by run

    def add(self, other: ArtifactWrites) -> None:
        self.chunks += other.chunks
        self.chunks_gone += other.chunks_gone
        self.artifacts += other.artifacts
        self.fates |= other.fates

    @property
    def is_empty(self) -> bool:
        return not (self.chunks or self.chunks_gone or self.artifacts or self.fates)

    @property
    def payload_bytes(self) -> int:
        size = sum(len(chunk.data) for chunk in self.chunks)
        return size + sum(len(artifact.content or "") for artifact in self.artifacts)
