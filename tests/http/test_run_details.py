"""Why a run is where it is: what it waits for, where its tokens are, what followed from an emission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from perdure.cooperation import Operation, Scope, Topic
from perdure.http import serving
from perdure.ports import Store
from tests.http.site import refused, site, told

MakeStore = Callable[[], Store]

ORDERS: Topic[dict[str, Any]] = Topic("insight.orders", dict[str, Any])
SHIPPED: Topic[dict[str, Any]] = Topic("insight.shipped", dict[str, Any])

takes = Operation("takes", ORDERS)
ships = Operation("ships", SHIPPED)


@takes.step
def take(scope: Scope, message: dict[str, Any]) -> None:
    scope.emit(SHIPPED, {"order": message["order"]})


@ships.step
def ship(scope: Scope, message: dict[str, Any]) -> None:
    if message["order"] == "bad":
        raise ValueError("<b>no stock</b>")


async def test_what_a_run_waits_for_is_told(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("pays", "r-1", order="o-1")
        await here.until("r-1", "suspended")
        [wait] = told(await here.http.get("/runs/r-1/waits"))
        assert (wait["kind"], wait["name"]) == ("event", "Paid")
        refused(await here.http.get("/runs/nobody/waits"), 404, "run_not_found")


async def test_a_graph_started_by_name_says_what_it_is_and_where_its_tokens_are(make_store: MakeStore) -> None:
    async with site(make_store) as here, serving(here.engine, port=0) as url:
        await here.start("greeting", "g-1", input={"name": "ada"})
        run = await here.until("g-1", "suspended")
        assert run["model"] == "graph"
        assert [one["model"] for one in told(await here.http.get("/runs"))["runs"]] == ["graph"]
        async with httpx.AsyncClient(base_url=f"{url}/api/v1", headers=here.http.headers, trust_env=False) as http:
            tokens = told(await http.get("/runs/g-1/tokens"))
            assert (tokens["workflow"], tokens["nodes"]["says"]["completed"]) == ("greeting", 1)
            assert [(one["id"], one["path"], one["state"]) for one in tokens["tokens"]] == [(1, "root", "executing")]
            page = told(await http.get("/runs/g-1/graph-events", params={"limit": 2}))
            assert [(one["seq"], one["kind"]) for one in page["events"]] == [(1, "run_started"), (2, "token_spawned")]
            rest = told(await http.get("/runs/g-1/graph-events", params={"after": page["cursor"]}))
            assert (rest["events"][-1]["kind"], rest["cursor"]) == ("node_started", None)
            refused(await http.get("/runs/g-1/graph-events", params={"limit": 0}), 400, "invalid_request")
            refused(await http.get("/runs/nobody/graph-events"), 404, "run_not_found")
            drawn = told(await http.get("/runs/g-1/drawing"))
            assert drawn["form"] == "svg"
            assert "<svg" in drawn["text"]
            assert "flowchart" in told(await http.get("/runs/g-1/drawing", params={"form": "mermaid"}))["text"]
            refused(await http.get("/runs/nobody/tokens"), 404, "run_not_found")
            view = told(await http.get("/runs/g-1/definition"))
            assert (view["workflow"], view["is_current"], view["definition"]["graph"]) == ("greeting", True, "greeting")
            refused(await http.get("/runs/nobody/definition"), 404, "run_not_found")
            await here.start("greet", "r-1", name="ada")
            refused(await http.get("/runs/r-1/drawing"), 422, "misuse")
        # A server that has only the store knows the definition that the run was started with.
        assert told(await here.http.get("/runs/g-1/tokens")) == tokens
        assert told(await here.http.get("/runs/g-1/definition")) == {**view, "is_current": None}


@pytest.mark.parametrize("order", ["good", "bad"])
async def test_a_hierarchy_is_told_with_what_happened(make_store: MakeStore, order: str) -> None:
    async with site(make_store, workflows=[takes, ships]) as here:
        root = await here.engine.emit(ORDERS, {"order": order}, id="m-1")
        ends = ("succeeded",) if order == "good" else ("rolled_back",)
        await here.until(root.run_ids[0], *ends)
        found = told(await here.http.get(f"/roots/{root.id}"))
        [top] = found["tree"]["children"]
        [below] = top["children"]
        assert (top["run"]["workflow"], below["run"]["workflow"]) == ("takes", "ships")
        assert (top["run"]["status"], below["run"]["status"]) == ends * 2
        assert {one["scope"] for one in found["events"]} == {root.id, top["run"]["id"], below["run"]["id"]}
        assert found["events"][0]["topic"] == "insight.orders"
        failures = [one["failure"]["message"] for one in found["events"] if one["failure"]]
        assert bool(failures) == (order == "bad")
        part = told(await here.http.get(f"/roots/{below['run']['id']}"))
        assert part["tree"]["run"]["workflow"] == "ships"
        refused(await here.http.get("/roots/nobody"), 404, "run_not_found")
