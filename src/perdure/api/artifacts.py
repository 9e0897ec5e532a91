"""`engine.artifacts`: named results that runs have staged or published."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.api.within import checked_within
from perdure.coordinator.call_spans import whole_calls
from perdure.errors import ArtifactNotFound, InvalidArguments, InvariantViolated, RowDamaged
from perdure.kernel.artifacts import Artifact
from perdure.models.functions.artifacts import unsealed
from perdure.ports import ArtifactFilter, Within
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.values.checks import checked_flag, checked_limit, checked_option, checked_text, checked_version
from perdure.views import shown_time


class ArtifactView(Struct, frozen=True, kw_only=True):
    """An artifact without its content. `version` and `published_at` are None until the artifact is published."""

    id: str
    run_id: str
    name: str
    type: str
    form: str  # json | text | bytes: the form in which `read` returns the content
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


ArtifactViews = list[ArtifactView]  # inside the class, the name `list` means the method


@whole_calls()
@checked(constructor=False)
class Artifacts:
    """Artifacts that runs have published or staged."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(
        self,
        *,
        name: str | None = None,
        run: str | None = None,
        type: str | None = None,
        staged: bool = False,
        within: Within | None = None,
        after: str | None = None,
        limit: int = 100,
    ) -> ArtifactViews:
        """Return published artifacts, newest first.

        `after` is the id of the last artifact that you have. With `staged`, the list includes artifacts that runs have
        staged and not published yet. With `within`, the list has only artifacts of the runs that `within` covers.
        """
        self._session.check_open()
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
        return [artifact_view(one) for one in await self._session.caller_store.artifacts(wanted)]

    async def get(self, name: str | None = None, version: int | None = None, *, id: str | None = None) -> ArtifactView:
        """Return an artifact by its id, or by its name. By name, you get the newest version unless you pass `version`.

        Raises ArtifactNotFound.
        """
        return artifact_view(await self._artifact(name, version, id))

    async def read(self, name: str | None = None, version: int | None = None, *, id: str | None = None) -> Any:
        """Return an artifact's content: a value as plain JSON values, text as str, bytes or a file as bytes.

        The whole content is loaded into memory; for a large artifact use `open`. Raises ArtifactNotFound. Raises
        InvariantViolated if the stored content differs from the content that was staged.
        """
        found = await self._artifact(name, version, id)
        data = b"".join([part async for part in self._parts(found)])
        if found.form == "json":
            return msgspec.json.decode(data)
        return data.decode() if found.form == "text" else data

    def open(self, id: str) -> AsyncIterator[bytes]:
        """Return an artifact's content part by part: `async for part in engine.artifacts.open(id)`.

        Raises ArtifactNotFound. After the last part, raises InvariantViolated if the stored content differs from the
        content that was staged.
        """
        self._session.check_open()
        return self._opened(checked_text(id, "an artifact's id"))

    async def _opened(self, artifact_id: str) -> AsyncIterator[bytes]:
        async for part in self._parts(await self._artifact(None, None, artifact_id)):
            yield part

    async def _artifact(self, name: str | None, version: int | None, id: str | None) -> Artifact:
        self._session.check_open()
        if (name is None) == (id is None):
            raise InvalidArguments("say which artifact: by its name, with a version or without, or by id=…")
        checked_version(version)
        if id is not None:
            found = await self._session.caller_store.artifact(id=checked_text(id, "an artifact's id"))
            what = f"the id {id!r}"
        else:
            found = await self._session.caller_store.artifact(
                name=checked_text(name, "an artifact's name"), version=version
            )
            what = f"the name {name!r}" + ("" if version is None else f" and version {version}")
        if found is not None and found.state == "damaged":
            raise RowDamaged(found.type)
        if found is None:
            raise ArtifactNotFound(
                f"no artifact that was published has {what}; list those there are with artifacts.list()"
            )
        return found

    async def _parts(self, artifact: Artifact) -> AsyncIterator[bytes]:
        digest = hashlib.sha256()
        if artifact.content is not None:
            part = self._session.codec.decode(artifact.content).encode()
            digest.update(part)
            yield part
        for number in range(artifact.chunks):
            stored = await self._session.caller_store.chunk(artifact.id, number)
            if stored is None:
                expected = f"part {number} of {artifact.chunks} is gone"
                raise RowDamaged.at("artifact_chunks", artifact.id, "data", None, expected)
            part = unsealed(stored, self._session.codec)
            digest.update(part)
            yield part
        if digest.hexdigest() != artifact.digest:
            raise InvariantViolated(
                f"artifact {artifact.id!r} is not what was staged: its digest is another", run_id=artifact.run_id
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


__all__ = ["ArtifactView", "Artifacts", "artifact_view"]
