"""Why a run is where it is: what it waits for, where its tokens are, what followed from an emission."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from litestar import Router, get
from litestar.params import QueryParameter
from msgspec import Struct

from perdure.api.waits import WaitView
from perdure.errors import Misuse, RunNotFound
from perdure.graph import DefinitionView, GraphEvents, TokensView
from perdure.http.access import reads
from perdure.http.dependencies import TheClient
from perdure.http.params import Id
from perdure.http.problems import no
from perdure.http.reach import reads_run
from perdure.views import HierarchyView

_RUNS_MAX = 10_000
_EVENTS_MAX = 10_000


class Form(StrEnum):
    SVG = "svg"
    MERMAID = "mermaid"


class DrawingView(Struct, frozen=True, kw_only=True):
    """A picture of a graph, as text."""

    form: Form
    text: str


@get("/runs/{run_id:str}/waits", guards=[reads_run], responses=no(RunNotFound))
async def run_waits(client: TheClient, run_id: Id) -> list[WaitView]:
    """What a run waits for; nothing while its code or a step runs."""
    return await client.handle(run_id).waits()


@get("/runs/{run_id:str}/tokens", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_tokens(client: TheClient, run_id: Id) -> TokensView:
    """Where the tokens of a run of a graph are and were, each with its path and state."""
    return await client.handle(run_id).tokens()


@get("/runs/{run_id:str}/graph-events", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_graph_events(
    client: TheClient,
    run_id: Id,
    after: Annotated[int, QueryParameter(ge=0, description="The number of the last event that you have.")] = 0,
    limit: Annotated[int, QueryParameter(ge=1, le=_EVENTS_MAX)] = 1_000,
) -> GraphEvents:
    """What happened in a run of a graph, numbered from 1 on: tokens that came to be, moved, met and ended, and what
    nodes did. The next page begins after `cursor`."""
    return await client.handle(run_id).graph_events(after=after, limit=limit)


@get("/runs/{run_id:str}/graph", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_graph(
    client: TheClient,
    run_id: Id,
    form: Annotated[Form, QueryParameter(description="SVG, or a Mermaid flowchart.")] = Form.SVG,
) -> DrawingView:
    """A picture of a run's graph with its tokens, as `tokens` has them."""
    return DrawingView(form=form, text=await client.handle(run_id).drawing(form.value))


@get("/runs/{run_id:str}/definition", guards=[reads_run], responses=no(RunNotFound, Misuse))
async def run_definition(client: TheClient, run_id: Id) -> DefinitionView:
    """The definition that a run of a graph was started with, whatever the code is now."""
    return await client.handle(run_id).definition()


@get("/hierarchies/{run_id:str}", guards=[reads], responses=no(RunNotFound, Misuse))
async def hierarchy(
    client: TheClient, run_id: Id, runs_max: Annotated[int, QueryParameter(ge=1, le=_RUNS_MAX)] = 1_000
) -> HierarchyView:
    """What followed from an emission, by the id of its root or of one of its runs: runs with their states, and what
    happened to each message."""
    return await client.handle(run_id).hierarchy(runs_max=runs_max)


router = Router(
    "/",
    route_handlers=[run_waits, run_tokens, run_graph_events, run_graph, run_definition, hierarchy],
    tags=["insights"],
)

__all__ = ["router"]
