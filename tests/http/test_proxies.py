"""Whose tries are counted behind a reverse proxy: everybody's together, unless the proxy is trusted."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure import Client
from perdure.dashboard import dashboard
from perdure.errors import InvalidArguments
from perdure.http import create_app, make_token
from perdure.http.addresses import Proxies
from perdure.ports import Store

MakeStore = Callable[[], Store]
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
BAD = {"authorization": "Bearer perdure_root_guess"}


def forwarded(*values: str) -> list[tuple[bytes, bytes]]:
    return [(b"X-Forwarded-For", value.encode()) for value in values]


@pytest.mark.parametrize(
    ("trusted", "peer", "said", "client"),
    [
        ([], "10.0.0.7", ["1.2.3.4"], "10.0.0.7"),
        (["10.0.0.7"], "10.0.0.7", ["1.2.3.4"], "1.2.3.4"),
        (["10.0.0.0/8"], "10.0.0.7", ["1.2.3.4"], "1.2.3.4"),
        (["10.0.0.0/8"], "10.0.0.7", [], "10.0.0.7"),
        # Only who has connected to a proxy that is trusted counts, not what a client says of itself.
        (["10.0.0.0/8"], "10.0.0.7", ["6.6.6.6, 1.2.3.4"], "1.2.3.4"),
        (["10.0.0.0/8"], "10.0.0.7", ["6.6.6.6", "1.2.3.4"], "1.2.3.4"),
        (["10.0.0.0/8"], "10.0.0.7", ["6.6.6.6, 1.2.3.4, 10.0.0.9"], "1.2.3.4"),
        (["10.0.0.0/8"], "9.9.9.9", ["1.2.3.4"], "9.9.9.9"),
        (["10.0.0.0/8"], "10.0.0.7", ["10.0.0.8"], "10.0.0.8"),
        (["10.0.0.0/8"], "10.0.0.7", ["1.2.3.4, nonsense"], "10.0.0.7"),
        (["10.0.0.0/8"], "10.0.0.7", ["1.2.3.4, nonsense, 10.0.0.9"], "10.0.0.9"),
        (["10.0.0.0/8"], "10.0.0.7", ["1.2.3.4:5678"], "1.2.3.4"),
        (["::1"], "::1", ["[2001:db8::1]:80"], "2001:db8::/64"),
        (["::1"], "::1", ["2001:db8::ffff"], "2001:db8::/64"),
        (["10.0.0.7"], "::ffff:10.0.0.7", ["1.2.3.4"], "1.2.3.4"),
        (["10.0.0.7"], "10.0.0.7", [", ".join(["10.0.0.7"] * 5_000)], "10.0.0.7"),
        ([], None, ["1.2.3.4"], "None"),
        ([], "testclient", ["1.2.3.4"], "testclient"),
    ],
)
def test_whose_address_counts(trusted: list[str], peer: str | None, said: list[str], client: str) -> None:
    assert Proxies(trusted).client(peer, forwarded(*said)) == client


@pytest.mark.parametrize("wrong", [["proxy.internal"], ["10.0.0.0/40"], [""], "10.0.0.7"])
def test_what_is_no_address_cannot_be_trusted(wrong: Any) -> None:
    with pytest.raises(InvalidArguments, match="trusted"):
        create_app("memory://", trusted_proxies=wrong)


@asynccontextmanager
async def behind(make_store: MakeStore, **options: Any) -> AsyncGenerator[tuple[str, httpx.AsyncClient]]:
    """A server behind a proxy at 10.0.0.7; an admin's token."""
    async with Client(make_store(), poll_s=None) as client:
        token = await make_token(client, "root", "admin")
        transport = httpx.ASGITransport(create_app(client, pages=dashboard(), **options), client=("10.0.0.7", 4711))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            yield token, http


async def tries(http: httpx.AsyncClient, client: str, how: str) -> set[int]:
    said = {"x-forwarded-for": client}
    if how == "token":
        return {(await http.get("/api/v1/runs", headers=BAD | said)).status_code for _ in range(30)}
    if how == "session":
        cookie = {"cookie": "perdure_session=guess"}
        return {(await http.get("/ui/runs", headers=cookie | said)).status_code for _ in range(30)}
    sent = {"token": "perdure_root_guess"}
    return {(await http.post("/ui/sign-in", data=sent, headers=FORM | said)).status_code for _ in range(30)}


@pytest.mark.parametrize("how", ["token", "session", "form"])
async def test_tries_are_counted_for_each_client_if_the_proxy_is_trusted(make_store: MakeStore, how: str) -> None:
    refused = 303 if how == "session" else 401
    async with behind(make_store, trusted_proxies=["10.0.0.0/24"]) as (_, http):
        assert await tries(http, "1.2.3.4", how) == {refused, 429}
        assert 429 in await tries(http, "9.9.9.9, 1.2.3.4", how)
        assert await tries(http, "1.2.3.5", how) == {refused, 429}  # with a burst of its own


@pytest.mark.parametrize("how", ["token", "session", "form"])
async def test_what_a_proxy_says_that_is_not_trusted_gives_nobody_more_tries(make_store: MakeStore, how: str) -> None:
    async with behind(make_store) as (token, http):
        assert 429 in await tries(http, "1.2.3.4", how)
        assert await tries(http, "1.2.3.5", how) == {429}
        # Whoever has something valid to show does not notice.
        assert (await http.get("/api/v1/runs", headers={"authorization": f"Bearer {token}"})).status_code == 200
        assert (await http.post("/ui/sign-in", data={"token": token}, headers=FORM)).status_code == 303


async def test_a_trusted_proxy_makes_nobody_local(make_store: MakeStore) -> None:
    async with Client(make_store(), poll_s=None) as client:
        transport = httpx.ASGITransport(create_app(client, trusted_proxies=["10.0.0.7"]), client=("10.0.0.7", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            for said in ({}, {"x-forwarded-for": "127.0.0.1"}):
                answer = await http.get("/api/v1/runs", headers=said)
                assert (answer.status_code, answer.json()["code"]) == (403, "local_only")
