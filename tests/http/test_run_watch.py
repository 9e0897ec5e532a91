"""Changes as they happen, and going on where one was."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from perdure.ports import Store
from tests.http.site import Paid, Site, refused, site, told

MakeStore = Callable[[], Store]


class Listener:
    """Reads server-sent events as a browser does: it remembers the last id."""

    def __init__(self, lines: Any) -> None:
        self._lines = lines
        self.last_id: str | None = None

    async def next(self) -> tuple[str, Any]:
        kind, data = "", ""
        async for line in self._lines:
            field, _, value = line.partition(": ")
            match field:
                case "id":
                    self.last_id = value
                case "event":
                    kind = value
                case "data":
                    data = value
                case "" if kind:
                    return kind, msgspec.json.decode(data)
                case _:
                    pass
        raise EOFError

    async def rest(self) -> list[tuple[str, Any]]:
        found = []
        try:
            while True:
                found.append(await self.next())
        except EOFError:
            return found


@asynccontextmanager
async def listening(here: Site, path: str, last_id: str | None = None, **params: str) -> AsyncGenerator[Listener]:
    headers = {} if last_id is None else {"last-event-id": last_id}
    async with here.http.stream("GET", path, headers=headers, params=params) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield Listener(response.aiter_lines())


async def test_every_change_of_a_run_comes_once_and_in_order(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("pays", "r-1", order="o-1")
        await here.until("r-1", "suspended")
        async with listening(here, "/runs/r-1/changes") as first:
            seen = [await first.next() for _ in range(2)]
        await here.http.post("/runs/r-1/pause", json={}, headers={"if-match": "*"})
        await here.http.post("/runs/r-1/resume", json={}, headers={"if-match": "*"})
        async with listening(here, "/runs/r-1/changes", first.last_id) as second:
            await here.engine.send(Paid(amount=3), to="r-1")
            seen += await second.rest()
        audit = told(await here.http.get("/runs/r-1/history"))["audit"]
        assert [data for _, data in seen] == audit
        assert {kind for kind, _ in seen} == {"change"}
        assert audit[-1]["became"] == "succeeded"
        over = await here.http.get("/runs/r-1/changes", headers={"last-event-id": second.last_id or ""})
        assert over.status_code == 204


async def test_a_stream_is_followed_and_gone_on_with(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("pays", "r-1", order="o-1")
        async with listening(here, "/runs/r-1/streams/log/follow") as first:
            kind, item = await first.next()
            assert (kind, item["value"], first.last_id) == ("item", "waits", "1")
        async with listening(here, "/runs/r-1/streams/log/follow", first.last_id) as second:
            await here.engine.send(Paid(amount=3), to="r-1")
            assert [item["value"] for _, item in await second.rest()] == ["paid"]
        over = await here.http.get("/runs/r-1/streams/log/follow", headers={"last-event-id": "2"})
        assert over.status_code == 204
        refused(await here.http.get("/runs/nobody/streams/log/follow"), 404, "run_not_found")


async def test_a_list_is_followed_and_gone_on_with(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for id in ("r-1", "r-2"):
            await here.start("sleeps", id)
            await here.until(id, "suspended")
        async with listening(here, "/runs:changes", status="suspended") as first:
            assert [(await first.next())[1]["id"] for _ in range(2)] == ["r-2", "r-1"]
            assert await first.next() == ("page", {"ids": ["r-2", "r-1"]})
        await here.start("sleeps", "r-3")
        new = await here.until("r-3", "suspended")
        await here.engine.handle("r-1").cancel()
        async with listening(here, "/runs:changes", first.last_id, status="suspended") as second:
            kind, run = await second.next()
            assert (kind, run["id"], run["version"]) == ("run", "r-3", new["version"])
            assert await second.next() == ("page", {"ids": ["r-3", "r-2"]})
            await here.http.patch("/runs/r-2", json={"tags": {"a": "b"}}, headers={"if-match": "*"})
            kind, run = await second.next()
            assert (kind, run["id"], run["tags"]) == ("run", "r-2", {"a": "b"})
        for nonsense in ("x", "é", "AAAA", "=" * 100):
            headers = {b"last-event-id": nonsense.encode("latin-1")}
            async with here.http.stream("GET", "/runs:changes", headers=headers) as response:
                assert response.status_code == 200
                assert (await Listener(response.aiter_lines()).next())[0] == "run"


async def test_what_is_wrong_with_a_request_is_told_before_the_stream_begins(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        refused(await here.http.get("/runs:changes", params={"limit": "101"}), 400, "invalid_request")
        refused(await here.http.get("/runs:changes", params={"created_from": "2001-01-01"}), 400, "invalid_request")


async def test_a_stream_ends_after_its_time(make_store: MakeStore) -> None:
    async with site(make_store, stream_s_max=0.05) as here, listening(here, "/runs:changes") as listener:
        assert await listener.rest() == [("page", {"ids": []})]


async def test_there_are_only_so_many_streams(make_store: MakeStore) -> None:
    async with site(make_store, streams_max=1) as here:
        async with listening(here, "/runs:changes") as first:
            await first.next()
            refused(await here.http.get("/runs:changes"), 429, "too_many_streams")
        while (await here.http.get("/metrics".join([here.url, ""]))).text.find("perdure_http_streams 0\n") < 0:
            pass
        async with listening(here, "/runs:changes") as second:
            await second.next()


async def test_streams_end_when_the_server_stops(make_store: MakeStore) -> None:
    async with httpx.AsyncClient(trust_env=False) as http:
        async with site(make_store) as here:
            request = http.build_request("GET", f"{here.url}/api/v1/runs:changes", headers=here.http.headers)
            response = await http.send(request, stream=True)
            listener = Listener(response.aiter_lines())
            await listener.next()
        assert await listener.rest() == []
        await response.aclose()
