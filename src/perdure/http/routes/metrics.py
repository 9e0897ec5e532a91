"""Metrics for Prometheus. They describe this server, and things in the store that need attention."""

from __future__ import annotations

import asyncio
from typing import Final

from litestar import Response, Router, get

from perdure.engine import AnyClient
from perdure.errors import EngineStopped, StoreError
from perdure.http.access import reads
from perdure.http.dependencies import TheClient, TheMeasures, TheStreams
from perdure.http.measures import CONTENT_TYPE, metric
from perdure.http.problems import no
from perdure.kernel.status import ACTIVE

_COUNTED_MAX: Final = 1_000
_PATIENCE_S: Final = 5.0  # Prometheus waits for 10 s by default.
_KINDS: Final = ("blocked", "poison", "paused")


@get("/", guards=[reads], media_type=CONTENT_TYPE, responses=no())
async def metrics(client: TheClient, measures: TheMeasures, streams: TheStreams) -> Response[str]:
    """Return metrics in the text format of Prometheus. Counting runs, tasks and dead letters in the store stops at a
    thousand. If the store does not answer, `perdure_store_up` is 0, and the response has only the metrics of this
    process.
    """
    try:
        async with asyncio.timeout(_PATIENCE_S):
            stored = await _stored(client)
    except (EngineStopped, StoreError, TimeoutError):
        stored = None
    stats = client.engines.stats
    outages = [({"request": request}, count) for request, count in sorted(stats.outages.items())]
    holds = [({"hold": kind}, stats.holds[kind]) for kind in _KINDS]
    lines = [
        *metric("perdure_store_up", "gauge", "Whether the store answers.", [({}, int(stored is not None))]),
        *metric("perdure_store_outages_total", "counter", "How often the store began to fail.", outages),
        *(stored or ()),
        *metric("perdure_holds_total", "counter", "Holds that this process has set.", holds),
        *metric("perdure_ops_total", "counter", "Ops that this process has decided.", [({}, stats.ops)]),
        *metric("perdure_commits_total", "counter", "Batches that this process has committed.", [({}, stats.commits)]),
        *metric("perdure_resends_total", "counter", "Batches that this process has sent again.", [({}, stats.resends)]),
        *metric("perdure_http_streams", "gauge", "Streams of server-sent events that are open.", [({}, streams.open)]),
        *measures.lines(),
    ]
    return Response("\n".join(lines) + "\n", media_type=CONTENT_TYPE)


async def _stored(client: AnyClient) -> list[str]:
    """Return the metrics about the content of the store. Raises StoreError."""
    engines = await client.engines.list()
    workers = sum(1 for engine in engines if engine.workflows)
    holds = [({"hold": kind}, len((await client.runs.list(hold=kind, limit=_COUNTED_MAX)).runs)) for kind in _KINDS]
    active = await client.runs.list(status=sorted(ACTIVE), limit=_COUNTED_MAX)
    stranded = sum(1 for run in active.runs if run.stranded is not None and run.hold is None)
    tasks = len(await client.tasks.list(status="open", limit=_COUNTED_MAX))
    letters = len(await client.dead_letters.list(limit=_COUNTED_MAX))
    return [
        *metric("perdure_engines", "gauge", "Engines that are alive and have workflows.", [({}, workers)]),
        *metric("perdure_runs_held", "gauge", "Runs that are held, up to 1000.", holds),
        *metric(
            "perdure_runs_stranded",
            "gauge",
            "Runs whose code no engine has, of the newest 1000 that have not ended.",
            [({}, stranded)],
        ),
        *metric("perdure_tasks_open", "gauge", "Open tasks, up to 1000.", [({}, tasks)]),
        *metric("perdure_dead_letters", "gauge", "Dead letters, up to 1000.", [({}, letters)]),
    ]


router = Router("/metrics", route_handlers=[metrics], tags=["metrics"])

__all__ = ["router"]
