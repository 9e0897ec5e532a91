"""The engine's and the client's verbs for artifacts, and for versioned records."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.arguments import checked
from perdure.errors import ArtifactNotFound, InvalidArguments, InvariantViolated, RecordNotFound, RowDamaged
from perdure.kernel.stock import Artifact, Record
from perdure.models.functions.canonical import canonical
from perdure.models.functions.checks import (
    checked_flag,
    checked_limit,
    checked_option,
    checked_remark,
    checked_text,
    checked_version,
    checked_within,
)
from perdure.models.functions.staging import unsealed
from perdure.models.functions.values import to_text
from perdure.ports import ArtifactFilter, Clock, Codec, Store, Within
from perdure.views import plain_value, shown_time, shown_value


class ArtifactView(Struct, frozen=True, kw_only=True):
    """An artifact without its content. `version` and `published_at` are None while it is only staged."""

    id: str
    run_id: str
    name: str
    type: str
    form: str  # json | text | bytes: what reading it gives
    media_type: str
    size: int
    digest: str
    workflow: str
    step: str
    position: str
    attempt: int
    version: int | None
    staged_at: datetime
    published_at: datetime | None


class RecordView(Struct, frozen=True, kw_only=True):
    """One version of a record."""

    kind: str
    name: str
    version: int
    digest: str
    actor: str
    at: datetime
    body: Any


@checked
class Keeping:
    """What whoever has these parts can do with artifacts and records."""

    _patient_store: Store
    _clock: Clock
    _codec: Codec
    _payload_bytes_max: int

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    # Artifacts.

    async def artifacts(
        self,
        *,
        name: str | None = None,
        run: str | None = None,
        type: str | None = None,
        staged: bool = False,
        within: Within | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> list[ArtifactView]:
        """Published artifacts, the newest first; `after` is the id of the last one seen. With `staged` also those that
        are staged in runs that have not ended. `within` leaves out artifacts of other runs."""
        self._check_open()
        for argument, text in (("name", name), ("run", run), ("type", type), ("after", after)):
            checked_option(text, argument)
        checked_flag(staged, "staged")
        checked_limit(limit)
        wanted = ArtifactFilter(
            name=name,
            run_id=run,
            type=type,
            staged=staged,
            within=checked_within(within),
            after=after,
            limit=limit,
        )
        return [artifact_view(one) for one in await self._patient_store.artifacts(wanted)]

    async def artifact(
        self, name: str | None = None, version: int | None = None, *, id: str | None = None
    ) -> ArtifactView:
        """One artifact: the newest, or a version, of a name, or the one with an id. Raises ArtifactNotFound."""
        return artifact_view(await self._artifact(name, version, id))

    async def read_artifact(self, name: str | None = None, version: int | None = None, *, id: str | None = None) -> Any:
        """An artifact's content: the value, if it was staged as one, text as text, and bytes or a file as bytes. All of
        it is in memory then: see `open_artifact`. Raises ArtifactNotFound, and InvariantViolated if it is not what was
        staged."""
        found = await self._artifact(name, version, id)
        data = b"".join([part async for part in self._parts(found)])
        if found.form == "json":
            return msgspec.json.decode(data)
        return data.decode() if found.form == "text" else data

    def open_artifact(self, id: str) -> AsyncIterator[bytes]:
        """An artifact's content part by part: `async for part in open_artifact(id)`. Raises ArtifactNotFound, and,
        after the last part, InvariantViolated if it is not what was staged."""
        self._check_open()
        return self._opened(checked_text(id, "an artifact's id"))

    async def _opened(self, artifact_id: str) -> AsyncIterator[bytes]:
        async for part in self._parts(await self._artifact(None, None, artifact_id)):
            yield part

    async def _artifact(self, name: str | None, version: int | None, id: str | None) -> Artifact:
        self._check_open()
        if (name is None) == (id is None):
            raise InvalidArguments("say which artifact: by its name, with a version or without, or by id=…")
        checked_version(version)
        if id is not None:
            found = await self._patient_store.artifact(id=checked_text(id, "an artifact's id"))
            what = f"the id {id!r}"
        else:
            found = await self._patient_store.artifact(name=checked_text(name, "an artifact's name"), version=version)
            what = f"the name {name!r}" + ("" if version is None else f" and version {version}")
        if found is not None and found.state == "damaged":
            raise RowDamaged(found.type)
        if found is None:
            raise ArtifactNotFound(f"no artifact that was published has {what}; list those there are with artifacts()")
        return found

    async def _parts(self, artifact: Artifact) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        if artifact.content is not None:
            part = self._codec.decode(artifact.content).encode()
            digest.update(part)
            yield part
        for number in range(artifact.chunks):
            stored = await self._patient_store.chunk(artifact.id, number)
            if stored is None:
                expected = f"part {number} of {artifact.chunks} is gone"
                raise RowDamaged.at("artifact_chunks", artifact.id, "data", None, expected)
            part = unsealed(stored, self._codec)
            digest.update(part)
            yield part
        if digest.hexdigest() != artifact.digest:
            raise InvariantViolated(
                f"artifact {artifact.id!r} is not what was staged: its digest is another", run_id=artifact.run_id
            )

    # Records.

    async def put_record(self, kind: str, name: str, body: Any, *, actor: str = "api") -> int:
        """Store a record; its version. What is the same as the newest version is that version. Raises
        UnstorableValue."""
        self._check_open()
        checked_text(kind, "a record's kind")
        checked_text(name, "a record's name")
        checked_remark("", actor)
        text = to_text(body, f"the {kind} {name!r}", self._payload_bytes_max)
        # Numbers stay as they are written, as in the digests of the versions that there are.
        form = canonical(body, numbers=False)
        return await self._patient_store.put_record(
            Record(
                kind=kind,
                name=name,
                digest=hashlib.sha256(form).hexdigest(),
                actor=actor,
                at=self._clock.now(),
                body=self._codec.encode(text),
            )
        )

    async def record(self, kind: str, name: str, version: int | None = None) -> RecordView:
        """A version of a record, or its newest. Raises RecordNotFound."""
        self._check_open()
        checked_text(kind, "a record's kind")
        checked_version(version)
        found = await self._patient_store.record(kind, checked_text(name, "a record's name"), version)
        if found is None:
            which = f"{kind} {name!r}" + ("" if version is None else f" with version {version}")
            raise RecordNotFound(f"there is no {which}; put_record({kind!r}, …) makes one", kind=kind, name=name)
        return self._record_view(found, plain_value(found.body, self._codec, _place(found)))

    async def records(self, kind: str, *, after: str | None = None, limit: int = 100) -> list[RecordView]:
        """The newest versions of all records of a kind, by name; `after` is the name of the last one seen."""
        self._check_open()
        checked_limit(limit)
        checked_option(after, "after")
        found = await self._patient_store.records(checked_text(kind, "a record's kind"), after=after, limit=limit)
        return [self._record_view(one, shown_value(one.body, self._codec, _place(one))) for one in found]

    def _record_view(self, record: Record, body: Any) -> RecordView:
        return RecordView(
            kind=record.kind,
            name=record.name,
            version=record.version,
            digest=record.digest,
            actor=record.actor,
            at=shown_time(record.at),
            body=body,
        )


def artifact_view(artifact: Artifact) -> ArtifactView:
    return ArtifactView(
        id=artifact.id,
        run_id=artifact.run_id,
        name=artifact.name,
        type=artifact.type,
        form=artifact.form,
        media_type=artifact.media_type,
        size=artifact.size,
        digest=artifact.digest,
        workflow=artifact.workflow,
        step=artifact.step,
        position=artifact.position,
        attempt=artifact.attempt,
        version=artifact.version,
        staged_at=shown_time(artifact.staged_at),
        published_at=None if artifact.published_at is None else shown_time(artifact.published_at),
    )


def _place(record: Record) -> str:
    return f"records.body of {record.kind} {record.name!r}, version {record.version}"


__all__ = ["ArtifactView", "Keeping", "RecordView"]
