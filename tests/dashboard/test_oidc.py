"""Signing in through a provider: a real one, on this machine, with the code flow from the first page to the last."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from base64 import urlsafe_b64encode
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from joserfc import jwt
from joserfc.jwk import KeySet, RSAKey

from perdure import Client
from perdure.dashboard import Oidc, dashboard
from perdure.dashboard.oidc import OidcProvider
from perdure.dashboard.sessions import NoSession, close_session
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments
from perdure.http import create_app, make_token, serving
from perdure.ports import Store, SystemClock
from tests.dashboard.provider import Provider, running
from tests.http.test_tokens import MovedClock

# The provider's own code, not ours.
pytestmark = pytest.mark.filterwarnings("ignore:get_jwt_config:DeprecationWarning")

MakeStore = Callable[[], Store]
ANN = {"email": "ann@example.com", "email_verified": True, "groups": ["ops", "tennis"]}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}


@pytest.fixture(scope="module")
def provider() -> Generator[Provider]:
    with running() as made:
        yield made


@asynccontextmanager
async def site(
    make_store: MakeStore, config: Oidc, clock: SystemClock | None = None, **options: Any
) -> AsyncGenerator[tuple[AnyClient, httpx.AsyncClient]]:
    async with Client(make_store(), poll_s=None, clock=clock or SystemClock()) as client:
        transport = httpx.ASGITransport(create_app(client, pages=dashboard(oidc=config), **options))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as browser:
            yield client, browser


async def begun(browser: httpx.AsyncClient, to: str = "/ui/runs") -> str:
    """The address of the provider's page."""
    answer = await browser.get("/ui/sign-in/oidc", params={"to": to})
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    return str(answer.headers["location"])


async def agreed(address: str, sub: str = "ann", **form: str) -> str:
    """Where the provider sends the browser back to."""
    async with httpx.AsyncClient(trust_env=False) as http:
        answer = await http.post(address, data={"sub": sub} | form)
    assert answer.status_code in (302, 303), answer.text
    return str(answer.headers["location"])


async def signed_in(browser: httpx.AsyncClient, sub: str = "ann") -> httpx.Response:
    return await browser.get(await agreed(await begun(browser), sub))


def one(address: str, name: str) -> str:
    [found] = parse_qs(urlsplit(address).query)[name]
    return found


async def test_somebody_whom_the_provider_knows_gets_in_and_is_named_in_the_audit(
    make_store: MakeStore, provider: Provider
) -> None:
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config()) as (client, browser):
        assert (await browser.get("/ui/runs")).status_code == 303  # Also without any token.
        assert "Sign in with Example" in (await browser.get("/ui/sign-in")).text
        address = await begun(browser)
        assert one(address, "response_type") == "code"
        assert one(address, "code_challenge_method") == "S256"
        answer = await browser.get(await agreed(address))
        assert (answer.status_code, answer.headers["location"]) == (303, "/ui/runs")
        assert "SameSite=Strict" in answer.headers["set-cookie"]
        # The verifier is what the challenge was made of, and neither was on its way before.
        [verifier] = provider.tokens_asked[-1]["code_verifier"]
        challenge = urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        assert one(address, "code_challenge") == challenge
        page = await browser.get("/ui/runs")
        assert page.status_code == 200
        assert "oidc:ann@example.com" in page.text
        await client.start("unknown", {}, version="", id="r")
        cancelled = await browser.post("/ui/runs/r/cancel", data={"version": "1", "sure": "yes"}, headers=FORM)
        assert cancelled.status_code in (200, 303), cancelled.text
        assert (await client.handle("r").audit())[-1].actor == "oidc:ann@example.com"
        session = browser.cookies["perdure_session"]
        await make_token(client, "root", "admin")
        for headers in ({"cookie": f"perdure_session={session}"}, {"authorization": f"Bearer {session}"}):
            assert (await browser.get("/api/v1/runs", headers=headers)).status_code == 401
        assert (await browser.get("/ui/runs")).status_code == 200
        assert (await browser.post("/ui/sign-out", headers=FORM)).status_code == 303
        stolen = await browser.get("/ui/runs", headers={"cookie": f"perdure_session={session}"})
        assert stolen.status_code == 303


