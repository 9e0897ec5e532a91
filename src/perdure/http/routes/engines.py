"""Engines: the live processes that share the store, and the runs that are overdue."""

from __future__ import annotations

from typing import Annotated

from litestar import Router, get
from litestar.params import QueryParameter

from perdure.api.engines import OverdueView
from perdure.http.access import reads
from perdure.http.dependencies import TheClient
from perdure.http.params import Limit
from perdure.http.problems import no
from perdure.views import EngineView

_LATE_S_MAX = 366 * 86_400

Late = Annotated[float, QueryParameter(ge=0, le=_LATE_S_MAX, description="Only runs that are later than this.")]


@get("/engines", guards=[reads], responses=no())
async def list_engines(client: TheClient) -> list[EngineView]:
    """List the engines and clients that are alive, oldest first. A client has no workflows."""
    return await client.engines.list()


@get("/engines:overdue", guards=[reads], responses=no())
async def list_overdue(client: TheClient, by_s: Late = 5, limit: Limit = 100) -> list[OverdueView]:
    """List runs that were due more than `by_s` seconds ago and that no engine has, the earliest first."""
    return await client.engines.overdue(by=by_s, limit=limit)


router = Router("/", route_handlers=[list_engines, list_overdue], tags=["engines"])

__all__ = ["router"]
