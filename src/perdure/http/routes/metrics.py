"""Metrics for Prometheus: of this server, and of what in the store wants somebody's attention."""

from __future__ import annotations

from typing import Final

from litestar import Response, Router, get

from perdure.http.access import reads
from perdure.http.given import TheClient, TheMeasures, TheStreams
from perdure.http.measures import CONTENT_TYPE, metric
from perdure.http.problems import no

_COUNTED_MAX: Final = 1_000


@get("/", guards=[reads], media_type=CONTENT_TYPE, responses=no())
async def metrics(client: TheClient, measures: TheMeasures, streams: TheStreams) -> Response[str]:
    """The text format of Prometheus. What is counted in the store is counted up to a thousand."""
    engines = await client.engines()
    workers = sum(1 for engine in engines if engine.workflows)
    held = len((await client.runs(hold="blocked", limit=_COUNTED_MAX)).runs)
    poison = len((await client.runs(hold="poison", limit=_COUNTED_MAX)).runs)
    paused = len((await client.runs(hold="paused", limit=_COUNTED_MAX)).runs)
    tasks = len(await client.tasks(status="open", limit=_COUNTED_MAX))
    letters = len(await client.dead_letters(limit=_COUNTED_MAX))
    stats = client.stats
    holds = [({"hold": "blocked"}, held), ({"hold": "poison"}, poison), ({"hold": "paused"}, paused)]
    lines = [
        *metric("perdure_engines", "gauge", "Engines that are alive and have workflows.", [({}, workers)]),
        *metric("perdure_runs_held", "gauge", "Runs that are held, up to 1000.", holds),
        *metric("perdure_tasks_open", "gauge", "Tasks that wait to be done, up to 1000.", [({}, tasks)]),
        *metric("perdure_dead_letters", "gauge", "Dead letters, up to 1000.", [({}, letters)]),
        *metric("perdure_ops_total", "counter", "Ops that this process has decided.", [({}, stats.ops)]),
        *metric("perdure_commits_total", "counter", "Batches that it has committed.", [({}, stats.commits)]),
        *metric("perdure_resends_total", "counter", "Batches that it sent again.", [({}, stats.resends)]),
        *metric("perdure_http_streams", "gauge", "Streams of events that are open.", [({}, streams.open)]),
        *measures.lines(),
    ]
    return Response("\n".join(lines) + "\n", media_type=CONTENT_TYPE)


router = Router("/metrics", route_handlers=[metrics], tags=["metrics"])

__all__ = ["router"]
