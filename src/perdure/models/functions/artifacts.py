"""Artifacts on their way to the store: drafts of artifacts, and the artifacts that workflow code stages.

An artifact that workflow code stages is an output of the activation, as a published value is. Artifacts that steps
stage are in step_artifacts.py.
"""

from __future__ import annotations

import hashlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import decode as from_json
from msgspec.structs import replace

from perdure.errors import InvalidArguments, Misuse
from perdure.kernel.artifacts import Artifact, ArtifactWrites, Chunk
from perdure.models.functions.commands import Output
from perdure.models.functions.context import in_step, require_loop
from perdure.models.functions.loop import running_loop
from perdure.models.functions.publications import add_output
from perdure.ports import Codec, PlainCodec
from perdure.values.arguments import checked
from perdure.values.checks import checked_text
from perdure.values.json import to_text

INLINE_BYTES_MAX: Final = 32 * 1024  # larger content is stored in chunks
CHUNK_BYTES: Final = 1024 * 1024
STAGED_MAX: Final = 1_000  # artifacts that one attempt of a step may stage
STAGED_BYTES_MAX: Final = 16 * 1024 * 1024  # bytes that one attempt of a step may stage, not counting files
_JSON: Final = "application/json"
_MARK: Final = '{"perdure.staged":'


class Draft(Struct, frozen=True, kw_only=True):
    """An artifact that is not staged yet. Its content is `data`. The content of a file is already in the store, in
    `chunks` chunks.
    """

    name: str
    type: str
    form: str
    media_type: str
    size: int
    digest: str
    data: bytes = b""
    id: str = ""
    chunks: int = 0


class ArtifactOutput(Output, frozen=True, kw_only=True):
    """An artifact that workflow code stages. `value` is its content."""

    draft: Draft
    by: str = ""


STAGED: Final = "perdure.staged"  # marks a journaled result that also lists the artifacts of its step


class StagingResult(Struct, frozen=True):
    """A step's result in the journal of a graph's run, with the ids of the artifacts that the step has staged. The ids
    are listed by artifact name.

    A replay reads the ids from this result, so that expressions see the same ids again.
    """

    staged: dict[str, str] = field(name=STAGED)
    value: Any


class _StoredResult(Struct, frozen=True):
    staged: dict[str, str] = field(name=STAGED)
    value: Raw


def read_result(text: str) -> tuple[str, dict[str, str]]:
    """Return the result in a journal entry of a graph's run, as JSON, and the ids of the artifacts that were staged
    with it.
    """
    if not text.startswith(_MARK):
        return text, {}
    found = from_json(text, type=_StoredResult)
    return bytes(found.value).decode(), found.staged


def marked(value: Any) -> Any:
    """Return the form in which the result of a graph's step is journaled if the step has staged nothing.

    A value that looks like a StagingResult by accident is wrapped, so that it is read back unchanged. The value may
    come from outside, so any value is possible.
    """
    return StagingResult({}, value) if isinstance(value, Mapping) and STAGED in value else value


def draft_of(name: str, value: Any, type: str, media_type: str | None, payload_max: int) -> Draft:
    """Return the draft of an artifact. Text and bytes stay as they are, and any other value becomes JSON. Raises
    InvalidArguments, UnstorableValue.
    """
    check_names(name, type, media_type)
    if isinstance(value, (bytes, bytearray, memoryview)):
        form, data, usual = "bytes", bytes(value), "application/octet-stream"
    elif isinstance(value, str) and not _is_json(media_type):
        form, data, usual = "text", _encoded(value, name), "text/plain; charset=utf-8"
    else:
        form, usual = "json", _JSON
        if isinstance(value, str):
            data = _encoded(_checked_json(value, name), name)
        else:
            data = to_text(value, f"the artifact {name!r}", payload_max).encode()
    if len(data) > payload_max:
        raise InvalidArguments(
            f"the artifact {name!r} takes {len(data):,} bytes, more than the limit of {payload_max:,}; write it to a "
            "file, and let a step stage that with current_step().stage_file(…), or raise payload_bytes_max"
        )
    return Draft(
        name=name,
        type=type,
        form=form,
        media_type=media_type or usual,
        size=len(data),
        digest=hashlib.sha256(data).hexdigest(),
        data=data,
    )


