"""Tokens in time: they expire, are rotated with an overlap, say when they were used; and sessions end with them."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, closing
from datetime import timedelta
from pathlib import Path

import httpx
import msgspec
import pytest

from perdure import Client, Engine
from perdure.dashboard import dashboard
from perdure.dashboard.sessions import NoSession, find_session, open_session
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, RecordNotFound
from perdure.http import access, create_app, make_token, revoke_token, rotate_token, tokens
from perdure.http.tokens import find_token, has_valid_tokens
from perdure.kernel.access import StoredSession
from perdure.kernel.ops import PutSession
from perdure.ports import Store, SystemClock
from perdure.storage import open_store
from perdure.storage.postgres import schema as postgres_schema
from perdure.storage.sqlite import schema as sqlite_schema
from tests.storage.postgres.meddler import meddler
from tests.storage.postgres.server import Servers

MakeStore = Callable[[], Store]
HOUR = timedelta(hours=1)


class MovedClock(SystemClock):
    """The system's, some time on."""

    def __init__(self) -> None:
        self.on = timedelta(0)

    def now(self) -> int:
        return super().now() + self.on // timedelta(microseconds=1)


@asynccontextmanager
async def opened(make_store: MakeStore) -> AsyncGenerator[tuple[AnyClient, MovedClock]]:
    clock = MovedClock()
    async with Client(make_store(), clock=clock, poll_s=None) as client:
        yield client, clock


@asynccontextmanager
async def asking(client: AnyClient) -> AsyncGenerator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(create_app(client, pages=dashboard()))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        yield http


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


async def test_a_token_that_has_expired_lets_nobody_in_and_says_so(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock), asking(client) as http:
        token = await make_token(client, "ci", "read", expires=timedelta(days=30))
        assert (await http.get("/api/v1/runs", headers=bearer(token))).status_code == 200
        clock.on = timedelta(days=30) - HOUR
        assert (await http.get("/api/v1/runs", headers=bearer(token))).status_code == 200
        clock.on = timedelta(days=30, seconds=1)
        answer = await http.get("/api/v1/runs", headers=bearer(token))
        assert (answer.status_code, answer.json()["code"]) == (401, "unauthenticated")
        assert "the token 'ci' expired at " in answer.json()["detail"]
        assert answer.headers["www-authenticate"].startswith("Bearer")
        # Only whoever has the secret is told that.
        guessed = await http.get("/api/v1/runs", headers=bearer("perdure_ci_wrong"))
        assert "expired" not in guessed.json()["detail"]
        assert not await has_valid_tokens(client)
        # It does not fall open again.
        assert (await http.get("/api/v1/runs")).status_code == 401


async def test_a_rotated_token_has_two_secrets_for_the_overlap(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock), asking(client) as http:

        async def status(token: str) -> int:
            return (await http.get("/api/v1/runs", headers=bearer(token))).status_code

        old = await make_token(client, "ci", ["read", "operate:workflow=w"], expires=timedelta(days=30))
        new = await rotate_token(client, "ci", overlap=HOUR, actor="ann")
        assert (await status(old), await status(new)) == (200, 200)
        [view] = await tokens(client)
        assert (view.scopes, view.made_by) == (["read", "operate:workflow=w"], "ann")
        assert view.overlap_until is not None
        clock.on = HOUR + timedelta(seconds=1)
        assert (await status(old), await status(new)) == (401, 200)
        replaced = await http.get("/api/v1/runs", headers=bearer(old))
        assert "was replaced" in replaced.json()["detail"]
        newest = await rotate_token(client, "ci")
        assert (await status(old), await status(new), await status(newest)) == (401, 401, 200)
        clock.on += timedelta(days=30)  # A rotated one lasts as long as the first was made for.
        assert await status(newest) == 401


