"""Artifacts that steps stage. They are kept here until the attempt has succeeded. Then they are committed with the
step's journal entry. Only the chunks of files are stored earlier. They have no effect until that commit.
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
import os
import threading
from asyncio import _get_running_loop  # pyright: ignore[reportPrivateUsage]
from collections.abc import Awaitable, Generator
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from perdure.errors import InvalidArguments, Misuse
from perdure.kernel.artifacts import Artifact, ArtifactWrites, Chunk
from perdure.kernel.ops import Advance, Deposit
from perdure.models.common.host_parts import HostParts
from perdure.models.functions.artifacts import (
    CHUNK_BYTES,
    Draft,
    Stager,
    StagingResult,
    brought,
    check_names,
    draft_of,
    marked,
    sealed,
)
from perdure.models.functions.step_protocols import AttemptInFlight, StepInFlight
from perdure.values.arguments import shown
from perdure.values.json import UNSTORABLE_TEXT


class _Done:
    """An awaitable that is already done."""

    def __await__(self) -> Generator[Any, None, None]:
        return
        yield


class StepArtifacts:
    """Collects the artifacts that an engine's steps stage."""

    def __init__(self, parts: HostParts) -> None:
        self._clock = parts.clock
        self._codec = parts.codec
        self._ids = parts.ids
        self._payload_max = parts.limits.payload_bytes_max
        self._coordinator = parts.coordinator
        self._loop = asyncio.get_running_loop()
        self._first = threading.Lock()

    def stage(self, pulse: AttemptInFlight, name: str, value: Any, type: str, media_type: str | None) -> None:
        """Stage a value, from any thread. Raises UnstorableValue, InvalidArguments, Misuse."""
        _check_not_transactional(pulse)
        draft = draft_of(name, value, type, media_type, self._payload_max)
        if pulse.execution.pulse is pulse:
            self._stager(pulse).add(draft)

    def stage_file(
        self, pulse: AttemptInFlight, name: str, path: str | Path, type: str, media_type: str | None
    ) -> Awaitable[None]:
        """Stage a file. On a loop, the result must be awaited. In a thread, the file is staged when this returns.
        Raises InvalidArguments, OSError, Misuse.
        """
        check_names(name, type, media_type)
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

    def _stager(self, pulse: AttemptInFlight) -> Stager:
        step = pulse.execution
        with self._first:
            if step.stager is None:
                step.stager = Stager()
                step.live.has_staged = True
            return step.stager

    async def _send_file(self, pulse: AttemptInFlight, draft: Draft, path: Path) -> None:
        """Write a file's chunks to the store one after the other, so that only one chunk is in memory."""
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
            (reply,) = await self._coordinator.submit_internal([op])
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

    def journaled_result(self, stager: Stager | None, value: Any) -> Any:
        """Return a step's result in the form in which a graph's run journals it. The form includes the ids of the
        artifacts that the step staged.
        """
        if stager is None:
            return marked(value)
        now = self._clock.now()
        stager.drafts = [one if one.id else replace(one, id=self._ids(now)) for one in stager.drafts]
        return StagingResult({draft.name: draft.id for draft in stager.drafts}, value)

    def kept(self, step: StepInFlight, stager: Stager, advance: Advance) -> Advance:
        """Return a step's advance with the artifacts of its last attempt. If that attempt failed, its artifacts are
        discarded."""
        entry = advance.entries[0]
        if entry.failure is not None:
            self.discard(step, stager)
            return advance
        staged = ArtifactWrites()
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
            brought(artifact, draft, self._codec, staged)
        if advance.artifacts is not None:
            staged.add(advance.artifacts)
        return replace(advance, artifacts=staged, plain=False)

    def discard(self, step: StepInFlight, stager: Stager) -> None:
        """Discard the artifacts of a failed attempt: remove the chunks of files from the store."""
        if stager.files:
            gone = tuple(stager.files)
            self._coordinator.enqueue(
                Deposit(run_id=step.live.id, at=self._clock.now(), claim=step.live.claim, gone=gone)
            )


class _Reader:
    """Reads a file part by part. Each part may be read in another thread. The file is open only while a part is read,
    because the attempt may be given up before the next part.
    """

    __slots__ = ("_path", "_stamp", "digest", "size")

    def __init__(self, path: Path) -> None:
        self._path = path
        self._stamp: tuple[int, int, int] | None = None
        self.digest = hashlib.sha256()
        self.size = 0

    def read(self) -> bytes:
        """Return the next part, or an empty part at the end of the file. Raises OSError, and Misuse if the file has
        changed since the first part was read.
        """
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


def _check_not_transactional(pulse: AttemptInFlight) -> None:
    """Check that a step is not transactional. Raises Misuse.

    The result of a transactional step is committed separately, before its journal entry. After a crash between these
    two commits, the step does not run again, so its artifacts would be missing.
    """
    step = pulse.execution.step
    if step.transactional:
        raise Misuse(
            f"step {step.name!r} is transactional, and transactional steps cannot stage artifacts: return the value, "
            "or the file's path, and let workflow code or another step stage it"
        )


def _given_up(name: str) -> Misuse:
    return Misuse(f"this attempt of the step no longer counts, so its artifact {name!r} is not staged")


__all__ = ["StepArtifacts"]
