"""Who may see the pages and use their forms: with tokens, and without."""

from __future__ import annotations

import hashlib
import re
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, expect

from perdure.dashboard import dashboard, renderer
from perdure.dashboard.gate import safe_target
from perdure.http import make_token, revoke_token
from perdure.http.tokens import Scope
from perdure.ports import Store
from tests.dashboard.site import Eyes, House, naps
from tests.http.site import Site, site

FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


@asynccontextmanager
async def guarded(make_store: Callable[[], Store], **options: Any) -> AsyncGenerator[tuple[Site, httpx.AsyncClient]]:
    async with (
        site(make_store, pages=dashboard(), **options) as found,
        httpx.AsyncClient(base_url=found.url, trust_env=False, timeout=60) as browser,
    ):
        yield found, browser


async def sign_in(site: Site, browser: httpx.AsyncClient, name: str, scope: str) -> httpx.Response:
    token = await make_token(site.client, name, scope)
    return await browser.post("/ui/sign-in", data={"token": token, "to": "/ui/runs?q=a%20b"}, headers=FORM)


@pytest.fixture
def make_store(tmp_path: Any) -> Callable[[], Store]:
    from perdure.storage import open_store

    return lambda: open_store(f"sqlite:///{tmp_path / 'site.db'}")


async def test_without_a_session_there_is_only_the_page_to_sign_in(make_store: Callable[[], Store]) -> None:
    async with guarded(make_store) as (found, browser):
        ops = found.client.engines.stats.ops  # The token that the site has was written by one.
        for path in ("/", "/ui", "/ui/runs?q=x", "/ui/runs/a%2Fb", "/ui/artifacts/x/content", "/ui/nothing"):
            answer = await browser.get(path)
            assert answer.status_code == 303, path
            assert answer.headers["location"].startswith("/ui/sign-in?to=")
            assert not answer.content
        for path in ("/ui/runs/x/cancel", "/ui/events", "/ui/many-runs", "/ui/definitions", "/ui/sign-out"):
            answer = await browser.post(path, data={"version": "1"}, headers=FORM)
            assert (answer.status_code, answer.headers["location"]) == (303, "/ui/sign-in")
        page = await browser.get("/ui/sign-in?to=https://elsewhere.example/")
        assert page.status_code == 200
        assert "elsewhere" not in page.text
        assert "script-src 'self'" in page.headers["content-security-policy"]
        assert "unsafe" not in page.headers["content-security-policy"]
        wrong = await browser.post("/ui/sign-in", data={"token": "perdure_root_wrong"}, headers=FORM)
        assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
        assert "perdure_root_wrong" not in wrong.text
        assert found.client.engines.stats.ops == ops


STATIC = Path(renderer.__file__).parent


async def test_no_page_is_shown_in_a_frame_or_loads_anything_from_elsewhere(make_store: Callable[[], Store]) -> None:
    async with guarded(make_store) as (found, browser):
        await sign_in(found, browser, "ann", "admin")
        for path in (
            "/ui",
            "/ui/runs",
            "/ui/runs/none",
            "/ui/sign-in",
            "/ui/none",
            "/ui/static/style.css",
            "/health/live",
        ):
            answer = await browser.get(path)
            assert answer.headers["x-frame-options"] == "DENY", path
            assert answer.headers["x-content-type-options"] == "nosniff", path
            if answer.headers["content-type"].startswith("text/html"):
                rules = dict(
                    rule.strip().split(" ", 1) for rule in answer.headers["content-security-policy"].split(";")
                )
                assert (rules["default-src"], rules["frame-ancestors"], rules["base-uri"]) == ("'none'",) * 3, path
                assert {source for rule in rules.values() for source in rule.split()} <= {"'none'", "'self'", "data:"}
    loaded = re.compile(
        r"""(?:src|href|action)=["']?(?:https?:)?//|url\(["']?(?:https?:)?//|@import|from ["']https?:"""
    )
    files = [file for kind in ("templates", "static") for file in (STATIC / kind).rglob("*") if file.is_file()]
    assert len(files) > 20
    assert [(file.name, loaded.findall(file.read_text())) for file in files if loaded.search(file.read_text())] == []