async def test_an_overlap_does_not_outlast_the_old_secret_or_a_revocation(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock):
        old = await make_token(client, "ci", "read", expires=HOUR)
        new = await rotate_token(client, "ci", overlap=10 * HOUR, expires=10 * HOUR)
        clock.on = 2 * HOUR
        shown = await find_token(client, old)
        assert shown is not None
        assert "was replaced" in shown.wrong
        clock.on = timedelta(0)
        await revoke_token(client, "ci")
        assert (await find_token(client, old), await find_token(client, new)) == (None, None)
        with pytest.raises(InvalidArguments, match="is revoked"):
            await rotate_token(client, "ci", overlap=HOUR)
        with pytest.raises(RecordNotFound):
            await rotate_token(client, "nobody")
        for wrong in (timedelta(0), timedelta(seconds=-1), timedelta(days=40_000)):
            with pytest.raises(InvalidArguments):
                await make_token(client, "x", "read", expires=wrong)


async def test_a_second_rotation_leaves_the_first_secret_its_overlap(make_store: MakeStore) -> None:
    """Somebody who was promised a day to change a secret has that day, whoever rotates the token again meanwhile."""
    async with opened(make_store) as (client, clock), asking(client) as http:

        async def status(token: str) -> int:
            return (await http.get("/api/v1/runs", headers=bearer(token))).status_code

        first = await make_token(client, "ci", "read")
        second = await rotate_token(client, "ci", overlap=10 * HOUR)
        third = await rotate_token(client, "ci", overlap=HOUR)
        assert [await status(one) for one in (first, second, third)] == [200, 200, 200]
        [view] = await tokens(client)
        assert view.overlap_until is not None
        assert timedelta(0) <= 10 * HOUR - (view.overlap_until - view.at) < HOUR  # that of the first
        clock.on = HOUR + timedelta(seconds=1)
        assert [await status(one) for one in (first, second, third)] == [200, 401, 200]
        clock.on = 10 * HOUR + timedelta(seconds=1)
        assert [await status(one) for one in (first, second, third)] == [401, 401, 200]
        assert "was replaced" in (await http.get("/api/v1/runs", headers=bearer(first))).json()["detail"]


async def test_a_rotation_without_overlap_ends_all_former_secrets(make_store: MakeStore) -> None:
    """A secret that has leaked may be any of them: this is the way to be rid of all."""
    async with opened(make_store) as (client, _):
        first = await make_token(client, "ci", "read")
        second = await rotate_token(client, "ci", overlap=10 * HOUR)
        third = await rotate_token(client, "ci")
        assert [await find_token(client, one) for one in (first, second)] == [None, None]
        assert (await find_token(client, third)) is not None


async def test_no_more_than_ten_former_secrets_are_kept(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock):
        made = [await make_token(client, "ci", "read")]
        made += [await rotate_token(client, "ci", overlap=HOUR) for _ in range(10)]
        with pytest.raises(InvalidArguments, match="11 valid secrets"):
            await rotate_token(client, "ci", overlap=HOUR)
        for one in made:
            found = await find_token(client, one)
            assert found is not None
            assert found.wrong == ""
        clock.on = HOUR + timedelta(seconds=1)  # Those that are over make room.
        await rotate_token(client, "ci", overlap=HOUR)


async def test_a_session_of_a_former_secret_lasts_as_long_as_the_secret(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock):
        first = await make_token(client, "ci", "read")
        session = await open_session(client, first)
        await rotate_token(client, "ci", overlap=5 * HOUR)
        await rotate_token(client, "ci", overlap=HOUR)
        assert await find_session(client, session) is not None
        clock.on = 5 * HOUR + timedelta(seconds=1)
        assert await find_session(client, session) is None


async def test_a_token_that_an_earlier_version_rotated_keeps_its_overlap(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, _):
        first = await make_token(client, "ci", "read")
        await rotate_token(client, "ci", overlap=HOUR)
        found = await client.credentials.token("ci")
        assert found is not None
        body = dict(found.body)
        assert sorted(body["former"]) == ["sha256", "until"]  # An earlier version on another server reads this too.
        del body["earlier"]
        assert await client.credentials.put_token("ci", body, version=found.version + 1, actor="x")
        assert (await tokens(client))[0].overlap_until is not None
        await rotate_token(client, "ci", overlap=HOUR)
        assert (await find_token(client, first)) is not None