async def test_an_address_counts_only_if_the_provider_has_verified_it(
    make_store: MakeStore, provider: Provider
) -> None:
    for verified in ({}, {"email_verified": False}, {"email_verified": "true"}):
        provider.knows("mallory", email="root@example.com", **verified)
        async with site(make_store, provider.config()) as (_, browser):
            assert (await signed_in(browser, "mallory")).status_code == 401
        async with site(make_store, provider.config(trust_unverified_email=True)) as (_, browser):
            assert (await signed_in(browser, "mallory")).status_code == 303


async def test_a_session_of_a_provider_lasts_while_somebody_looks_at_a_page(
    make_store: MakeStore, provider: Provider
) -> None:
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config()) as (client, browser):
        await signed_in(browser, "ann")
        session = browser.cookies["perdure_session"]
        events = {"accept": "text/event-stream", "cookie": f"perdure_session={session}"}
        async with (
            serving(client, port=0, pages=dashboard(oidc=provider.config()), poll_s=0.02) as url,
            httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as http,
            http.stream("GET", "/ui/runs", headers=events) as stream,
        ):
            lines = stream.aiter_lines()
            await client.start("unknown", {}, version="", id="seen")
            while "seen" not in await anext(lines):
                pass
            await close_session(client, session)
            async for _ in lines:  # It ends.
                pass


async def test_claims_say_what_somebody_may_do(make_store: MakeStore, provider: Provider) -> None:
    provider.knows("eve", email="eve@example.com", groups=["staff"])
    provider.knows("root", email="root@example.com", email_verified=True)
    provider.knows("nobody", email="nobody@example.com", groups=["tennis"])
    async with site(make_store, provider.config()) as (client, browser):
        await client.start("unknown", {}, version="", id="r")
        assert (await signed_in(browser, "eve")).status_code == 303
        page = await browser.get("/ui/runs/r")
        assert "oidc-id:eve" in page.text
        assert "eve@example.com" not in page.text  # Nobody has checked that it is hers.
        refused = await browser.post("/ui/runs/r/cancel", data={"version": "1"}, headers=FORM)
        assert refused.status_code == 403
        browser.cookies.clear()
        stranger = await signed_in(browser, "nobody")
        assert stranger.status_code == 401
        assert "perdure_session" not in browser.cookies
        assert "none of your claims has a scope here" in stranger.text
        browser.cookies.clear()
        assert (await signed_in(browser, "root")).status_code == 303


async def test_a_sign_in_ends_once_and_in_the_browser_that_began_it(make_store: MakeStore, provider: Provider) -> None:
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config()) as (client, browser):
        back = await agreed(await begun(browser))
        kept = browser.cookies["perdure_oidc"]
        browser.cookies.clear()
        assert (await browser.get(back)).status_code == 401  # Somebody was sent a link that ends another's sign-in.
        other = {"cookie": "perdure_oidc=other"}
        assert (await browser.get(back, headers=other)).status_code == 401
        mine = {"cookie": f"perdure_oidc={kept}"}
        assert (await browser.get(back, headers=mine)).status_code == 303
        again = await browser.get(back, headers=mine)
        assert again.status_code == 401
        assert "too long ago" in again.text
        # A sign-in that is under way is no session.
        for name in ("perdure_session", "perdure_oidc"):
            await begun(browser)
            state = browser.cookies["perdure_oidc"]
            browser.cookies.clear()
            assert (await browser.get("/ui/runs", headers={"cookie": f"{name}={state}"})).status_code == 303
        # Beginning writes nothing, so nothing is left of those that do not end.
        far = client.credentials.now() + timedelta(days=1) // timedelta(microseconds=1)
        assert await client.session.store.purge_sessions(at=far, limit=100) == 2


async def test_a_sign_in_is_too_late_after_ten_minutes(make_store: MakeStore, provider: Provider) -> None:
    provider.knows("ann", **ANN)
    clock = MovedClock()
    async with site(make_store, provider.config(), clock=clock) as (_, browser):
        late, timely = await agreed(await begun(browser)), browser.cookies["perdure_oidc"]
        clock.on = timedelta(minutes=10, seconds=1)
        answer = await browser.get(late)
        assert (answer.status_code, "too long ago" in answer.text) == (401, True)
        clock.on = timedelta(minutes=9)
        assert (await browser.get(late, headers={"cookie": f"perdure_oidc={timely}"})).status_code == 303


