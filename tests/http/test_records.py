"""Records over HTTP: stored, listed and read by version."""

from __future__ import annotations

from collections.abc import Callable

from perdure.ports import Store
from tests.http.site import refused, site, told

MakeStore = Callable[[], Store]


async def test_a_record_has_versions(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        path = "/records/prompt/greeting%2Fformal"
        first = told(await here.http.put(path, json={"body": {"text": "hello"}}))
        assert (first["name"], first["version"], first["actor"]) == ("greeting/formal", 1, "root")
        assert told(await here.http.put(path, json={"body": {"text": "hello"}}))["version"] == 1, "the same adds none"
        assert told(await here.http.put(path, json={"body": ["hi"]}))["version"] == 2
        assert told(await here.http.get(path))["body"] == ["hi"]
        assert told(await here.http.get(path, params={"version": 1}))["body"] == {"text": "hello"}
        refused(await here.http.get(path, params={"version": 3}), 404, "record_not_found")
        refused(await here.http.get("/records/prompt/gone"), 404, "record_not_found")
        refused(await here.http.put(path, json={}), 400, "invalid_request")


async def test_records_of_a_kind_are_listed_in_pages(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for name in ("a", "b", "c"):
            told(await here.http.put(f"/records/prompt/{name}", json={"body": name}))
        page = told(await here.http.get("/records/prompt", params={"limit": 2}))
        assert ([one["name"] for one in page["records"]], page["cursor"]) == (["a", "b"], "b")
        rest = told(await here.http.get("/records/prompt", params={"limit": 2, "after": page["cursor"]}))
        assert ([one["body"] for one in rest["records"]], rest["cursor"]) == (["c"], None)
        assert told(await here.http.get("/records/other"))["records"] == []


async def test_perdures_own_records_can_be_read_and_not_written(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        told(await here.http.post("/topics/approvals/handlers", json={"name": "boss"}), 201)
        own = told(await here.http.get("/records/perdure.handler"))["records"]
        assert [(one["name"], one["actor"]) for one in own] == [("approvals/boss", "root")]
        refused(await here.http.put("/records/perdure.handler/approvals%2Fboss", json={"body": {}}), 403, "forbidden")
