"""The audit trail of everything in the store, as lines of JSON."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime
from time import monotonic
from typing import Annotated, Final

import msgspec
from litestar import Router, get
from litestar.params import QueryParameter
from litestar.response import Stream

from perdure.api.audit import AuditLine
from perdure.http.access import administers
from perdure.http.dependencies import Asked, TheClient, TheStreams
from perdure.http.params import moment
from perdure.http.problems import no
from perdure.http.streams import may_still_read

MEDIA_TYPE: Final = "application/x-ndjson"
_CHUNK_BYTES: Final = 64 * 1024


@get("/", guards=[administers], media_type=MEDIA_TYPE, responses=no())
async def export_audit(
    request: Asked,
    client: TheClient,
    streams: TheStreams,
    since: Annotated[datetime | None, QueryParameter(description="Only changes since this time.")] = None,
    until: Annotated[datetime | None, QueryParameter(description="Only changes before this time.")] = None,
) -> Stream:
    """Export every change of a run, a record or a token, and who requested it. The response has one JSON object per
    line, in a stable order. Its last line is `{"type": "end", "lines": …}`. A response without this line is incomplete.
    """
    first = None if since is None else moment(since)
    last = None if until is None else moment(until)
    lines = client.audit.export(since=first, until=last)
    return Stream(_written(lines, request, streams.check_s), media_type=MEDIA_TYPE)


async def _written(lines: AsyncIterator[AuditLine], request: Asked, check_s: float) -> AsyncIterator[bytes]:
    """Yield the lines in chunks. If the token is no longer valid, the export stops without its last line."""
    chunk = bytearray()
    checked_at = monotonic()
    async for line in lines:
        chunk += msgspec.json.encode(line) + b"\n"
        if len(chunk) >= _CHUNK_BYTES:
            if monotonic() - checked_at >= check_s:
                if not await may_still_read(request):
                    return
                checked_at = monotonic()
            yield bytes(chunk)
            chunk.clear()
    yield bytes(chunk)


router = Router("/audit", route_handlers=[export_audit], tags=["audit"])

__all__ = ["router"]
