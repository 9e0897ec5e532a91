"""The list of runs. Filter the runs, save filters as views, and select runs to change."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from perdure.dashboard.filters import WORDS, Search, Unclear, parsed
from perdure.dashboard.page import Page, Shown, Visit
from perdure.errors import PerdureError
from perdure.views import Page as RunPage

_LIMIT: Final = 50
VIEWS: Final = (
    ("All", ""),
    ("Failed", "status:failed,rollback_failed"),
    ("Waiting", "status:suspended"),
    ("Running", "status:running"),
    ("Paused", "hold:paused"),
    ("Blocked", "hold:blocked"),
)


async def show(visit: Visit) -> Shown:
    query = visit.asked("q").strip()
    cursor = visit.asked("cursor")
    found, unclear = RunPage(runs=[], cursor=None), ""
    try:
        search = parsed(query, datetime.now(UTC))
        found = await _found(visit, search, cursor)
    except Unclear as error:
        unclear = str(error)
    except PerdureError as error:
        unclear = str(error)
    names = sorted({name for engine in await visit.client.engines.list() for name, _ in engine.workflows})
    return {
        "title": f"Runs: {query}" if query else "Runs",
        "query": query,
        "cursor": cursor,
        "runs": found.runs,
        "next": found.cursor,
        "unclear": unclear,
        "views": VIEWS,
        "words": WORDS,
        "workflows": names,
    }


async def _found(visit: Visit, search: Search, cursor: str) -> RunPage:
    if search.run_id is not None:
        run = await visit.client.runs.get(search.run_id)
        return RunPage(runs=[run] if run is not None else [], cursor=None)
    return await search.wanted.page(visit.client, _LIMIT, cursor or None)


page = Page(name="runs", path="/runs", title="Runs", show=show)