def check_names(name: str, type: str, media_type: str | None) -> None:
    checked_text(name, "an artifact's name")
    if type:
        checked_text(type, "an artifact's type")
    if media_type is not None:
        checked_text(media_type, "a media type")


def _is_json(media_type: str | None) -> bool:
    kind = (media_type or "").partition(";")[0].strip().lower()
    return kind == _JSON or kind.endswith("+json")


def _encoded(text: str, name: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InvalidArguments(f"the text of artifact {name!r} cannot be stored: {error}") from error


def _checked_json(text: str, name: str) -> str:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise InvalidArguments(f"the artifact {name!r} is said to be JSON, but its text is not: {error}") from error
    return text


def sealed(data: bytes, codec: Codec) -> bytes:
    """Return a chunk in the form in which it is stored.

    A codec takes text, so the bytes are first encoded as base64.
    """
    return data if type(codec) is PlainCodec else codec.encode(b64encode(data).decode()).encode()


def unsealed(data: bytes, codec: Codec) -> bytes:
    return data if type(codec) is PlainCodec else b64decode(codec.decode(data.decode()))


def brought(artifact: Artifact, draft: Draft, codec: Codec, staged: ArtifactWrites) -> None:
    """Add an artifact with its content to the writes of an op. Small text is stored in the row, and other content in
    chunks.
    """
    if draft.chunks:
        artifact = replace(artifact, chunks=draft.chunks)
    elif draft.form != "bytes" and draft.size <= INLINE_BYTES_MAX:
        artifact = replace(artifact, content=codec.encode(draft.data.decode()))
    else:
        parts = [draft.data[start : start + CHUNK_BYTES] for start in range(0, draft.size, CHUNK_BYTES)]
        artifact = replace(artifact, chunks=len(parts))
        staged.chunks += [
            Chunk(run_id=artifact.run_id, artifact_id=artifact.id, number=number, data=sealed(part, codec))
            for number, part in enumerate(parts)
        ]
    staged.artifacts.append(artifact)


# ---------------------------------------------------------------------------------------------------------------------
# In workflow code


@checked
async def stage(name: str, value: Any, *, type: str = "", media_type: str | None = None, by: str = "") -> None:
    """Stage an artifact of this run. Text stays as it is, and any other value becomes JSON.

    The artifact is published in the commit in which the run succeeds, as the next version of its name. A run that fails
    or is cancelled never publishes anything. A replay does not stage the artifact again. `by` names the part of the
    workflow that made the artifact. Read the artifact with `engine.artifacts.read(name)`. Raises UnstorableValue,
    InvalidArguments, NotInWorkflow. Raises Misuse for bytes, because only a step can stage bytes.
    """
    if running_loop() is None and in_step.get(None) is not None:
        raise Misuse(f"this belongs in a workflow; in a step use current_step().stage({name!r}, …)")
    loop = require_loop("stage")
    draft = draft_of(name, value, type, media_type, loop.payload_max)
    if draft.form == "bytes":
        raise Misuse(f"workflow code stages text and JSON values; let a step stage the bytes of {name!r}")
    if by:
        checked_text(by, "who stages an artifact")
    await add_output(loop, artifact_output(draft, by))


def artifact_output(draft: Draft, by: str) -> ArtifactOutput:
    """Return the output that stages a draft of text or JSON."""
    return ArtifactOutput(draft.name, draft.data.decode(), False, draft=draft, by=by)


class Stager:
    """The artifacts that one attempt of a step has staged so far. `files` are the ids of the artifacts whose chunks are
    already in the store.
    """

    __slots__ = ("_size", "drafts", "files")

    def __init__(self) -> None:
        self.drafts: list[Draft] = []
        self.files: list[str] = []
        self._size = 0

    def add(self, draft: Draft) -> None:
        self._size += len(draft.data)
        if self._size > STAGED_BYTES_MAX or len(self.drafts) >= STAGED_MAX:
            raise Misuse(
                f"a step stages at most {STAGED_MAX:,} artifacts, and {STAGED_BYTES_MAX:,} bytes of values; with "
                f"{draft.name!r} it is more: write them to files, and use current_step().stage_file(…)"
            )
        self.drafts.append(draft)


__all__ = [
    "CHUNK_BYTES",
    "INLINE_BYTES_MAX",
    "ArtifactOutput",
    "Stager",
    "artifact_output",
    "brought",
    "draft_of",
    "sealed",
    "stage",
    "unsealed",
]
