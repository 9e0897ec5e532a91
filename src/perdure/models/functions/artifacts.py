"""Artifacts on their way to the store: what workflow code and steps stage.

What workflow code stages is part of what an activation asks for, as what it publishes is. What a step stages waits here
until the attempt has succeeded, and goes with its journal entry; only the parts of files go ahead, and count for
nothing until then.
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
import threading
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from base64 import b64decode, b64encode
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
from msgspec import Raw, Struct, field
from msgspec.json import decode as from_json
from msgspec.structs import replace

from perdure.errors import InvalidArguments, Misuse
from perdure.kernel.ops import Advance, Deposit, Op
from perdure.kernel.stock import Artifact, Chunk, Stock
from perdure.models.functions.commands import Post
from perdure.models.functions.context import in_step, require_loop
from perdure.models.functions.loop import running_loop
from perdure.models.functions.publications import say
from perdure.ports import Clock, Codec, Ids, PlainCodec
from perdure.values.arguments import checked, shown
from perdure.values.checks import checked_text
from perdure.values.json import UNSTORABLE_TEXT, to_text

if TYPE_CHECKING:
    from perdure.models.functions.heartbeats import Pulse
    from perdure.models.functions.steps import Execution

INLINE_BYTES_MAX: Final = 32 * 1024  # more than this is stored in chunks
CHUNK_BYTES: Final = 1024 * 1024
STAGED_MAX: Final = 1_000  # by one attempt of a step
STAGED_BYTES_MAX: Final = 16 * 1024 * 1024  # by one attempt, but for files
_JSON: Final = "application/json"
_MARK: Final = '{"perdure.staged":'


class Draft(Struct, frozen=True, kw_only=True):
    """An artifact before its run has it. The content is `data`, or, of a file, in `chunks` that were sent ahead."""

    name: str
    type: str
    form: str
    media_type: str
    size: int
    digest: str
    data: bytes = b""
    id: str = ""
    chunks: int = 0


class StagePost(Post, frozen=True, kw_only=True):
    """What workflow code stages: `value` is the content."""

    draft: Draft
    by: str = ""


STAGED: Final = "perdure.staged"  # marks a journaled result that tells what its step has staged


class StagingResult(Struct, frozen=True):
    """A step's result in the journal of a graph's run, with the ids of what the step has staged, by name. A replay
    finds them here, so that expressions see the same."""

    staged: dict[str, str] = field(name=STAGED)
    value: Any


class _StoredResult(Struct, frozen=True):
    staged: dict[str, str] = field(name=STAGED)
    value: Raw


def read_result(text: str) -> tuple[str, dict[str, str]]:
    """The result itself, as JSON, and what was staged with it, from a journal entry of a graph's run."""
    if not text.startswith(_MARK):
        return text, {}
    found = from_json(text, type=_StoredResult)
    return bytes(found.value).decode(), found.staged


def marked(value: Any) -> Any:
    """A result of a step of a graph that has staged nothing. One that looks as if it had is marked too, so that it
    stays what it is: values come from outside."""
    return StagingResult({}, value) if isinstance(value, Mapping) and STAGED in value else value


def draft_of(name: str, value: Any, type: str, media_type: str | None, payload_max: int) -> Draft:
    """Text and bytes as they are, other values as JSON. Raises InvalidArguments, UnstorableValue."""
    _check(name, type, media_type)
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


def _check(name: str, type: str, media_type: str | None) -> None:
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
    """A chunk as it is stored. A codec takes text, so bytes are text before they come to it."""
    return data if type(codec) is PlainCodec else codec.encode(b64encode(data).decode()).encode()


def unsealed(data: bytes, codec: Codec) -> bytes:
    return data if type(codec) is PlainCodec else b64decode(codec.decode(data.decode()))


def brought(artifact: Artifact, draft: Draft, codec: Codec, stock: Stock) -> None:
    """Add an artifact to what an op brings, with its content: in the row if it is small text, else in chunks."""
    if draft.chunks:
        artifact = replace(artifact, chunks=draft.chunks)
    elif draft.form != "bytes" and draft.size <= INLINE_BYTES_MAX:
        artifact = replace(artifact, content=codec.encode(draft.data.decode()))
    else:
        parts = [draft.data[start : start + CHUNK_BYTES] for start in range(0, draft.size, CHUNK_BYTES)]
        artifact = replace(artifact, chunks=len(parts))
        stock.chunks += [
            Chunk(run_id=artifact.run_id, artifact_id=artifact.id, number=number, data=sealed(part, codec))
            for number, part in enumerate(parts)
        ]
    stock.artifacts.append(artifact)


