"""Sessions of whoever has shown the start-up token, which a server prints while there are no tokens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import httpx
import pytest

from perdure import Client
from perdure.dashboard import dashboard
from perdure.http import access, make_token, new_startup_token, serving
from perdure.ports import Store

MakeStore = Callable[[], Store]
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


@asynccontextmanager
async def started(make_store: MakeStore) -> AsyncGenerator[tuple[Client, str, httpx.AsyncClient]]:
    token = new_startup_token()
    async with Client(make_store(), poll_s=None) as client:
        options: dict[str, Any] = {"pages": dashboard(), "startup_token": token, "poll_s": 0.02}
        async with (
            serving(client, port=0, **options) as url,
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as browser,
        ):
            yield client, token, browser


async def signed_in(browser: httpx.AsyncClient, token: str) -> dict[str, str]:
    """The cookie of a new session."""
    browser.cookies.clear()
    assert (await browser.get("/ui/sign-in", params={"token": token})).status_code == 303
    found = {"cookie": f"perdure_session={browser.cookies['perdure_session']}"}
    browser.cookies.clear()
    return found


async def status(browser: httpx.AsyncClient, cookie: dict[str, str]) -> int:
    return (await browser.get("/ui/runs", headers=cookie)).status_code


async def test_signing_out_ends_the_session_and_no_other(make_store: MakeStore) -> None:
    async with started(make_store) as (_, token, browser):
        one, other = await signed_in(browser, token), await signed_in(browser, token)
        assert one != other
        assert token not in one["cookie"]
        assert (await status(browser, one), await status(browser, other)) == (200, 200)
        assert (await browser.post("/ui/sign-out", headers=FORM | one)).status_code == 303
        assert (await status(browser, one), await status(browser, other)) == (303, 200)
        assert await status(browser, await signed_in(browser, token)) == 200
        assert await status(browser, {"cookie": "perdure_session="}) == 303


async def test_an_open_page_ends_with_the_session(make_store: MakeStore) -> None:
    async with started(make_store) as (client, token, browser):
        cookie = await signed_in(browser, token)
        events = {"accept": "text/event-stream"} | cookie
        async with browser.stream("GET", "/ui/runs", headers=events) as stream:
            lines = stream.aiter_lines()
            await client.start("unknown", {}, version="", id="seen")
            while "seen" not in await anext(lines):
                pass
            assert (await browser.post("/ui/sign-out", headers=FORM | cookie)).status_code == 303
            async for _ in lines:  # It ends.
                pass


async def test_sessions_end_after_their_time_and_there_are_only_so_many(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(make_store) as (_, token, browser):
        first = await signed_in(browser, token)
        monkeypatch.setattr(access, "_STARTUP_SESSIONS_MAX", 3)
        for _ in range(2):
            await signed_in(browser, token)
        assert await status(browser, first) == 200
        last = await signed_in(browser, token)
        assert (await status(browser, first), await status(browser, last)) == (303, 200)
        now = monotonic()
        monkeypatch.setattr(access, "monotonic", lambda: now + access.STARTUP_SESSION_S + 1)
        assert await status(browser, last) == 303


async def test_the_first_token_ends_them(make_store: MakeStore) -> None:
    async with started(make_store) as (client, token, browser):
        cookie = await signed_in(browser, token)
        await make_token(client, "root", "admin")
        assert await status(browser, cookie) == 303
