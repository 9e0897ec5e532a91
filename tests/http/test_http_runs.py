"""Runs over HTTP: start, look at, list, change."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import quote

from perdure.ports import Store
from tests.http.site import Luck, refused, site, told

MakeStore = Callable[[], Store]
ANY = {"if-match": "*"}


async def test_a_run_is_started_by_name_and_can_be_looked_at(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        body = {"workflow": "greet", "input": {"name": "ada", "times": 2}, "tags": {"tenant": "acme"}}
        started = await here.http.post("/runs", json=body)
        run = told(started, 201)
        assert started.headers["location"] == f"/api/v1/runs/{run['id']}"
        done = await here.until(run["id"], "succeeded")
        assert (done["input"], done["output"]) == ({"name": "ada", "times": 2}, "hello hello ada")
        assert done["tags"] == {"tenant": "acme"}
        seen = await here.http.get(started.headers["location"].removeprefix("/api/v1"))
        assert seen.headers["etag"] == f'"{done["version"]}"'
        history = told(await here.http.get(f"/runs/{run['id']}/history"))
        assert [row["became"] for row in history["audit"]][-1] == "succeeded"
        assert history["audit"][0]["actor"] == "root"


async def test_a_start_that_is_sent_again_gives_the_same_run(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        body = {"workflow": "greet", "input": {"name": "ada"}}
        key = {"idempotency-key": "order-17"}
        first = told(await here.http.post("/runs", json=body, headers=key), 201)
        again = told(await here.http.post("/runs", json=body, headers=key), 201)
        assert first["id"] == again["id"]
        other = {"workflow": "greet", "input": {"name": "bob"}}
        refused(await here.http.post("/runs", json=other, headers=key), 409, "run_exists")
        named = told(await here.http.post("/runs", json={**body, "id": "o-17"}), 201)
        assert named["id"] == "o-17"
        refused(await here.http.post("/runs", json={**other, "id": "o-17"}), 409, "run_exists")
        assert len(told(await here.http.get("/runs"))["runs"]) == 2


UNSTARTABLE: list[tuple[dict[str, object], int, str]] = [
    ({"workflow": "nobody"}, 404, "unknown_workflow"),
    ({}, 400, "invalid_request"),
    ({"workflow": ""}, 400, "invalid_request"),
    ({"workflow": "greet", "inputs": {}}, 400, "invalid_request"),
    ({"workflow": "greet", "input": []}, 400, "invalid_request"),
    ({"workflow": "greet", "id": "a\0b"}, 422, "invalid_arguments"),
    ({"workflow": "greet", "version": "a\0b"}, 422, "invalid_arguments"),
    ({"workflow": "greet", "tags": {"a\0": "b"}}, 422, "invalid_arguments"),
    ({"workflow": "greet", "input": {"name": 10**400}}, 422, "unstorable_value"),
    ({"workflow": "greet", "input": {"name": "x" * 2_100_000}}, 422, "unstorable_value"),
    ({"workflow": "greet", "deadline": "2030-01-01T00:00:00"}, 400, "invalid_request"),
    ({"workflow": "greet", "deadline": "0001-01-01T00:00:00+23:00"}, 400, "invalid_request"),
]


async def test_what_cannot_be_started_is_refused_and_leaves_nothing(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        for body, status, code in UNSTARTABLE:
            refused(await here.http.post("/runs", json=body), status, code)
        assert told(await here.http.get("/runs")) == {"runs": [], "cursor": None}


async def test_a_change_needs_the_version_that_was_seen(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        await here.start("sleeps", "r-1")
        run = await here.until("r-1", "suspended")
        current, other = f'"{run["version"]}"', f'"{run["version"] + 1}"'
        asked: list[tuple[str, str, dict[str, object]]] = [
            ("PATCH", "/runs/r-1", {"tags": {"a": "b"}}),
            ("POST", "/runs/r-1/pause", {}),
            ("POST", "/runs/r-1/resume", {}),
            ("POST", "/runs/r-1/cancel", {}),
        ]
        for method, path, body in asked:
            refused(await here.http.request(method, path, json=body), 428, "precondition_required")
            wrong = await here.http.request(method, path, json=body, headers={"if-match": other})
            about = refused(wrong, 412, "concurrent_modification")
            assert (about["run_id"], about["version"]) == ("r-1", run["version"])
            for nonsense in ("3", 'W/"3"', '"a"', '"1", "2"', '"99999999999999999999"'):
                odd = await here.http.request(method, path, json=body, headers={"if-match": nonsense})
                refused(odd, 400, "invalid_request")
        assert await here.run("r-1") == run
        changed = await here.http.patch("/runs/r-1", json={"tags": {"a": "b"}}, headers={"if-match": current})
        assert told(changed)["tags"] == {"a": "b"}
        assert changed.headers["etag"] == other
        refused(
            await here.http.post("/runs/r-1/cancel", json={}, headers={"if-match": current}),
            412,
            "concurrent_modification",
        )
        cancelled = await here.http.post("/runs/r-1/cancel", json={"reason": "enough"}, headers={"if-match": other})
        assert told(cancelled)["status"] == "cancelled"
        refused(await here.http.post("/runs/r-1/cancel", json={}, headers=ANY), 409, "run_finished")


async def test_a_deadline_is_set_and_taken_away(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("sleeps", "r-1")
        await here.until("r-1", "suspended")
        when = {"deadline": "2100-01-01T00:00:00Z"}
        assert told(await here.http.patch("/runs/r-1", json=when, headers=ANY))["deadline"] == "2100-01-01T00:00:00Z"
        assert told(await here.http.patch("/runs/r-1", json={"deadline": None}, headers=ANY))["deadline"] is None
        refused(await here.http.patch("/runs/r-1", json={}, headers=ANY), 422, "misuse")


async def test_a_run_is_paused_and_resumed_with_its_actor_in_the_audit(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("sleeps", "r-1")
        await here.until("r-1", "suspended")
        operator = await here.token("ann", "operate")
        paused = await here.http.post("/runs/r-1/pause", json={"reason": "lunch"}, headers={**ANY, **operator})
        assert told(paused)["hold"]["reason"] == "lunch"
        assert told(await here.http.get("/runs", params={"hold": "paused"}))["runs"][0]["id"] == "r-1"
        assert told(await here.http.post("/runs/r-1/resume", json={}, headers={**ANY, **operator}))["hold"] is None
        rows = told(await here.http.get("/runs/r-1/history"))["audit"]
        assert [(row["became"], row["actor"]) for row in rows[-2:]] == [("paused", "ann"), ("resumed", "ann")]


async def test_a_failed_run_is_retried(make_store: MakeStore) -> None:
    Luck.has_come = False
    async with site(make_store) as here:
        await here.start("fails", "r-1")
        failed = await here.until("r-1", "failed")
        assert failed["failure"]["message"] == "<b>no luck</b>"
        Luck.has_come = True
        told(await here.http.post("/runs/r-1/retry", json={}, headers={"if-match": f'"{failed["version"]}"'}))
        assert (await here.until("r-1", "succeeded"))["output"] == "done"
        refused(await here.http.post("/runs/r-1/retry", json={}, headers=ANY), 409, "run_not_retryable")


async def test_what_is_asked_of_a_run_that_is_not_there_is_not_found(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for path in (
            "",
            "/history",
            "/tree",
            "/published",
            "/published/x",
            "/streams",
            "/streams/x",
            "/audit",
            "/changes",
        ):
            assert refused(await here.http.get(f"/runs/nobody{path}"), 404, "run_not_found") == {"run_id": "nobody"}
        for verb in ("cancel", "retry", "pause", "resume"):
            refused(await here.http.post(f"/runs/nobody/{verb}", json={}, headers=ANY), 404, "run_not_found")
        refused(await here.http.patch("/runs/nobody", json={"tags": {}}, headers=ANY), 404, "run_not_found")
        refused(await here.http.post("/runs/nobody/events", json={"name": "x"}), 404, "run_not_found")


async def test_pages_have_every_run_once_and_filters_choose(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        ids = [f"r-{number:02}" for number in range(25)]
        for number, id in enumerate(ids):
            body = {"workflow": "greet", "id": id, "input": {"name": id}, "tags": {"third": str(number % 3)}}
            told(await here.http.post("/runs", json=body), 201)
        for id in ids:
            await here.until(id, "succeeded")
        await here.start("sleeps", "r-z")
        await here.until("r-z", "suspended")
        seen: list[str] = []
        cursor: str | None = None
        while True:
            params = {"limit": "7", **({} if cursor is None else {"cursor": cursor})}
            page = told(await here.http.get("/runs", params=params))
            assert len(page["runs"]) <= 7
            seen += [run["id"] for run in page["runs"]]
            if (cursor := page["cursor"]) is None:
                break
        assert seen == ["r-z", *reversed(ids)]

        async def found(**params: str | list[str]) -> list[str]:
            return [run["id"] for run in told(await here.http.get("/runs", params=params))["runs"]]

        assert await found(workflow="sleeps") == ["r-z"]
        assert await found(status=["suspended", "failed"]) == ["r-z"]
        assert await found(tag="third=1", limit="2") == ["r-22", "r-19"]
        assert await found(created_before="2001-01-01T00:00:00Z") == []
        assert len(await found(created_from="2001-01-01T00:00:00Z")) == 26
        for bad in ({"cursor": "x"},):
            refused(await here.http.get("/runs", params=bad), 422, "misuse")
        for worse in (
            {"limit": "0"},
            {"limit": "1001"},
            {"status": "odd"},
            {"tag": "x"},
            {"created_from": "2001-01-01"},
        ):
            refused(await here.http.get("/runs", params=worse), 400, "invalid_request")


async def test_children_values_and_streams_of_a_run_are_shown(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("family", "r-1")
        await here.until("r-1", "succeeded")
        tree = told(await here.http.get("/runs/r-1/tree"))
        assert tree["run"]["id"] == "r-1"
        assert [child["run"]["workflow"] for child in tree["children"]] == ["greet"]
        refused(await here.http.get("/runs/r-1/tree", params={"runs_max": "1"}), 422, "misuse")
        await here.start("pays", "r-2", order="o-1")
        await here.until("r-2", "suspended")
        assert told(await here.http.get("/runs/r-2/published")) == {"order": "o-1"}
        assert told(await here.http.get("/runs/r-2/published/order")) == {"key": "order", "value": "o-1"}
        refused(await here.http.get("/runs/r-2/published/other"), 404, "not_published")
        page = told(await here.http.get("/runs/r-2/streams/log"))
        assert [item["value"] for item in page["items"]] == ["waits"]
        assert told(await here.http.get("/runs/r-2/streams/log", params={"after": page["next"]}))["items"] == []


HOSTILE = [
    "a/b",
    "/",
    "../../etc/passwd",
    "%2F",
    "<script>alert(1)</script>",
    "' or 1=1 --",
    "ünï ☃ \U0001f600",
    "a?b#c&d=e",
    "x\r\nset-cookie: a=b",
    "x" * 500,
    "changes",
]


async def test_whatever_a_run_is_called_it_can_be_found(make_any_store: MakeStore) -> None:
    async with site(make_any_store) as here:
        for name in HOSTILE:
            body = {"workflow": "greet", "id": name, "input": {"name": name}, "tags": {name: name, "name": name}}
            started = await here.http.post("/runs", json=body)
            assert told(started, 201)["id"] == name
            path = f"/runs/{quote(name, safe='')}"
            assert started.headers["location"] == f"/api/v1{path}"
            assert "set-cookie" not in started.headers
            run = await here.until(quote(name, safe=""), "succeeded")
            assert (run["id"], run["output"], run["tags"][name]) == (name, f"hello {name}", name)
            assert told(await here.http.get(f"{path}/history"))["journal"] == []
            (listed,) = told(await here.http.get("/runs", params={"tag": f"name={name}"}))["runs"]
            assert listed["id"] == name
            refused(await here.http.post(f"{path}/cancel", json={"reason": name}, headers=ANY), 409, "run_finished")
