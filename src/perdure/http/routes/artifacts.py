"""Artifacts: list them, and download what is in them."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import quote

from litestar import Router, get
from litestar.datastructures import ResponseHeader
from litestar.params import FromQuery
from litestar.response import Stream
from msgspec import Struct

from perdure.api.artifacts import ArtifactView
from perdure.engine import AnyClient
from perdure.errors import ArtifactNotFound
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import After, Id, Limit, Text, cursor_of
from perdure.http.problems import no
from perdure.http.reach import reach_of, reads_artifact, reads_some

_MEDIA_TYPE: Final = re.compile(
    r'[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(; ?[\w-]{1,40}=("[\w .-]{0,80}"|[\w.-]{1,80}))*',
    re.ASCII,
)
_UNKNOWN: Final = "application/octet-stream"
# What a browser may be told: none of these can act as a page, a script or a style, whoever refers to it.
_HARMLESS: Final = re.compile(
    r"(text/(plain|csv|markdown)|application/(json|pdf|zip|gzip|x-ndjson)|(image|audio|video|font)/(?!svg)[\w.+-]+)(;.*)?",
    re.ASCII,
)


class Artifacts(Struct, frozen=True, kw_only=True):
    """A page of them; `cursor` is `after` of the next one, null if there is none."""

    artifacts: list[ArtifactView]
    cursor: str | None


@get("/", guards=[reads_some], responses=no())
async def list_artifacts(
    request: Asked,
    client: TheClient,
    name: Text = None,
    run: Text = None,
    type: Text = None,
    staged: FromQuery[bool] = False,
    after: After = None,
    limit: Limit = 100,
) -> Artifacts:
    """Published artifacts, the newest first, without content; `staged` adds those of runs under way."""
    within = reach_of(request).within
    found = await client.artifacts.list(
        name=name, run=run, type=type, staged=staged, within=within, after=after, limit=limit
    )
    return Artifacts(artifacts=found, cursor=cursor_of(found, limit))


@get("/{artifact_id:str}", guards=[reads_artifact], responses=no(ArtifactNotFound))
async def get_artifact(client: TheClient, artifact_id: Id) -> ArtifactView:
    """One artifact, without content."""
    return await client.artifacts.get(id=artifact_id)


@get(
    "/{artifact_id:str}/content",
    guards=[reads_artifact],
    media_type="*/*",  # that of the artifact, which is set below
    response_headers=[ResponseHeader(name="ETag", description="Of the content's SHA-256.", documentation_only=True)],
    responses=no(ArtifactNotFound),
)
async def artifact_content(client: TheClient, artifact_id: Id) -> Stream:
    """An artifact's content, as a file, part by part. Media types that a browser could run (HTML, scripts, SVG …) are
    told as application/octet-stream; the artifact itself has its own."""
    return await content_of(client, artifact_id)


async def content_of(client: AnyClient, artifact_id: str) -> Stream:
    """An artifact's content as an answer. Raises ArtifactNotFound."""
    found = await client.artifacts.get(id=artifact_id)
    return Stream(
        client.artifacts.open(artifact_id),
        headers={
            "Content-Type": _told(found.media_type),
            "Content-Length": str(found.size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
            # What a run made must never act as a page of ours, whatever it says that it is.
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "ETag": f'"sha256-{found.digest}"',
        },
    )


def _told(media_type: str) -> str:
    is_fine = _MEDIA_TYPE.fullmatch(media_type) is not None and _HARMLESS.fullmatch(media_type.lower()) is not None
    return media_type if is_fine else _UNKNOWN


router = Router(
    "/artifacts", route_handlers=[list_artifacts, get_artifact, artifact_content], tags=["artifacts"]
)  # fmt: skip

__all__ = ["content_of", "router"]