@pytest.mark.parametrize("name", ["startup", "http", "api", "dashboard", "engine", "cli", "oidc", "perdure"])
async def test_names_that_perdure_itself_acts_under_cannot_be_taken(make_store: MakeStore, name: str) -> None:
    """Whoever had a token of this name would be taken for the engine, or for nobody in particular, in every audit."""
    async with opened(make_store) as (client, _), asking(client) as http:
        with pytest.raises(InvalidArguments, match="is an actor of Perdure itself"):
            await make_token(client, name, "read")
        root = await make_token(client, "root", "admin")
        answer = await http.post("/api/v1/tokens", json={"name": name, "scope": "read"}, headers=bearer(root))
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_arguments")
        # One that was made before is valid, and can be rotated and revoked.
        found = await client.credentials.token("root")
        assert found is not None
        await client.credentials.put_token(name, found.body, version=1, actor="x")
        rotated = await rotate_token(client, name)
        assert await find_token(client, rotated) is not None
        assert (await revoke_token(client, name)).revoked


async def test_rotating_never_brings_a_token_back_that_was_revoked_meanwhile(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, _):
        for _ in range(10):
            await make_token(client, "ci", "read")
            made = await asyncio.gather(
                *(rotate_token(client, "ci", overlap=HOUR) for _ in range(3)),
                revoke_token(client, "ci"),
                return_exceptions=True,
            )
            [view] = await tokens(client)
            assert view.revoked
            for one in made:
                assert not isinstance(one, str) or await find_token(client, one) is None


