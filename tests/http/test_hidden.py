"""What a token whose scope is for some runs learns of the others: from pages, cursors, counts, keys and ids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure import Workflow, start, workflow
from perdure.http import make_token
from perdure.ports import Store
from tests.http.site import WORKFLOWS, Site, site, told

MakeStore = Callable[[], Store]


@workflow
async def leaf(number: int) -> int:
    return number


@workflow
async def brood(many: int) -> int:
    for number in range(many):
        await start(leaf(number), id=f"leaf-{number}", tags={"n": str(number % 2)})
    return many


FAMILY: list[Workflow[Any, Any]] = [leaf, brood]


async def bearer(here: Site, name: str, *scopes: str) -> dict[str, str]:
    return {"authorization": f"Bearer {await make_token(here.client, name, scopes)}"}


async def pages(here: Site, path: str, token: dict[str, str], limit: int) -> list[dict[str, Any]]:
    """All pages of a list."""
    found: list[dict[str, Any]] = []
    after = None
    while True:
        params = {"limit": str(limit), **({"after": after} if after else {})}
        page = told(await here.http.get(path, params=params, headers=token))
        found.append(page)
        if (after := page["cursor"]) is None:
            return found


@pytest.mark.parametrize("scope", ["read:tag=tenant=acme", "read:workflow=asks_mine"])
async def test_pages_of_tasks_are_full_and_their_cursors_name_only_what_is_within_reach(
    make_any_store: MakeStore, scope: str
) -> None:
    async with site(make_any_store) as here:
        for number in range(30):
            mine = number % 10 == 5
            workflow = "asks"
            tags = {"tenant": "acme" if mine else "other"}
            await here.client.start(workflow, {"order": "o"}, id=f"r-{number:02}", tags=tags)
        for number in range(30):
            await here.task(run=f"r-{number:02}")
        token = await bearer(here, "some", scope)
        wanted = {"r-05", "r-15", "r-25"} if "tag" in scope else set()
        found = await pages(here, "/tasks", token, 2)
        seen = [one for page in found for one in page["tasks"]]
        assert {one["run_id"] for one in seen} == wanted
        assert len(seen) == len(wanted)
        visible = {one["id"] for one in seen}
        assert all(page["cursor"] is None or page["cursor"] in visible for page in found)
        assert all(len(page["tasks"]) == 2 for page in found[:-1])
        # A page with all that is visible has no cursor, however much is hidden behind it.
        assert [page["cursor"] for page in await pages(here, "/tasks", token, 10)] == [None]


async def test_pages_of_artifacts_are_full_and_their_cursors_name_only_what_is_within_reach(
    make_any_store: MakeStore,
) -> None:
    async with site(make_any_store) as here:
        for number in range(12):
            tags = {"tenant": "acme" if number in (2, 3) else "other"}
            input = {"name": "report", "text": "x"}
            await here.client.start("makes", input, id=f"m-{number:02}", tags=tags)
        for number in range(12):
            await here.until(f"m-{number:02}", "succeeded")
        token = await bearer(here, "some", "read:tag=tenant=acme")
        found = await pages(here, "/artifacts", token, 1)
        seen = [one for page in found for one in page["artifacts"]]
        assert {one["run_id"] for one in seen} == {"m-02", "m-03"}
        visible = {one["id"] for one in seen}
        assert all(page["cursor"] is None or page["cursor"] in visible for page in found)
        assert all(len(page["artifacts"]) == 1 for page in found[:-1])
        assert [page["cursor"] for page in await pages(here, "/artifacts", token, 100)] == [None]


async def test_a_tree_counts_only_the_runs_within_reach(make_any_store: MakeStore) -> None:
    async with site(make_any_store, workflows=[*WORKFLOWS, *FAMILY]) as here:
        await here.start("brood", "b", many=6)
        await here.until("b", "succeeded")
        few = await bearer(here, "few", "read:workflow=brood", "read:tag=n=1")
        none = await bearer(here, "none", "read:workflow=brood")

        async def tree(token: dict[str, str], runs_max: int) -> Any:
            return await here.http.get("/runs/b/tree", params={"runs_max": runs_max}, headers=token)

        assert told(await tree(none, 1))["children"] == []
        children = told(await tree(few, 4))["children"]
        assert [child["run"]["id"] for child in children] == ["leaf-1", "leaf-3", "leaf-5"]
        assert (await tree(few, 3)).status_code == 422
        whole = told(await here.http.get("/runs/b/tree"))
        assert len(whole["children"]) == 6


ORDER = {"order": "o"}


async def test_keys_of_starts_are_those_of_a_scope(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        acme = await bearer(here, "acme", "operate:tag=tenant=acme")
        too = await bearer(here, "acme-too", "operate:tag=tenant=acme")
        other = await bearer(here, "other", "operate:tag=tenant=other")
        pays = await bearer(here, "pays", "read", "operate:workflow=pays")

        async def start(token: dict[str, str] | None, tenant: str) -> Any:
            body = {"workflow": "pays", "input": ORDER, "tags": {"tenant": tenant}}
            headers = {**(token or {}), "idempotency-key": "k"}
            return told(await here.http.post("/runs", json=body, headers=headers), 201)["id"]

        first = await start(acme, "acme")
        assert [await start(acme, "acme"), await start(too, "acme")] == [first, first]
        rest = [await start(other, "other"), await start(pays, "acme"), await start(None, "acme")]
        assert len({first, *rest}) == 4
        assert await here.client.runs.get(first) is not None


async def test_ids_that_a_scope_may_choose_are_no_other_scopes(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        acme = await bearer(here, "acme", "operate:tag=tenant=acme")
        both = await bearer(here, "both", "operate:workflow=pays", "operate:tag=tenant=a/b")
        await here.start("pays", "there", **ORDER)

        async def start(token: dict[str, str], id: str, tenant: str) -> int:
            body = {"workflow": "pays", "id": id, "input": ORDER, "tags": {"tenant": tenant}}
            return (await here.http.post("/runs", json=body, headers=token)).status_code

        for id in ("there", "not-there", "tag=tenant=acme", "tag=tenant=acme/", "tag=tenant=other/x"):
            assert await start(acme, id, "acme") == 403
        assert [await start(acme, "tag=tenant=acme/x", "acme") for _ in range(2)] == [201, 201]
        assert await start(both, "workflow=pays/x", "acme") == 201
        assert await start(both, "tag=tenant=a%2Fb/x", "a/b") == 201
        assert await start(both, "tag=tenant=a/b/x", "a/b") == 403
        assert await start(both, "tag=tenant=a%2Fb/y", "acme") == 403


async def test_keys_of_events_are_those_of_a_scope(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        for tenant in ("acme", "other"):
            await here.client.start("sleeps", {}, id=tenant, tags={"tenant": tenant})
        tokens = {one: await bearer(here, one, f"operate:tag=tenant={one}") for one in ("acme", "other")}

        async def send(run: str, token: dict[str, str] | None, value: int) -> int:
            headers = {**(token or {}), "idempotency-key": "k"}
            body = {"name": "told", "value": value}
            return (await here.http.post(f"/runs/{run}/events", json=body, headers=headers)).status_code

        assert [await send("acme", tokens["acme"], 1) for _ in range(2)] == [202, 202]
        assert await send("other", tokens["other"], 2) == 202
        assert await send("other", None, 3) == 202
        # Of its own keys a scope is told that they are used.
        assert await send("acme", tokens["acme"], 4) == 409
        for run, values in (("acme", [1]), ("other", [2, 3])):
            there = told(await here.http.get("/events", params={"to": run}))
            assert [one["value"] for one in there] == values
