"""Many runs over HTTP: started, read, counted and changed at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from perdure.http.routes import runs as routes
from perdure.ports import Store
from tests.http.site import refused, site, told

MakeStore = Callable[[], Store]


async def test_many_runs_are_started_and_one_that_cannot_be_is_reported(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        runs = [
            {"workflow": "greet", "id": "a", "input": {"name": "ann"}},
            {"workflow": "nobody", "id": "b"},
            {"workflow": "greet", "id": "c", "input": {"name": "cy"}, "deadline": "2001-01-01T00:00:00"},
        ]
        first, second, third = told(await here.http.post("/runs:start-many", json={"runs": runs}))
        assert (first["id"], first["error"]) == ("a", None)
        assert (second["id"], second["error"]["code"]) == (None, "unknown_workflow")
        assert (third["id"], third["error"]["code"]) == (None, "invalid_request"), "a time without a time zone"
        await here.until("a", "succeeded")
        again = told(await here.http.post("/runs:start-many", json={"runs": runs[:1]}))
        assert again == [{"id": "a", "error": None}], "the same run, once"
        found = told(await here.http.get("/runs:get-many", params={"id": ["a", "b"]}))
        assert {run_id: run["output"] for run_id, run in found.items()} == {"a": "hello ann"}
        refused(await here.http.post("/runs:start-many", json={"runs": []}), 400, "invalid_request")
        refused(await here.http.get("/runs:get-many"), 400, "invalid_request")


async def test_runs_are_counted_up_to_a_limit(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for number in range(3):
            await here.start("pays", f"r-{number}", order="o")
        assert told(await here.http.get("/runs:count", params={"workflow": "pays"})) == {"count": 3, "limit": 10_000}
        assert told(await here.http.get("/runs:count", params={"limit": 2})) == {"count": 2, "limit": 2}
        assert told(await here.http.get("/runs:count", params={"status": "failed"}))["count"] == 0
        refused(await here.http.get("/runs:count", params={"limit": 0}), 400, "invalid_request")
        refused(await here.http.get("/runs:count", params={"created_from": "2001-01-01"}), 400, "invalid_request")


async def test_selected_runs_are_paused_resumed_and_cancelled_after_a_dry_run(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for number, tenant in enumerate(("acme", "acme", "zeta")):
            run = {"workflow": "pays", "id": f"r-{number}", "input": {"order": "o"}, "tags": {"tenant": tenant}}
            told(await here.http.post("/runs", json=run), 201)
            await here.until(f"r-{number}", "suspended")
        acme = {"selection": {"tags": {"tenant": "acme"}}}
        report = told(await here.http.post("/runs:pause", json={**acme, "dry_run": True}))
        assert (sorted(report["changed"]), report["refused"], report["dry_run"]) == (["r-0", "r-1"], {}, True)
        assert (await here.run("r-0"))["hold"] is None
        report = told(await here.http.post("/runs:pause", json={**acme, "reason": "lunch"}))
        assert (sorted(report["changed"]), report["dry_run"]) == (["r-0", "r-1"], False)
        assert (await here.run("r-0"))["hold"]["reason"] == "lunch"
        assert told(await here.http.post("/runs:pause", json=acme))["changed"] == [], "they are held already"
        report = told(await here.http.post("/runs:resume", json={"selection": {"hold": "paused"}}))
        assert sorted(report["changed"]) == ["r-0", "r-1"]
        report = told(await here.http.post("/runs:cancel", json={"selection": {}, "reason": "enough"}))
        assert sorted(report["changed"]) == ["r-0", "r-1", "r-2"]
        assert (await here.run("r-2"))["status"] == "cancelled"


async def test_failed_runs_are_retried_and_others_are_left_alone(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("fails", "f-1")
        await here.until("f-1", "failed")
        await here.start("greet", "g-1", name="ann")
        await here.until("g-1", "succeeded")
        report = told(await here.http.post("/runs:retry", json={"selection": {}}))
        assert (report["changed"], report["refused"]) == (["f-1"], {})
        assert (await here.until("f-1", "failed"))["attempt"] == 2


async def test_a_change_of_many_runs_says_which_and_only_what_is_known(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for body in ({}, {"selection": {"workflo": "pays"}}, {"selection": {"status": ["gone"]}}):
            refused(await here.http.post("/runs:cancel", json=body), 400, "invalid_request")
        naive = {"selection": {"created_before": "2001-01-01T00:00:00"}}
        refused(await here.http.post("/runs:cancel", json=naive), 400, "invalid_request")
        refused(await here.http.post("/runs:resume", json={"selection": {}, "reason": "x"}), 400, "invalid_request")


@pytest.mark.parametrize("verb", ["cancel", "pause", "resume", "retry"])
async def test_more_runs_than_one_request_may_change_are_refused_and_none_is_changed(
    make_store: MakeStore, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert routes._CHANGED_MAX == 10_000
    monkeypatch.setattr(routes, "_CHANGED_MAX", 1)
    async with site(make_store) as here:
        workflow, status = ("fails", "failed") if verb == "retry" else ("sleeps", "suspended")
        for number in range(2):
            told(await here.http.post("/runs", json={"workflow": workflow, "id": f"r-{number}"}), 201)
            await here.until(f"r-{number}", status)
        before = told(await here.http.get("/runs"))
        for is_dry in (True, False):
            body: dict[str, Any] = {"selection": {}, "dry_run": is_dry}
            refused(await here.http.post(f"/runs:{verb}", json=body), 400, "invalid_request")
        assert told(await here.http.get("/runs")) == before