async def test_guessing_is_slow(make_store: Callable[[], Store]) -> None:
    async with guarded(make_store) as (_, browser):
        statuses = [
            (await browser.post("/ui/sign-in", data={"token": "x"}, headers=FORM)).status_code for _ in range(22)
        ]
        assert statuses[:20] == [401] * 20
        assert statuses[-1] == 429


async def test_a_session_is_for_the_pages_only_and_ends(make_store: Callable[[], Store]) -> None:
    async with guarded(make_store) as (found, browser):
        answer = await sign_in(found, browser, "ann", "operate")
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/runs?q=a%20b")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert "Path=/ui;" in cookie
        assert "perdure_ann" not in cookie
        assert (await browser.get("/ui/runs")).status_code == 200
        session = browser.cookies["perdure_session"]
        for headers in ({"cookie": f"perdure_session={session}"}, {"authorization": f"Bearer {session}"}):
            assert (await browser.get("/api/v1/runs", headers=headers)).status_code == 401
        assert (await browser.post("/ui/sign-out", headers=FORM)).status_code == 303
        stolen = await browser.get("/ui/runs", headers={"cookie": f"perdure_session={session}"})
        assert stolen.status_code == 303
        await sign_in(found, browser, "ann", "operate")
        session = browser.cookies["perdure_session"]
        assert await found.client.credentials.session(session) is None
        assert await found.client.credentials.session(hashlib.sha256(session.encode()).hexdigest()) is not None


async def test_a_token_that_is_revoked_or_replaced_ends_its_sessions(make_store: Callable[[], Store]) -> None:
    async with guarded(make_store) as (found, browser):
        for end in (
            lambda: revoke_token(found.client, "ann"),
            lambda: make_token(found.client, "ann", Scope.ADMIN),
        ):
            await sign_in(found, browser, "ann", "operate")
            assert (await browser.get("/ui/runs")).status_code == 200
            await end()
            assert (await browser.get("/ui/runs")).status_code == 303


async def test_an_open_page_is_not_kept_up_to_date_for_somebody_who_has_signed_out(
    make_store: Callable[[], Store],
) -> None:
    async with guarded(make_store) as (found, browser):
        await sign_in(found, browser, "ann", "read")
        async with browser.stream("GET", "/ui/runs", headers={"accept": "text/event-stream"}) as stream:
            lines = stream.aiter_lines()
            assert await anext(lines) == "retry: 1000"
            await revoke_token(found.client, "ann")
            assert [line async for line in lines][-1] == ""  # It ends.
        assert (await browser.get("/ui/runs", headers={"accept": "text/event-stream"})).status_code == 303


async def test_a_read_token_changes_nothing(make_store: Callable[[], Store]) -> None:
    async with guarded(make_store) as (found, browser):
        await found.start("sleeps", "s")
        await found.until("s", "suspended")
        await sign_in(found, browser, "eve", "read")
        page = await browser.get("/ui/runs/s")
        assert "Cancel…" not in page.text
        for path in (
            "/ui/runs/s/cancel",
            "/ui/runs/s/complete",
            "/ui/events",
            "/ui/topics",
            "/ui/many-runs",
            "/ui/definitions",
        ):
            answer = await browser.post(path, data={"version": "2", "name": "x", "do": "cancel"}, headers=FORM)
            assert answer.status_code == 403, path
        assert (await found.run("s"))["status"] == "suspended"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "https://elsewhere.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"sec-fetch-site": "none"},
    ],
)
async def test_a_form_of_another_page_does_nothing(
    make_store: Callable[[], Store], headers: dict[str, str]
) -> None:  # fmt: skip
    async with guarded(make_store) as (found, browser):
        await found.start("sleeps", "s")
        await found.until("s", "suspended")
        await sign_in(found, browser, "ann", "admin")
        sent = {"content-type": FORM["content-type"], **headers}
        version = str((await found.run("s"))["version"])
        refused = await browser.post("/ui/runs/s/cancel", data={"version": version}, headers=sent)
        assert refused.status_code == 403
        assert (await found.run("s"))["status"] == "suspended"
        own = {"content-type": FORM["content-type"], "origin": found.url}
        taken = await browser.post("/ui/runs/s/cancel", data={"version": version}, headers=own)
        assert taken.status_code == 303
        audit = (await found.http.get("/runs/s/history")).json()["audit"]
        assert audit[-1]["actor"] == "ann"