async def test_a_cookie_that_nobody_here_has_written_ends_no_sign_in(make_store: MakeStore, provider: Provider) -> None:
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config()) as (_, browser):
        back = await agreed(await begun(browser))
        secret, at, to = browser.cookies["perdure_oidc"].split(".")
        browser.cookies.clear()
        elsewhere = urlsafe_b64encode(b"/ui/tasks").decode().rstrip("=")
        wrong = [
            "",
            ".",
            "..",
            f"{secret}.x.{to}",
            f"{secret}.{at}.%%%",
            f"{secret}.0{at}.{to}",
            f"x{secret}.{at}.{to}",
        ]
        for text in [*wrong, f"{secret}.{int(at) + 1}.{to}", f"{secret}.{at}.{elsewhere}", f"..{'9' * 30}.", "é.1.a"]:
            answer = await browser.get(back, headers=[(b"cookie", f"perdure_oidc={text}".encode())])
            assert answer.status_code in (401, 429), text
        assert (await browser.get(back, headers={"cookie": f"perdure_oidc={secret}.{at}.{to}"})).status_code == 303


async def test_an_id_token_of_another_sign_in_is_refused(make_store: MakeStore, provider: Provider) -> None:
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config()) as (_, browser):
        address = await begun(browser)
        nonce = one(address, "nonce")
        back = await agreed(address.replace(f"nonce={nonce}", f"nonce={nonce[::-1]}"))
        answer = await browser.get(back)
        assert answer.status_code == 401
        assert "ID token is not valid" in answer.text


async def test_whoever_says_no_at_the_provider_is_told_so(make_store: MakeStore, provider: Provider) -> None:
    async with site(make_store, provider.config()) as (_, browser):
        address = await begun(browser)
        state = one(address, "state")
        denied = await browser.get(
            "/ui/sign-in/oidc/callback",
            params={"state": state, "error": "access_denied", "error_description": "<b>no</b>"},
        )
        assert denied.status_code == 401
        assert "access_denied" in denied.text
        assert "<b>no</b>" not in denied.text


async def test_a_code_that_the_provider_never_gave_lets_nobody_in(make_store: MakeStore, provider: Provider) -> None:
    async with site(make_store, provider.config()) as (_, browser):
        state = one(await begun(browser), "state")
        answer = await browser.get("/ui/sign-in/oidc/callback", params={"state": state, "code": "guessed"})
        assert answer.status_code == 401
        assert "Try again" in answer.text


async def test_a_provider_that_does_not_answer_or_is_another_one(make_store: MakeStore, provider: Provider) -> None:
    for issuer, said in (("http://127.0.0.1:1", "does not respond"), (f"{provider.url}/", "another issuer")):
        async with site(make_store, provider.config(issuer=issuer)) as (client, browser):
            answer = await browser.get("/ui/sign-in/oidc")
            assert answer.status_code == 502
            assert said in answer.text
            # A token is another way in.
            token = await make_token(client, "ann", "read")
            form = await browser.post("/ui/sign-in", data={"token": token}, headers=FORM)
            assert form.status_code == 303


