"""Making, rotating and revoking a token, and exporting the audit, with the process dying around the store's answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta

import pytest

from perdure import Client
from perdure.api.audit import AuditLine, End
from perdure.errors import StoreBroken
from perdure.http import make_token, revoke_token, rotate_token, tokens
from perdure.http.tokens import find_token
from perdure.ports import Store
from perdure.storage import open_store
from perdure.testing import CRASH_POINTS, Point
from tests.dashboard.test_session_crashes import LANDED, life

MakeStore = Callable[[], Store]
HOUR = timedelta(hours=1)


async def is_valid(client: Client, token: str | None) -> bool:
    found = None if token is None else await find_token(client, token)
    return found is not None and not found.wrong


async def changes(client: Client) -> list[str]:
    return [one.body["change"] for one in await client.credentials.token_versions()]


async def crash_while_making(make_store: MakeStore, point: Point) -> None:
    """A token that nobody was shown is no use to anybody, and making it again replaces it."""
    async with life(make_store, point, "commit") as server:
        first = await server.asked(make_token(server.client, "ci", "read"))
    async with life(make_store) as server:
        assert await is_valid(server.client, first) == (first is not None)
        left = await changes(server.client)
        assert left[:1] == (["created"] if point in LANDED or first is not None else [])
        second = await make_token(server.client, "ci", "operate")
        assert (await is_valid(server.client, first), await is_valid(server.client, second)) == (False, True)
        [view] = await tokens(server.client)
        assert view.scopes == ["operate"]
        assert await changes(server.client) == [*left, "replaced" if left else "created"]


async def crash_while_rotating(make_store: MakeStore, point: Point) -> None:
    """Whether or not it was rotated, the old secret is valid for the overlap. Then it is rotated again."""
    async with life(make_store) as server:
        old = await make_token(server.client, "ci", "read")
    async with life(make_store, point, "commit") as server:
        new = await server.asked(rotate_token(server.client, "ci", overlap=HOUR))
    async with life(make_store) as server:
        is_done = point in LANDED or new is not None
        assert (await changes(server.client))[:2] == (["created", "rotated"] if is_done else ["created"])
        assert await is_valid(server.client, new) == (new is not None)
        if len(await changes(server.client)) < 3:
            assert await is_valid(server.client, old)
        newest = await rotate_token(server.client, "ci")
        assert [await is_valid(server.client, one) for one in (old, new, newest)] == [False, False, True]


async def crash_while_revoking(make_store: MakeStore, point: Point) -> None:
    """Until somebody is told that it is revoked it may be valid, and is revoked again; after that it never is."""
    async with life(make_store) as server:
        token = await make_token(server.client, "ci", "read")

    async def revoked(client: Client) -> str | None:
        with suppress(StoreBroken):  # It reads once more what it has written, and may be dead by then.
            await revoke_token(client, "ci")
            return "done"
        return None

    async with life(make_store, point, "commit") as server:
        told = await server.asked(revoked(server.client))
    async with life(make_store) as server:
        assert await is_valid(server.client, token) == (point not in LANDED and told is None)
        await revoke_token(server.client, "ci")
        assert not await is_valid(server.client, token)
        assert await changes(server.client) == ["created", "revoked"]
        assert await server.client.credentials.has_tokens()  # It does not fall open.


async def crash_while_exporting(make_store: MakeStore, point: Point, request: str) -> None:
    """Who dies meanwhile has sent no last line, and the next export is whole, with the same lines."""
    async with life(make_store) as server:
        await make_token(server.client, "ci", "read")
        for number in range(3):
            await server.client.start("unknown", {}, version="", id=f"r-{number}")
        await server.client.records.put("prompt", "hello", {})
        whole = [line async for line in server.client.audit.export()]
        assert isinstance(whole[-1], End)
    sent: list[AuditLine] = []

    async def export(client: Client) -> str:
        async for line in client.audit.export():
            sent.append(line)  # noqa: PERF401 - what was sent before the death counts
        return "whole"

    async with life(make_store, point, request) as server:
        told = await server.asked(export(server.client))
        assert (told == "whole") == any(isinstance(line, End) for line in sent)
        assert sent == whole[: len(sent)]
    async with life(make_store) as server:
        assert [line async for line in server.client.audit.export()] == whole


CRASHES = [crash_while_making, crash_while_rotating, crash_while_revoking]
Crash = Callable[[MakeStore, Point], Awaitable[None]]


@pytest.mark.parametrize("point", CRASH_POINTS)
@pytest.mark.parametrize("crash", CRASHES)
async def test_a_token_is_changed_or_it_is_not(crash: Crash, point: Point, make_any_store: MakeStore) -> None:
    await crash(make_any_store, point)


@pytest.mark.parametrize("crash", CRASHES)
async def test_so_it_is_on_postgres_after_a_restart(crash: Crash, empty_schema: Callable[[], str]) -> None:
    url = empty_schema()
    await crash(lambda: open_store(url), "before_effects")


@pytest.mark.parametrize("point", ["before", "before_effects"])
@pytest.mark.parametrize("request_name", ["changed_runs", "audits", "record_versions", "token_versions"])
async def test_an_export_that_dies_has_no_end(make_any_store: MakeStore, point: Point, request_name: str) -> None:
    await crash_while_exporting(make_any_store, point, request_name)
