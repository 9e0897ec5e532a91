"""Health checks: whether the server is alive, and whether it is ready. Neither check needs a token."""

from __future__ import annotations

import asyncio
from typing import Final, Literal

from litestar import Response, Router, get
from litestar.openapi.datastructures import ResponseSpec
from msgspec import Struct

from perdure.errors import PerdureError
from perdure.http.dependencies import TheClient

_PATIENCE_S: Final = 5.0


class Health(Struct, frozen=True):
    """The state of the server."""

    status: Literal["ok", "unavailable"]


_UNREADY: Final = {
    503: ResponseSpec(data_container=Health, generate_examples=False, description="The store does not answer.")
}


@get("/live", security=[{}])
async def live() -> Health:
    """Check that the process answers. This does not use the store."""
    return Health("ok")


@get("/ready", security=[{}], responses=_UNREADY)
async def ready(client: TheClient) -> Response[Health]:
    """Check that the process and its store answer."""
    try:
        async with asyncio.timeout(_PATIENCE_S):
            await client.engines.list()
    except (PerdureError, TimeoutError):
        return Response(Health("unavailable"), status_code=503)
    return Response(Health("ok"))


router = Router("/health", route_handlers=[live, ready], tags=["health"])

__all__ = ["router"]