async def test_without_tokens_only_this_machine_sees_the_pages(make_store: Callable[[], Store]) -> None:
    from perdure import Client
    from perdure.http import serving

    async with (
        Client(make_store()) as client,
        serving(client, port=0, pages=dashboard()) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as browser,
    ):
        assert (await browser.get("/ui")).status_code == 200
        for headers in ({"host": "evil.example"}, {"x-forwarded-for": "10.0.0.1"}):
            answer = await browser.get("/ui", headers=headers)
            assert answer.status_code == 403
            assert answer.headers["content-type"].startswith("text/html")


async def test_a_link_from_elsewhere_finds_the_session(make_store: Callable[[], Store]) -> None:
    """A browser does not send the cookie with it: the page asks for itself once more, and then it does."""
    async with guarded(make_store) as (_, browser):
        answer = await browser.get("/ui/runs", headers={"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"})
        assert (answer.status_code, answer.headers["refresh"]) == (200, "0")
        assert "set-cookie" not in answer.headers


def test_signing_in_with_a_browser(house: House, browser: Browser) -> None:
    token = house.do(make_token(house.client, "ann", "operate"))
    house.do(house.engine.start(naps(3_600), id="hers"))
    house.until_status("hers", "suspended")
    context = browser.new_context(viewport={"width": 1280, "height": 860})
    page = context.new_page()
    eyes = Eyes(page, house.url)
    eyes.go("/ui/runs/hers?zoom=2")
    expect(page.locator("h1")).to_have_text("Sign in")
    page.fill("#token", "perdure_ann_nonsense")
    page.keyboard.press("Enter")
    expect(page.locator("[role=alert]")).to_have_text("This is not a valid token.")
    eyes.keep_and_check("sign-in")
    page.fill("#token", token)
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/runs/hers?zoom=2")
    page.wait_for_selector("[data-live-state=on]")
    page.click("text=Cancel…")
    page.click("dialog[open] >> text=Cancel the run")
    expect(page.locator("h1 + .status")).to_have_text("–cancelled")
    assert house.do(house.engine.handle("hers").audit())[-1].actor == "ann"
    page.click("text=Sign out")
    expect(page.locator("h1")).to_have_text("Sign in")
    context.close()
    assert not eyes.complaints


@pytest.mark.parametrize(
    ("wanted", "target"),
    [
        ("/ui/runs?status=failed&tag=a%3Db", "/ui/runs?status=failed&tag=a%3Db"),
        ("/ui/runs/ä€", "/ui/runs/%C3%A4%E2%82%AC"),
        ("/ui/runs\r\nset-cookie: a=b", "/ui/runs%0D%0Aset-cookie:%20a=b"),
        ("/ui/a\0b", "/ui/a%00b"),
        ("/ui/\ud800", "/ui/?"),
        ("//elsewhere.example/ui/x", "/ui"),
        ("///ui/x", "/ui"),
        ("////ui/x", "/ui"),
        ("/\\elsewhere.example", "/ui"),
        ("/ui/\\elsewhere.example", "/ui"),
        ("/ui/sign-in?to=/ui", "/ui"),
        ("/ui/static/x", "/ui"),
        ("/uix", "/ui"),
        ("https:/ui/x", "/ui"),
        ("http://[/ui/x", "/ui"),
        ("https://elsewhere.example/ui/x", "/ui"),
        ("javascript:alert(1)", "/ui"),
    ],
)
def test_after_signing_in_everybody_is_at_a_page_of_ours(wanted: str, target: str) -> None:
    found = safe_target(wanted)
    assert found.isascii()
    assert found.isprintable()
    assert found == target
