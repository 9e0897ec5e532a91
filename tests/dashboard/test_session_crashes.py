"""Signing in and out, with the server's process dying around what it writes: a session is there, or it is not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any

import httpx
import pytest

from perdure import Client
from perdure.dashboard import dashboard, sessions
from perdure.dashboard.sessions import NoSession, close_session, find_session, open_session
from perdure.engine import AnyClient
from perdure.errors import EngineStopped, StoreBroken
from perdure.http import create_app, make_token, revoke_token
from perdure.http.scopes import Scope
from perdure.kernel.access import StoredToken
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.storage import open_store
from perdure.testing import CRASH_POINTS, Point
from perdure.testing.control import kill
from perdure.testing.faults import DEADLY
from perdure.testing.proxy import StoreProxy
from tests.crash.requests import FaultyRequest

# A commit whose outcome is not known is sent again, until it is.
LANDED: frozenset[Point] = frozenset(CRASH_POINTS) - {"before"}
TOLD: frozenset[Point] = LANDED - {"before_effects"}
FORM = {"content-type": "application/x-www-form-urlencoded", "sec-fetch-site": "same-origin"}
MakeStore = Callable[[], Store]


class Server:
    """A process that serves, until it dies: what it was asked then is never answered."""

    def __init__(self, make_store: MakeStore, point: Point | None = None, request: str = "") -> None:
        self.death = asyncio.Event()
        store = make_store() if point is None else FaultyRequest(make_store(), request, point, self._die)
        self.client = Client(store, poll_s=None)

    def _die(self) -> None:
        kill(self.client)
        self.death.set()

    async def asked(self, work: Coroutine[Any, Any, str | None]) -> str | None:
        """What comes of a request; None if the process died before the answer."""
        asked, dying = asyncio.ensure_future(work), asyncio.ensure_future(self.death.wait())
        await asyncio.wait({asked, dying}, return_when=asyncio.FIRST_COMPLETED)
        for one in (asked, dying):
            one.cancel()
        await asyncio.wait({asked, dying})
        # The store of a dead process is closed: a request that was between two reads meets that.
        over = (asyncio.CancelledError, EngineStopped, *([StoreBroken] if self.death.is_set() else []))
        with suppress(*over):
            return asked.result()
        return None

    async def lets_in(self, session_id: str | None) -> bool:
        return await find_session(self.client, session_id or "") is not None

    async def left(self) -> int:
        """How many sessions there are, which are gone then."""
        far = self.client.credentials.now() + 10**15
        return await self.client.session.store.purge_sessions(at=far, limit=100)


@asynccontextmanager
async def life(make_store: MakeStore, point: Point | None = None, request: str = "") -> AsyncGenerator[Server]:
    server = Server(make_store, point, request)
    await server.client.open()
    yield server
    if point in DEADLY:
        await server.death.wait()
    else:
        await server.client.shutdown()


async def crash_while_signing_in(make_store: MakeStore, point: Point) -> None:
    """Who has no answer signs in again: the session that a crash left is one that nobody has the id of."""
    async with life(make_store) as server:
        token = await make_token(server.client, "ann", "operate")
    async with life(make_store, point, "commit") as server:
        first = await server.asked(open_session(server.client, token))
        assert (first is not None) == (point in TOLD)
    async with life(make_store) as server:
        assert await server.lets_in(first) == (point in TOLD)
        second = await open_session(server.client, token)
        assert await server.lets_in(second)
        await revoke_token(server.client, "ann")  # It ends what was left behind too.
        assert not await server.lets_in(first)
        assert not await server.lets_in(second)
        assert await server.left() == 1 + (point in LANDED)


async def ended(client: AnyClient, session: str) -> None:
    await close_session(client, session)


async def crash_while_signing_out(make_store: MakeStore, point: Point) -> None:
    """Until somebody is told that they are out they may be in, and sign out again; after that they never are."""
    async with life(make_store) as server:
        session = await open_session(server.client, await make_token(server.client, "ann", "operate"))
        assert session is not None
    async with life(make_store, point, "commit") as server:
        await server.asked(ended(server.client, session))
    async with life(make_store) as server:
        assert await server.lets_in(session) == (point not in LANDED)
        await asyncio.gather(*[close_session(server.client, session) for _ in range(3)])
        assert not await server.lets_in(session)
    async with life(make_store) as server:
        assert not await server.lets_in(session)
        assert await server.left() == 0


CRASHES = [crash_while_signing_in, crash_while_signing_out]
Crash = Callable[[MakeStore, Point], Awaitable[None]]


@pytest.mark.parametrize("point", CRASH_POINTS)
@pytest.mark.parametrize("crash", CRASHES)
async def test_a_session_is_there_or_it_is_not(crash: Crash, point: Point, make_store: MakeStore) -> None:
    await crash(make_store, point)


@pytest.mark.parametrize("point", ["before_effects", "unknown"])
@pytest.mark.parametrize("crash", CRASHES)
async def test_so_it_is_in_postgres(crash: Crash, point: Point, empty_schema: Callable[[], str]) -> None:
    url = empty_schema()
    await crash(lambda: open_store(url), point)


async def test_a_session_whose_time_is_over_stays_over_after_a_restart(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with life(make_store) as server:
        token = await make_token(server.client, "ann", "operate")
        lasting = await open_session(server.client, token)
        monkeypatch.setattr(sessions, "LASTS", timedelta(0))
        over = await open_session(server.client, token)
        assert (await server.lets_in(lasting), await server.lets_in(over)) == (True, False)
    async with life(make_store) as server:
        assert (await server.lets_in(lasting), await server.lets_in(over)) == (True, False)


class Meddled(StoreProxy):
    """Something else happens between what is read of a token, or of a session, and what is written then."""

    def __init__(self, inner: Store) -> None:
        super().__init__(inner)
        self.meddle: Callable[[], Awaitable[object]] | None = None

    async def commit(self, batch: Batch) -> Committed:
        if batch.shared is not None and batch.shared.sessions:
            await self._meddle()
        return await super().commit(batch)

    async def token(self, name: str) -> StoredToken | None:
        found = await super().token(name)
        await self._meddle()
        return found

    async def _meddle(self) -> None:
        meddle, self.meddle = self.meddle, None
        if meddle is not None:
            await meddle()


@pytest.mark.parametrize("end", [revoke_token, make_token])
async def test_a_token_that_ends_while_somebody_signs_in_with_it_opens_nothing(
    end: Callable[..., Awaitable[object]], make_store: MakeStore
) -> None:
    store = Meddled(make_store())
    async with Client(store, poll_s=None) as client, Client(make_store(), poll_s=None) as other:
        token = await make_token(client, "ann", "operate")
        given = (Scope.ADMIN,) if end is make_token else ()
        store.meddle = lambda: end(other, "ann", *given)
        session = await open_session(client, token)
        assert store.meddle is None
        assert await find_session(client, session) is None
        with pytest.raises(NoSession):
            await open_session(client, token)


async def test_two_who_sign_out_at_once_are_both_told_so(make_store: MakeStore) -> None:
    store = Meddled(make_store())
    async with Client(store, poll_s=None) as client, Client(make_store(), poll_s=None) as other:
        session = await open_session(client, await make_token(client, "ann", "operate"))
        store.meddle = lambda: close_session(other, session)
        await close_session(client, session)
        assert store.meddle is None
        assert await find_session(client, session) is None


async def test_who_signs_in_while_the_connection_breaks_is_told_how_it_went(make_store: MakeStore) -> None:
    """Over HTTP: the server finds out whether its commit has landed, so nobody has to ask again."""
    store = FaultyRequest(make_store(), "commit", "unknown", lambda: None)
    store.struck = 1
    async with Client(store, poll_s=None) as client:
        token = await make_token(client, "ann", "operate")
        transport = httpx.ASGITransport(create_app(client, pages=dashboard()))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=FORM) as browser:
            points: tuple[Point, ...] = ("unknown_lost", "unknown")
            for point in points:
                store.fault.point, store.struck = point, 0
                assert (await browser.post("/ui/sign-in", data={"token": token})).status_code == 303
                assert store.struck == 1
                session = browser.cookies["perdure_session"]
                store.struck = 0
                out = await browser.post("/ui/sign-out")
                assert (out.status_code, out.headers["location"], store.struck) == (303, "/ui/sign-in", 1)
                again = await browser.post("/ui/sign-out", headers={"cookie": f"perdure_session={session}"})
                assert (again.status_code, again.headers["location"]) == (303, "/ui/sign-in")
                shown = await browser.get("/ui/runs", headers={"cookie": f"perdure_session={session}"})
                assert shown.headers["location"].startswith("/ui/sign-in?")
                browser.cookies.clear()
