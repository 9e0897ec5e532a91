"""Who may ask, and for what."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure import Client
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, Misuse, RecordNotFound
from perdure.http import create_app, make_token, revoke_token, serve, serving, tokens
from perdure.http.rate_limit import CALLERS_MAX, Pace
from perdure.ports import Store
from perdure.storage.memory import MemoryStore
from tests.http.site import JSON, refused, site, told

MakeStore = Callable[[], Store]


@asynccontextmanager
async def open_house(**options: Any) -> AsyncGenerator[tuple[AnyClient, httpx.AsyncClient]]:
    """A server for which there are no tokens, and somebody on the same machine."""
    async with (
        Client(MemoryStore()) as client,
        serving(client, port=0, **options) as url,
        httpx.AsyncClient(base_url=f"{url}/api/v1", trust_env=False) as http,
    ):
        yield client, http


def paths_of(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [(method.upper(), path) for path, item in document["paths"].items() for method in item]


def filled(path: str) -> str:
    return path.replace("{", "").replace("}", "")


async def test_without_a_token_nothing_but_health_answers(make_store: MakeStore) -> None:
    async with site(make_store) as here, httpx.AsyncClient(base_url=here.url, trust_env=False) as stranger:
        document = told(await here.http.get("/openapi.json"))
        for method, path in [*paths_of(document), ("GET", "/api/v1/openapi.json"), ("GET", "/"), ("GET", "/nothing")]:
            answer = await stranger.request(method, filled(path), headers=JSON)
            if path.startswith("/health/"):
                assert told(answer) == {"status": "ok"}
            elif answer.status_code != 429:
                refused(answer, 401, "unauthenticated")
                assert answer.headers["www-authenticate"].startswith("Bearer")


NO_TOKENS: list[dict[str, str]] = [
    {},
    {"authorization": "Bearer"},
    {"authorization": "Bearer perdure_root_wrong"},
    {"authorization": "Bearer perdure_nobody_x"},
    {"authorization": "Bearer perdure_root_"},
    {"authorization": "Bearer \u00ff"},
    {"authorization": "Basic cm9vdDp4"},
    {"cookie": "authorization=TOKEN; token=TOKEN"},
    {"x-forwarded-for": "127.0.0.1"},
]


async def test_what_is_no_token_lets_nobody_in() -> None:
    async with Client(MemoryStore()) as client:
        token = await make_token(client, "root", "admin")
        async with serving(client, port=0) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            for header in NO_TOKENS:
                given = {
                    name.encode(): value.replace("TOKEN", token).encode("latin-1") for name, value in header.items()
                }
                refused(await http.get("/api/v1/runs", headers=given), 401, "unauthenticated")
            as_parameter = await http.get("/api/v1/runs", params={"token": token, "access_token": token})
            refused(as_parameter, 401, "unauthenticated")


async def test_a_read_token_looks_at_everything_and_changes_nothing(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("sleeps", "r-1")
        before = await here.until("r-1", "suspended")
        reader = {**await here.token("reader", "read"), **JSON, "if-match": "*"}
        document = told(await here.http.get("/openapi.json"))
        changing = [(method, path) for method, path in paths_of(document) if method != "GET"]
        assert len(changing) > 15
        for method, path in changing:
            address = here.url + filled(path).replace("run_id", "r-1")
            refused(await here.http.request(method, address, json={}, headers=reader), 403, "forbidden")
        assert await here.run("r-1") == before
        refused(await here.http.get("/tokens", headers=reader), 403, "forbidden")
        for path in ("/runs", "/runs/r-1", "/definitions", "/engines", "/events", "/tasks", "/artifacts"):
            told(await here.http.get(path, headers=reader))


async def test_an_operator_makes_no_tokens_and_an_admin_does(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        operator = await here.token("ann", "operate")
        body = {"name": "mallory", "scope": "admin"}
        refused(await here.http.post("/tokens", json=body, headers=operator), 403, "forbidden")
        refused(await here.http.delete("/tokens/root", headers=operator), 403, "forbidden")
        refused(await here.http.post("/tokens", json={"name": "Not This", "scope": "read"}), 400, "invalid_request")
        refused(await here.http.post("/tokens", json={"name": "x", "scope": "all"}), 400, "invalid_request")
        made = told(await here.http.post("/tokens", json={"name": "grafana", "scope": "read"}), 201)
        header = {"authorization": f"Bearer {made['token']}"}
        told(await here.http.get("/runs", headers=header))
        listed = told(await here.http.get("/tokens"))
        assert {one["name"]: (one["scope"], one["made_by"]) for one in listed} == {
            "ann": ("operate", "api"),
            "grafana": ("read", "root"),
            "root": ("admin", "api"),
        }
        assert made["token"] not in str(listed)
        assert told(await here.http.delete("/tokens/grafana"))["revoked"] is True
        refused(await here.http.get("/runs", headers=header), 401, "unauthenticated")
        refused(await here.http.delete("/tokens/nobody"), 404, "record_not_found")


async def test_tokens_are_hashed_at_rest_and_a_new_one_replaces_the_old(tmp_path: Path) -> None:
    file = tmp_path / "a.db"
    async with Client(f"sqlite:///{file}") as client:
        token = await make_token(client, "root", "admin")
        secret = token.removeprefix("perdure_root_")
        assert len(secret) >= 43
        again = await make_token(client, "root", "read")
        async with serving(client, port=0) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
            old = await http.get("/api/v1/runs", headers={"authorization": f"Bearer {token}"})
            refused(old, 401, "unauthenticated")
            told(await http.get("/api/v1/runs", headers={"authorization": f"bearer {again}"}))
        await revoke_token(client, "root")
        await revoke_token(client, "root")
        assert [(one.name, one.revoked) for one in await tokens(client)] == [("root", True)]
        with pytest.raises(RecordNotFound):
            await revoke_token(client, "nobody")
        with pytest.raises(InvalidArguments):
            await make_token(client, "a_b", "read")
        with pytest.raises(InvalidArguments):
            await make_token(client, "a", "write")
    written = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert secret.encode() not in written


async def test_without_tokens_the_machine_itself_may_do_everything() -> None:
    async with open_house() as (client, http):
        await client.engines.list()
        body = {"workflow": "later", "version": "", "id": "r-1"}
        assert told(await http.post("/runs", json=body), 201)["status"] == "created"
        assert (await client.handle("r-1").history()).audit[0].actor == "http"


FOR_OTHERS = [
    {"host": "evil.example"},
    {"host": "evil.example:80"},
    {"host": "127.0.0.1.evil.example"},
    {"x-forwarded-for": "10.0.0.1"},
    {"forwarded": "for=10.0.0.1"},
]


async def test_without_tokens_what_was_meant_for_others_is_refused() -> None:
    """A name that leads here (DNS rebinding), and a proxy in front of it."""
    async with open_house() as (_, http):
        for header in FOR_OTHERS:
            refused(await http.get("/runs", headers=header), 403, "local_only")
        told(await http.get("/runs", headers={"host": "localhost:99"}))
        told(await http.get("/runs", headers={"host": "[::1]:99"}))


async def test_without_tokens_an_application_elsewhere_refuses_other_machines() -> None:
    """Whatever serves the application: it looks at the address itself."""
    async with Client(MemoryStore()) as client:
        app = create_app(client)
        for peer, status in (("10.0.0.7", 403), ("127.0.0.1", 200), ("::1", 200)):
            transport = httpx.ASGITransport(app, client=(peer, 1))
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
                assert (await http.get("/api/v1/runs")).status_code == status
                told(await http.get("/health/live"))


async def test_with_the_first_token_everybody_needs_one() -> None:
    async with open_house() as (client, http):
        made = told(await http.post("/tokens", json={"name": "root", "scope": "admin"}), 201)
        refused(await http.get("/runs"), 401, "unauthenticated")
        told(await http.get("/runs", headers={"authorization": f"Bearer {made['token']}"}))
        await revoke_token(client, "root")
        refused(await http.get("/runs"), 401, "unauthenticated")
        async with serving(client, port=0) as url:
            refused(await http.get(f"{url}/api/v1/runs"), 401, "unauthenticated")


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
async def test_it_does_not_listen_to_others_without_a_token(host: str) -> None:
    store = MemoryStore()
    async with Client(store) as client:
        with pytest.raises(Misuse, match=r"does not listen on .* without a token"):
            await serve(client, host=host, port=0)
        await make_token(client, "root", "admin")
        await revoke_token(client, "root")
        with pytest.raises(Misuse, match="does not listen on"):
            await serve(client, host=host, port=0)


async def test_with_a_token_it_listens_to_others_and_opens_its_own_client(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    async with Client(url) as client:
        token = await make_token(client, "root", "read")
    async with serving(url, host="0.0.0.0", port=0) as address:
        local = address.replace("0.0.0.0", "127.0.0.1")
        async with httpx.AsyncClient(base_url=local, trust_env=False) as http:
            told(await http.get("/health/ready"))
            refused(await http.get("/api/v1/runs"), 401, "unauthenticated")
            told(await http.get("/api/v1/runs", headers={"authorization": f"Bearer {token}", "host": "shop.example"}))


async def test_it_says_how_it_is_open(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "perdure.http")
    async with open_house() as (client, _):
        assert "nobody else can reach it" in caplog.text
        await make_token(client, "root", "admin")
        async with serving(client, port=0):
            assert "every request needs a token" in caplog.text
        await revoke_token(client, "root")
        async with serving(client, port=0):
            assert "no token is valid" in caplog.text


async def test_serve_goes_on_until_it_is_cancelled() -> None:
    async with Client(MemoryStore()) as client:
        serving_on = asyncio.ensure_future(serve(client, port=0))
        await asyncio.sleep(0)
        serving_on.cancel()
        with pytest.raises(asyncio.CancelledError):
            await serving_on


# Pages elsewhere.


async def test_a_page_elsewhere_changes_nothing_on_a_machine_without_tokens() -> None:
    async with open_house() as (client, http):
        body = {"workflow": "later", "version": ""}
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1"):
            refused(await http.post("/runs", json=body, headers={"origin": origin}), 403, "origin_refused")
            refused(await http.delete("/dead-letters/x", headers={"origin": origin}), 403, "origin_refused")
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
            headers = {"content-type": kind} if kind else {}
            answer = await http.post("/runs", content=b'{"workflow": "later", "version": ""}', headers=headers)
            refused(answer, 415, "unsupported_media_type")
        assert (await client.runs.list()).runs == []
        own = f"http://{http.base_url.host}:{http.base_url.port}"
        told(await http.post("/runs", json=body, headers={"origin": own}), 201)


async def test_other_origins_may_ask_only_if_they_are_named(make_store: MakeStore) -> None:
    shop = "https://shop.example"
    preflight = {"access-control-request-method": "POST", "access-control-request-headers": "authorization,if-match"}
    async with site(make_store) as here:
        answer = await here.http.options("/runs", headers={"origin": shop, **preflight})
        assert not [name for name in answer.headers if name.startswith("access-control-")]
    async with site(make_store, origins=[shop]) as here, httpx.AsyncClient(trust_env=False) as page:
        allowed = await page.options(f"{here.url}/api/v1/runs", headers={"origin": shop, **preflight})
        assert allowed.status_code == 204
        assert allowed.headers["access-control-allow-origin"] == shop
        assert allowed.headers["access-control-allow-headers"] == "authorization,if-match"
        got = await here.http.get("/runs", headers={"origin": shop})
        assert (got.headers["access-control-allow-origin"], got.headers["vary"]) == (shop, "origin")
        assert "access-control-allow-credentials" not in got.headers
        other = await here.http.get("/runs", headers={"origin": "https://evil.example"})
        assert "access-control-allow-origin" not in other.headers
        stranger = await page.options(
            f"{here.url}/api/v1/runs", headers={"origin": "https://evil.example", **preflight}
        )
        refused(stranger, 401, "unauthenticated")


# How much, how often.


async def test_a_body_that_is_too_large_is_refused(make_store: MakeStore) -> None:
    async with site(make_store, body_bytes_max=1000) as here:
        large = {"workflow": "greet", "input": {"name": "x" * 1000}}
        refused(await here.http.post("/runs", json=large), 413, "body_too_large")

        async def parts() -> AsyncGenerator[bytes]:
            yield b'{"workflow": "greet", "input": {"name": "'
            for _ in range(100):
                yield b"x" * 100

        refused(await here.http.post("/runs", content=parts(), headers=JSON), 413, "body_too_large")
        assert told(await here.http.get("/runs"))["runs"] == []


NO_JSON = [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"workflow": "\\ud800"}', b"[" * 10_000]
NO_PATHS = ["/runs/%00", "/runs?workflow=%00", "/runs/%FF", "/runs/%EF%B7%90", "/runs?tag=%FF"]


async def test_what_is_no_json_and_what_nothing_can_be_called_is_refused(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for body in NO_JSON:
            refused(await here.http.post("/runs", content=body, headers=JSON), 400, "invalid_request")
        for path in NO_PATHS:
            refused(await here.http.get(path), 400, "invalid_request")


async def test_paths_and_methods_that_are_not_there(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        refused(await here.http.get("/nothing"), 404, "not_found")
        refused(await here.http.get("/runs/x/nothing"), 404, "not_found")
        wrong = await here.http.delete("/runs")
        refused(wrong, 405, "method_not_allowed")
        assert "GET" in wrong.headers["allow"]


async def test_who_asks_too_often_is_told_when_to_come_back() -> None:
    async with open_house(requests_per_s=0.5, requests_burst=3) as (_, http):
        for _ in range(3):
            told(await http.get("/runs"))
        answer = await http.get("/runs")
        refused(answer, 429, "too_many_requests")
        assert answer.headers["retry-after"] in {"1", "2"}


async def test_who_tries_tokens_is_slowed_down_and_nobody_else_is(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        wrong = {"authorization": "Bearer perdure_root_x"}
        codes = [(await here.http.get("/runs", headers=wrong)).status_code for _ in range(30)]
        assert set(codes) == {401, 429}
        told(await here.http.get("/runs"))


def test_a_caller_has_a_burst_and_then_so_many_a_second() -> None:
    now = [0.0]
    pace = Pace(2, 3, lambda: now[0])
    assert [pace.wait_s("a") for _ in range(4)] == [0, 0, 0, 1]
    assert pace.wait_s("b") == 0
    now[0] = 0.5
    assert [pace.wait_s("a") for _ in range(2)] == [0, 1]
    now[0] = 100
    assert [pace.wait_s("a") for _ in range(4)] == [0, 0, 0, 1]


def test_only_so_many_callers_are_remembered() -> None:
    pace = Pace(1, 1, lambda: 0.0)
    assert pace.wait_s("first") == 0
    for number in range(CALLERS_MAX):
        pace.wait_s(str(number))
    assert len(pace._left) == CALLERS_MAX
    assert pace.wait_s("first") == 0