async def test_a_session_of_a_provider_that_is_not_used_any_more_is_none(
    make_store: MakeStore, provider: Provider
) -> None:
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config()) as (client, browser):
        assert (await signed_in(browser)).status_code == 303
        session = {"cookie": f"perdure_session={browser.cookies['perdure_session']}"}
        await make_token(client, "root", "admin")
        transport = httpx.ASGITransport(create_app(client, pages=dashboard()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
            assert (await other.get("/ui/runs", headers=session)).status_code == 303


async def test_strangers_behind_the_same_proxy_keep_nobody_from_signing_in(
    make_store: MakeStore, provider: Provider
) -> None:
    """All of them have the proxy's address, which is not trusted."""
    provider.knows("ann", **ANN)
    async with site(make_store, provider.config(), requests_per_s=0.001, requests_burst=30) as (client, browser):
        token = await make_token(client, "ann", "read")
        wrong = {"cookie": "perdure_session=guess"}
        bad = {"authorization": "Bearer perdure_ann_guess"}
        for _ in range(25):
            assert (await browser.get("/ui/sign-in/oidc")).status_code == 303
            await browser.get("/ui/sign-in/oidc/callback", params={"state": "x", "code": "y"})
            await browser.post("/ui/sign-in", data={"token": "guess"}, headers=FORM)
            await browser.get("/ui/runs", headers=wrong)
            await browser.get("/api/v1/runs", headers=bad)
            await browser.get("/ui/sign-in")
        assert (await browser.get("/api/v1/runs", headers=bad)).status_code == 429
        browser.cookies.clear()
        assert (await signed_in(browser)).status_code == 303
        assert (await browser.get("/ui/runs")).status_code == 200
        browser.cookies.clear()
        assert (await browser.post("/ui/sign-in", data={"token": token}, headers=FORM)).status_code == 303
        assert (await browser.get("/api/v1/runs", headers={"authorization": f"Bearer {token}"})).status_code == 200
        assert (await browser.get("/health/live")).status_code == 200


async def test_a_provider_that_does_not_answer_is_not_asked_for_everybody_who_tries(
    make_store: MakeStore, provider: Provider
) -> None:
    asked: list[str] = []

    class Counting(OidcProvider):
        async def _get(self, url: str) -> dict[str, Any]:
            asked.append(url)
            return await super()._get(url)

    counting = Counting(provider.config(issuer="http://127.0.0.1:1"))
    async with Client(make_store(), poll_s=None) as client:
        for _ in range(5):
            with pytest.raises(NoSession, match="does not respond"):
                await counting.begin(client, "/ui")
    assert len(asked) == 1


def with_shared(secret: bytes, claims: dict[str, Any]) -> str:
    """A token that is signed with a shared secret."""
    parts = [{"alg": "HS256", "kid": "k", "typ": "JWT"}, claims]
    text = b".".join(urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in parts)
    signature = urlsafe_b64encode(hmac.digest(secret, text, "sha256")).rstrip(b"=")
    return (text + b"." + signature).decode()


async def test_only_what_the_provider_signed_now_for_this_server_is_believed(provider: Provider) -> None:
    own = OidcProvider(provider.config())
    key, other = RSAKey.generate_key(2048, {"kid": "k"}), RSAKey.generate_key(2048, {"kid": "k"})
    own._keys, own._keys_at = KeySet([key]), time.monotonic()
    now = int(time.time())
    good = {"iss": provider.url, "aud": "perdure", "sub": "ann", "nonce": "n", "iat": now, "exp": now + 60}

    def signed(claims: dict[str, Any], with_key: Any = key, alg: str = "RS256") -> str:
        made: str = jwt.encode({"alg": alg, "kid": "k"}, claims, with_key, algorithms=[alg])
        return made

    assert (await own._checked(signed(good), "n"))["sub"] == "ann"
    assert (await own._checked(signed(good | {"aud": ["perdure", "x"], "azp": "perdure"}), "n"))["sub"] == "ann"
    wrong = [
        signed(good, other),
        signed(good | {"iss": "https://elsewhere"}),
        signed(good | {"aud": "other"}),
        signed(good | {"aud": ["perdure", "other"], "azp": "other"}),
        signed(good | {"exp": now - 3600}),
        signed(good | {"nonce": "other"}),
        *(signed({name: value for name, value in good.items() if name != left_out}) for left_out in good),
        # The provider's public key, taken for a shared secret.
        with_shared(key.as_pem(private=False), good),
        signed(good).rpartition(".")[0] + ".",
        "e30.e30.",
        "",
    ]
    none = urlsafe_b64encode(b'{"alg":"none"}').rstrip(b"=").decode()
    wrong.append(f"{none}.{signed(good).split('.')[1]}.")
    for token in wrong:
        with pytest.raises(NoSession, match="ID token is not valid"):
            await own._checked(token, "n")


def test_a_configuration_that_cannot_be_meant_is_refused(provider: Provider) -> None:
    wrong: list[dict[str, Any]] = [
        {"issuer": "http://accounts.example.com"},
        {"redirect_uri": "http://perdure.example.com/ui/sign-in/oidc/callback"},
        {"scopes": {}},
        {"scopes": {"groups": {"ops": "everything"}}},
        {"scopes": {"groups": {"ops": "operate:workflow=w"}}},
        {"client_id": ""},
        {"request": ("email",)},
        {"lasts": timedelta(days=2)},
    ]
    for other in wrong:
        with pytest.raises(InvalidArguments):
            provider.config(**other)
    assert "s3cret" not in repr(provider.config())
