"""Definitions: the workflows that can be started now, because a live engine has them."""

from __future__ import annotations

from litestar import Router, get
from msgspec import Struct

from perdure.http.dependencies import Asked, TheClient
from perdure.http.problems import no
from perdure.http.visible_runs import reach_of, reads_some


class DefinitionView(Struct, frozen=True, kw_only=True):
    """A workflow's name and version, and the ids of the live engines that have it."""

    workflow: str
    version: str
    engines: list[str]


@get("/", guards=[reads_some], responses=no())
async def list_definitions(request: Asked, client: TheClient) -> list[DefinitionView]:
    """List the workflows that live engines have, by name and version. Operations are not listed, because they handle
    messages and cannot be started. See `GET /topics`.
    """
    reach = reach_of(request)
    found: dict[tuple[str, str], list[str]] = {}
    handlers = await client.topics.handlers()
    for engine in await client.engines.list():
        for workflow, version in engine.workflows:
            if workflow not in handlers.get(version, ()) and reach.knows(workflow):
                found.setdefault((workflow, version), []).append(engine.id)
    return [
        DefinitionView(workflow=workflow, version=version, engines=engines)
        for (workflow, version), engines in sorted(found.items())
    ]


router = Router("/definitions", route_handlers=[list_definitions], tags=["definitions"])

__all__ = ["router"]