# ---------------------------------------------------------------------------------------------------------------------
# In workflow code


@checked
async def stage(name: str, value: Any, *, type: str = "", media_type: str | None = None, by: str = "") -> None:
    """Stage an artifact of this run: text as it is, any other value as JSON. `by` says which part of the workflow it is
    from.

    It is published, with the next version of its name, in the commit in which the run succeeds; of a run that fails or
    is cancelled nothing is ever published. It is there once however often the code is replayed, and can be read with
    `engine.artifacts.read(name)`. Raises UnstorableValue, InvalidArguments, NotInWorkflow; Misuse for bytes, which a
    step can stage.
    """
    if running_loop() is None and in_step.get(None) is not None:
        raise Misuse(f"this belongs into a workflow; in a step use current_step().stage({name!r}, …)")
    loop = require_loop("stage")
    draft = draft_of(name, value, type, media_type, loop.payload_max)
    if draft.form == "bytes":
        raise Misuse(f"workflow code stages text and JSON values; let a step stage the bytes of {name!r}")
    if by:
        checked_text(by, "who stages an artifact")
    await say(loop, stage_post(draft, by))


def stage_post(draft: Draft, by: str) -> StagePost:
    """What has a draft of text or JSON staged, once it is said."""
    return StagePost(draft.name, draft.data.decode(), False, draft=draft, by=by)


# ---------------------------------------------------------------------------------------------------------------------
# In steps


class Stager:
    """What one attempt of a step has staged so far. `files` are the artifacts of which parts were sent ahead."""

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


