"""Aspects of one run: its history, its waits, its published values and streams. For a graph's run, also its tokens."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

from litestar import Router, get
from litestar.params import QueryParameter
from msgspec import Struct

from perdure.api.waits import WaitView
from perdure.errors import Misuse, NotPublished, RunNotFound
from perdure.graph import DefinitionView, GraphEvents, TokensView
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import Id, Limit
from perdure.http.problems import no
from perdure.http.visible_runs import reach_of, reads_run
from perdure.views import AuditView, History, RunTree, StreamItemView

_TREE_RUNS_MAX = 10_000
_EVENTS_MAX = 10_000


class Form(StrEnum):
    """Formats of a picture."""

    SVG = "svg"
    MERMAID = "mermaid"


class DrawingView(Struct, frozen=True, kw_only=True):
    """A picture of a graph, as text in this format."""

    form: Form
    text: str


class PublishedView(Struct, frozen=True, kw_only=True):
    """A value that a run has published."""

    key: str
    value: Any


class StreamPage(Struct, frozen=True, kw_only=True):
    """Items of a stream. Pass `next` as `after` to get the next page."""

    items: list[StreamItemView]
    next: int


@get("/{run_id:str}/history", guards=[reads_run], responses=no(RunNotFound))
async def run_history(client: TheClient, run_id: Id) -> History:
    """Return the run's journal, its audit trail, and the entries that retries set aside."""
    return await client.handle(run_id).history()


@get("/{run_id:str}/audit", guards=[reads_run], responses=no(RunNotFound))
async def run_audit(client: TheClient, run_id: Id) -> list[AuditView]:
    """Return every change of the run's status, hold, tags or deadline, and who requested it, oldest first."""
    return await client.handle(run_id).audit()


@get("/{run_id:str}/tree", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_tree(
    request: Asked,
    client: TheClient,
    run_id: Id,
    runs_max: Annotated[
        int, QueryParameter(ge=1, le=_TREE_RUNS_MAX, description="Refuse if the tree has more runs.")
    ] = 1_000,
) -> RunTree:
    """Return a run with all runs below it."""
    return await client.handle(run_id).tree(runs_max=runs_max, within=reach_of(request).within)


@get("/{run_id:str}/published", guards=[reads_run], responses=no(RunNotFound))
async def run_published(client: TheClient, run_id: Id) -> dict[str, Any]:
    """Return all values that a run has published, by key."""
    return await client.handle(run_id).published()


@get("/{run_id:str}/published/{key:str}", guards=[reads_run], responses=no(RunNotFound, NotPublished))
async def run_published_value(client: TheClient, run_id: Id, key: Id) -> PublishedView:
    """Return the value that a run has published under a key."""
    return PublishedView(key=key, value=await client.handle(run_id).published(key))


@get("/{run_id:str}/streams", guards=[reads_run], responses=no(RunNotFound))
async def run_streams(client: TheClient, run_id: Id) -> dict[str, int]:
    """Return the names of a run's streams, and the offset of the last item of each."""
    return await client.handle(run_id).streams()


@get("/{run_id:str}/streams/{name:str}", guards=[reads_run], responses=no(RunNotFound))
async def run_stream(
    client: TheClient,
    run_id: Id,
    name: Id,
    after: Annotated[
        int, QueryParameter(ge=0, le=2**63 - 1, description="The offset of the last item that you have.")
    ] = 0,
    limit: Limit = 100,
) -> StreamPage:
    """Return items of a run's stream in order, without waiting for more items."""
    items: list[StreamItemView] = []
    async for item in client.handle(run_id).stream(name, after=after, follow=False):
        items.append(item)
        if len(items) == limit:
            break
    return StreamPage(items=items, next=items[-1].offset if items else after)


@get("/{run_id:str}/waits", guards=[reads_run], responses=no(RunNotFound))
async def run_waits(client: TheClient, run_id: Id) -> list[WaitView]:
    """Return what a run waits for. The list is empty while the run's code or a step runs."""
    return await client.handle(run_id).waits()


@get("/{run_id:str}/tokens", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_tokens(client: TheClient, run_id: Id) -> TokensView:
    """Return the tokens of a graph's run, including tokens that have ended, each with its path, node and state."""
    return await client.handle(run_id).tokens()


@get("/{run_id:str}/graph-events", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_graph_events(
    client: TheClient,
    run_id: Id,
    after: Annotated[int, QueryParameter(ge=0, description="The number of the last event that you have.")] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=_EVENTS_MAX, description="Return at most this many.")] = 1_000,
) -> GraphEvents:
    """Return the events of a graph's run, numbered from 1 on. Tokens were created, moved, joined and ended, and nodes
    did their work. Pass `cursor` as `after` to get the next page.
    """
    return await client.handle(run_id).graph_events(after=after, limit=limit)


@get("/{run_id:str}/drawing", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_drawing(
    client: TheClient,
    run_id: Id,
    form: Annotated[
        Form, QueryParameter(description="The format of the picture: SVG, or a Mermaid flowchart.")
    ] = Form.SVG,
) -> DrawingView:
    """Return a picture of a run's graph with its tokens."""
    return DrawingView(form=form, text=await client.handle(run_id).drawing(form.value))


@get("/{run_id:str}/definition", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_definition(client: TheClient, run_id: Id) -> DefinitionView:
    """Return the definition that a graph's run was started or last retried with. The code may have changed since
    then.
    """
    return await client.handle(run_id).definition()


router = Router(
    "/runs",
    route_handlers=[
        run_history,
        run_audit,
        run_tree,
        run_waits,
        run_published,
        run_published_value,
        run_streams,
        run_stream,
        run_tokens,
        run_graph_events,
        run_drawing,
        run_definition,
    ],
    tags=["runs"],
)

__all__ = ["router"]
