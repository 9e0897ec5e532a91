"""Engines: the processes that share the store and are alive."""

from __future__ import annotations

from litestar import Router, get

from perdure.http.access import reads
from perdure.http.dependencies import TheClient
from perdure.http.problems import no
from perdure.views import EngineView


@get("/", guards=[reads], responses=no())
async def list_engines(client: TheClient) -> list[EngineView]:
    """Engines and clients, the oldest first; a client has no workflows."""
    return await client.engines.list()


router = Router("/engines", route_handlers=[list_engines], tags=["engines"])

__all__ = ["router"]