class _Done:
    """Nothing to wait for."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class Staging:
    """Takes what an engine's steps stage."""

    def __init__(
        self,
        clock: Clock,
        codec: Codec,
        ids: Ids,
        payload_max: int,
        submit_internal: Callable[[Sequence[Op]], Awaitable[list[Any]]],
        enqueue: Callable[[Op], None],
    ) -> None:
        self._clock = clock
        self._codec = codec
        self._ids = ids
        self._payload_max = payload_max
        self._insist = submit_internal
        self._owe = enqueue
        self._loop = asyncio.get_running_loop()
        self._first = threading.Lock()

    def stage(self, pulse: Pulse, name: str, value: Any, type: str, media_type: str | None) -> None:
        """Stage a value, from whatever thread. Raises UnstorableValue, InvalidArguments, Misuse."""
        _check_not_transactional(pulse)
        draft = draft_of(name, value, type, media_type, self._payload_max)
        if pulse.execution.pulse is pulse:
            self._stager(pulse).add(draft)

    def stage_file(
        self, pulse: Pulse, name: str, path: str | Path, type: str, media_type: str | None
    ) -> Awaitable[None]:
        """Stage a file: on the engine's loop something to await, in a thread it is done when this returns."""
        _check(name, type, media_type)
        _check_not_transactional(pulse)
        if UNSTORABLE_TEXT.search(str(path)) is not None:
            raise InvalidArguments(f"stage_file(): no file has the path {shown(path)}")
        media_type = media_type or mimetypes.guess_type(str(path))[0] or "application/octet-stream"
        draft = Draft(name=name, type=type, form="bytes", media_type=media_type, size=0, digest="")
        sending = self._send_file(pulse, draft, Path(path))
        if _get_running_loop() is not None:
            return sending
        future = asyncio.run_coroutine_threadsafe(sending, self._loop)
        while True:
            try:
                future.result(1)
                return _Done()
            except TimeoutError:
                if future.done():
                    raise
                if self._loop.is_closed():
                    raise Misuse("the engine is gone; nothing was staged") from None

    def _stager(self, pulse: Pulse) -> Stager:
        step = pulse.execution
        with self._first:
            if step.stager is None:
                step.stager = Stager()
                step.live.has_staged = True
            return step.stager

    async def _send_file(self, pulse: Pulse, draft: Draft, path: Path) -> None:
        """Hand a file's parts to the store, one after the other: never more than one of them is in memory."""
        step = pulse.execution
        reader = _Reader(path)
        artifact_id = self._ids(self._clock.now())
        number = 0
        while part := await asyncio.to_thread(reader.read):
            if step.pulse is not pulse:
                raise _given_up(draft.name)
            if number == 0:
                self._stager(pulse).files.append(artifact_id)
            data = sealed(part, self._codec)
            chunk = Chunk(run_id=step.live.id, artifact_id=artifact_id, number=number, data=data)
            op = Deposit(run_id=step.live.id, at=self._clock.now(), claim=step.live.claim, chunks=(chunk,))
            (reply,) = await self._insist([op])
            if isinstance(reply, BaseException):
                raise reply
            if reply is not True:
                raise _given_up(draft.name)
            number += 1
        if step.pulse is not pulse:
            raise _given_up(draft.name)
        self._stager(pulse).add(
            replace(draft, id=artifact_id, chunks=number, size=reader.size, digest=reader.digest.hexdigest())
        )  # fmt: skip

    def told(self, stager: Stager | None, value: Any) -> Any:
        """A step's result as a graph's run has it in its journal: with what the step has staged."""
        if stager is None:
            return marked(value)
        now = self._clock.now()
        stager.drafts = [one if one.id else replace(one, id=self._ids(now)) for one in stager.drafts]
        return StagingResult({draft.name: draft.id for draft in stager.drafts}, value)

    def kept(self, step: Execution, stager: Stager, advance: Advance) -> Advance:
        """A step's advance, with what its last attempt has staged if that succeeded."""
        entry = advance.entries[0]
        if entry.failure is not None:
            self.discard(step, stager)
            return advance
        stock = Stock()
        for number, draft in enumerate(stager.drafts, 1):
            artifact = Artifact(
                id=draft.id or self._ids(entry.at),
                run_id=step.live.id,
                name=draft.name,
                type=draft.type,
                form=draft.form,
                media_type=draft.media_type,
                size=draft.size,
                digest=draft.digest,
                workflow=step.live.workflow.name,
                step=step.step.name,
                position=entry.position,
                attempt=entry.attempts,
                seq=entry.seq,
                number=number,
                staged_at=entry.at,
            )
            brought(artifact, draft, self._codec, stock)
        if advance.stock is not None:
            stock.add(advance.stock)
        return replace(advance, stock=stock, plain=False)

    def discard(self, step: Execution, stager: Stager) -> None:
        """An attempt came to nothing: so did what it has staged."""
        if stager.files:
            gone = tuple(stager.files)
            self._owe(Deposit(run_id=step.live.id, at=self._clock.now(), claim=step.live.claim, gone=gone))


class _Reader:
    """Reads a file part by part, in whatever threads. It is open only while a part is read: whoever wants the next one
    may be gone by then."""

    __slots__ = ("_path", "_stamp", "digest", "size")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self) -> bytes:
        """Raises OSError, and Misuse if the file has changed since the first part was read."""
        with self._path.open("rb") as file:
            status = os.fstat(file.fileno())
            stamp = (status.st_ino, status.st_size, status.st_mtime_ns)
            self._stamp = self._stamp or stamp
            if stamp != self._stamp:
                raise Misuse(f"{self._path} changed while it was being staged; stage a file that nobody writes to")
            file.seek(self.size)
            part = file.read(CHUNK_BYTES)
        self.digest.update(part)
        self.size += len(part)
        return part


def _check_not_transactional(pulse: Pulse) -> None:
    """The result of such a step is committed by itself, before its journal entry: after a crash between the two the
    step does not run again, and what it had staged would be missing."""
    step = pulse.execution.step
    if step.transactional:
        raise Misuse(
            f"step {step.name!r} is transactional, and such steps cannot stage artifacts: return the value, or the "
            "file's path, and let workflow code or another step stage it"
        )


def _given_up(name: str) -> Misuse:
    return Misuse(f"this attempt of the step no longer counts, so its artifact {name!r} is not staged")


__all__ = [
    "CHUNK_BYTES",
    "INLINE_BYTES_MAX",
    "StagePost",
    "Stager",
    "Staging",
    "brought",
    "draft_of",
    "sealed",
    "stage",
    "stage_post",
    "unsealed",
]
