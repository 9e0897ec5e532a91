"""Artifacts: list and download them."""

from __future__ import annotations

from typing import Final

from litestar import get
from litestar.response import Stream

from perdure.dashboard.page import Page, Shown, Visit
from perdure.dashboard.renderer import PATH
from perdure.http.access import reads
from perdure.http.dependencies import TheClient
from perdure.http.params import Id
from perdure.http.routes.artifacts import content_of

_LIMIT: Final = 50


async def show(visit: Visit) -> Shown:
    name, after = visit.asked("name").strip(), visit.asked("after")
    found = await visit.client.artifacts.list(
        name=name or None, run=visit.asked("run") or None, staged=True, after=after or None, limit=_LIMIT
    )
    return {
        "title": "Artifacts",
        "name": name,
        "run_id": visit.asked("run"),
        "artifacts": found,
        "after": after,
        "next": found[-1].id if len(found) == _LIMIT else None,
    }


@get(f"{PATH}/artifacts/{{artifact_id:str}}/content", guards=[reads])
async def content(client: TheClient, artifact_id: Id) -> Stream:
    return await content_of(client, artifact_id)


page = Page(name="artifacts", path="/artifacts", title="Artifacts", show=show, extra=[content])