async def test_the_last_use_is_noted_about_once_a_minute(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with opened(make_store) as (client, clock), asking(client) as http:
        token = await make_token(client, "ci", "read")
        assert (await tokens(client))[0].used_at is None
        await http.get("/api/v1/runs", headers=bearer(token))
        [first] = await tokens(client)
        assert first.used_at is not None
        clock.on = HOUR
        await http.get("/api/v1/runs", headers=bearer(token))
        assert (await tokens(client))[0].used_at == first.used_at
        monkeypatch.setattr(access, "NOTED_EVERY_S", 0.0)
        await http.get("/api/v1/runs", headers=bearer(token))
        later = (await tokens(client))[0].used_at
        assert later is not None
        assert later > first.used_at


async def test_a_session_ends_when_its_token_expires_or_its_secret_is_replaced(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock):
        token = await make_token(client, "ann", "operate", expires=HOUR)
        session = await open_session(client, token)
        assert await find_session(client, session) is not None
        new = await rotate_token(client, "ann", overlap=timedelta(minutes=30), expires=HOUR)
        assert await find_session(client, session) is not None
        assert await find_session(client, await open_session(client, new)) is not None
        clock.on = timedelta(minutes=31)
        assert await find_session(client, session) is None
        later = await open_session(client, new)
        clock.on = timedelta(minutes=61)
        assert await find_session(client, later) is None
        with pytest.raises(NoSession, match="expired at"):
            await open_session(client, new)


async def put_sessions(client: AnyClient, count: int, *, until: int) -> None:
    sessions = [StoredSession(id=str(number), until=until, actor="a", at=1, body="{}") for number in range(count)]
    put = [PutSession(run_id="", at=1, session=session) for session in sessions]
    assert all(await client.session.coordinator.submit_batch(put))


async def test_a_session_lasts_twelve_hours(make_store: MakeStore) -> None:
    async with opened(make_store) as (client, clock):
        session = await open_session(client, await make_token(client, "ann", "read"))
        clock.on = timedelta(hours=12) - timedelta(minutes=1)
        assert await find_session(client, session) is not None
        clock.on = timedelta(hours=12)
        assert await find_session(client, session) is None
    assert access.STARTUP_SESSION_S == 12 * 3600


async def test_ten_thousand_sessions_that_are_over_go_a_bounded_number_at_a_time(make_store: MakeStore) -> None:
    async with Engine(make_store(), workflows=[], poll_s=None) as engine:
        store, now = engine.session.store, engine.credentials.now()
        await put_sessions(engine, 10_000, until=now - 1)
        lasting = await open_session(engine, await make_token(engine, "ann", "read"))
        assert await store.purge_sessions(at=now, limit=50) == 50
        while await engine.events.purge():
            pass
        assert await store.purge_sessions(at=now, limit=10_000) == 0
        assert await find_session(engine, lasting) is not None


async def test_where_people_sign_in_sessions_that_are_over_do_not_gather(make_store: MakeStore) -> None:
    """Also if only clients serve, and no engine tidies up."""
    async with opened(make_store) as (client, _):
        now = client.credentials.now()
        await put_sessions(client, 150, until=now - 1)
        token = await make_token(client, "ann", "read")
        await open_session(client, token)
        assert await client.session.store.session("0") is None
        await open_session(client, token)
        assert await client.session.store.purge_sessions(at=now, limit=1000) == 0


def earlier(module: object, monkeypatch: pytest.MonkeyPatch) -> None:
    known = {number: text for number, text in module.MIGRATIONS.items() if number < 16}  # type: ignore[attr-defined]  # one of two modules
    monkeypatch.setattr(module, "MIGRATIONS", known)
    monkeypatch.setattr(module, "SCHEMA_VERSION", max(known))


TOKEN = {"scope": "operate", "sha256": "a3a6ab4b2a4b0dd2bbef4e4f5a9f3c8b", "revoked": False}
ROWS = [
    ("perdure.api-token", "ci", 1, {**TOKEN, "scope": "read"}),
    ("perdure.api-token", "ci", 2, TOKEN),
    ("perdure.api-token", "gone", 1, {**TOKEN, "sha256": "", "revoked": True}),
    ("perdure.dashboard-session", "here", 1, {"token": "ci", "version": 2, "until": "x"}),
    ("perdure.dashboard-session", "out", 1, {"token": "ci", "version": 2, "until": "x"}),
    ("perdure.dashboard-session", "out", 2, {"token": "ci", "version": 2, "until": "x", "signed_out": True}),
    ("prompt", "mine", 1, {}),
]


class Turned:
    """A codec that leaves no payload as it was."""

    def encode(self, text: str) -> str:
        return text[::-1]

    def decode(self, text: str) -> str:
        return text[::-1]


async def check_carried_over(url: str) -> None:
    async with Client(url, codec=Turned(), poll_s=None) as client:
        assert [(one.name, one.scope, one.revoked) for one in await tokens(client)] == [
            ("ci", "operate", False),
            ("gone", "operate", True),
        ]
        assert [(one.name, one.version) for one in await client.credentials.token_versions()] == [
            ("ci", 1),
            ("ci", 2),
            ("gone", 1),
        ]
        here = await client.credentials.session("here")
        assert here is not None
        assert here.body["version"] == 2
        assert await client.credentials.session("out") is None
        assert [one.name for one in await client.records.list("prompt")] == ["mine"]
        assert await client.records.list("perdure.dashboard-session") == []
        # What an earlier Perdure that still runs asks, to find out whether tokens are needed.
        store = client.session.store
        assert [one.name for one in await store.records("perdure.api-token")] == ["moved"]
        await rotate_token(client, "ci")


async def test_tokens_and_sessions_of_an_earlier_version_are_carried_over_on_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, url = tmp_path / "old.db", f"sqlite:///{tmp_path / 'old.db'}"
    at = SystemClock().now()
    with monkeypatch.context() as patched:
        earlier(sqlite_schema, patched)
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            sqlite_schema.migrate(connection, path)
            for kind, name, version, body in ROWS:
                text = Turned().encode(msgspec.json.encode(body).decode())
                connection.execute(
                    "insert into records values (?, ?, ?, ?, ?, ?, ?)", (kind, name, version, "", "ann", at, text)
                )
    path.chmod(0o600)
    await check_carried_over(url)


async def test_tokens_and_sessions_of_an_earlier_version_are_carried_over_on_postgres(
    postgres_servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres_servers.fresh()
    at = SystemClock().now()
    with monkeypatch.context() as patched:
        earlier(postgres_schema, patched)
        store = open_store(url)
        await store.open()
        await store.close()
    async with meddler(url) as connection:
        for kind, name, version, body in ROWS:
            text = Turned().encode(msgspec.json.encode(body).decode())
            await connection.execute(
                "insert into records values ($1, $2, $3, '', 'ann', $4, $5)", kind, name, version, at, text
            )
    await check_carried_over(url)
