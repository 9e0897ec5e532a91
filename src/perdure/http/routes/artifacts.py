"""Artifacts: list them, and download their content."""

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
from perdure.http.visible_runs import reach_of, reads_artifact, reads_some

_MEDIA_TYPE: Final = re.compile(
    r'[\w!#$&^.+-]{1,100}/[\w!#$&^.+-]{1,100}(; ?[\w-]{1,40}=("[\w .-]{0,80}"|[\w.-]{1,80}))*',
    re.ASCII,
)
_UNKNOWN: Final = "application/octet-stream"
# Media types that a response may tell a browser. None of them can act as a page, a script or a style.
_HARMLESS: Final = re.compile(
    r"(text/(plain|csv|markdown)|application/(json|pdf|zip|gzip|x-ndjson)|(image|audio|video|font)/(?!svg)[\w.+-]+)(;.*)?",
    re.ASCII,
)


class Artifacts(Struct, frozen=True, kw_only=True):
    """A page of artifacts. Pass `cursor` as `after` to get the next page. It is null on the last page."""

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
    """List published artifacts, newest first, without their content. `staged` adds artifacts that runs have staged but
    not published yet.
    """
    within = reach_of(request).within
    found = await client.artifacts.list(
        name=name, run=run, type=type, staged=staged, within=within, after=after, limit=limit
    )
    return Artifacts(artifacts=found, cursor=cursor_of(found, limit))


@get("/{artifact_id:str}", guards=[reads_artifact], responses=no(ArtifactNotFound))
async def get_artifact(client: TheClient, artifact_id: Id) -> ArtifactView:
    """Return an artifact, without its content."""
    return await client.artifacts.get(id=artifact_id)


@get(
    "/{artifact_id:str}/content",
    guards=[reads_artifact],
    media_type="*/*",  # the response has the media type of the artifact
    response_headers=[ResponseHeader(name="ETag", description="The SHA-256 of the content.", documentation_only=True)],
    responses=no(ArtifactNotFound),
)
async def artifact_content(client: TheClient, artifact_id: Id) -> Stream:
    """Download an artifact's content. If a browser could execute the artifact's media type (HTML, scripts, SVG …), the
    response has application/octet-stream instead. `GET /artifacts/{artifact_id}` returns the real media type."""
    return await content_of(client, artifact_id)


async def content_of(client: AnyClient, artifact_id: str) -> Stream:
    """Return an artifact's content as a response. Raises ArtifactNotFound."""
    found = await client.artifacts.get(id=artifact_id)
    return Stream(
        client.artifacts.open(artifact_id),
        headers={
            "Content-Type": _safe(found.media_type),
            "Content-Length": str(found.size),
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(found.name, safe='')}",
            # The content comes from a run. It must never act as a page of this server, whatever its media type is.
            "Content-Security-Policy": "sandbox; default-src 'none'",
            "Cross-Origin-Resource-Policy": "same-origin",
            "ETag": f'"sha256-{found.digest}"',
        },
    )


def _safe(media_type: str) -> str:
    """Return a media type. Return application/octet-stream if a browser could execute the media type."""
    is_fine = _MEDIA_TYPE.fullmatch(media_type) is not None and _HARMLESS.fullmatch(media_type.lower()) is not None
    return media_type if is_fine else _UNKNOWN


router = Router(
    "/artifacts", route_handlers=[list_artifacts, get_artifact, artifact_content], tags=["artifacts"]
)  # fmt: skip

__all__ = ["content_of", "router"]
