"""Streams whose reader may not read any more: they end, within the time between two looks."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure.http import make_token, revoke_token, rotate_token
from perdure.ports import Store
from tests.http.site import Site, site, told

MakeStore = Callable[[], Store]
CHECK_S = 0.02
PATHS = ("/runs/r/changes", "/runs/r/streams/log/follow", "/runs:changes")


async def untagged(here: Site) -> None:
    headers = {"if-match": "*"}
    told(await here.http.patch("/runs/r", json={"tags": {"tenant": "other"}}, headers=headers))


async def revoked(here: Site) -> None:
    await revoke_token(here.client, "some")


async def replaced(here: Site) -> None:
    await make_token(here.client, "some", "read:tag=tenant=acme")


async def rotated(here: Site) -> None:
    await rotate_token(here.client, "some")


async def rest(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines if line.startswith(("data: ", "event: "))]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("lose", [untagged, revoked, replaced, rotated])
async def test_a_stream_ends_when_its_reader_may_not_read_any_more(
    make_store: MakeStore, path: str, lose: Callable[[Site], Awaitable[None]]
) -> None:
    async with site(make_store, check_s=CHECK_S) as here:
        await here.client.start("pays", {"order": "o"}, id="r", tags={"tenant": "acme"})
        await here.until("r", "suspended")
        token = {"authorization": f"Bearer {await make_token(here.client, 'some', 'read:tag=tenant=acme')}"}
        async with here.http.stream("GET", path, headers=token) as stream:
            assert stream.status_code == 200
            lines = stream.aiter_lines()
            while not (await anext(lines)).startswith("data: "):
                pass
            await lose(here)
            if path == "/runs:changes" and lose is untagged:
                # The token is valid, and its list has no run any more: it goes on, without it.
                while '"ids":[]' not in (line := await anext(lines)):
                    assert "other" not in line
                await revoked(here)
            await rest(lines)  # It ends.


async def test_what_happens_after_access_was_lost_is_not_sent(make_store: MakeStore) -> None:
    """Even if it happens before the next look: nothing is sent that is older than a look."""
    async with site(make_store, check_s=0.0) as here:
        await here.client.start("pays", {"order": "o"}, id="r", tags={"tenant": "acme"})
        await here.until("r", "suspended")
        token = {"authorization": f"Bearer {await make_token(here.client, 'some', 'read:tag=tenant=acme')}"}
        async with here.http.stream("GET", "/runs/r/streams/log/follow", headers=token) as stream:
            lines = stream.aiter_lines()
            while not (await anext(lines)).startswith("data: "):
                pass
            await untagged(here)
            await here.client.send_many([])
            body: dict[str, Any] = {"name": "tests.http.site.Paid", "value": {"amount": 1}}
            await here.http.post("/runs/r/events", json=body)
            assert not [line for line in await rest(lines) if "paid" in line]


async def test_a_reader_who_may_read_on_notices_nothing(make_store: MakeStore) -> None:
    async with site(make_store, check_s=CHECK_S) as here:
        await here.start("pays", "r", order="o")
        await here.until("r", "suspended")
        some = await make_token(here.client, "some", "read", expires=timedelta(hours=1))
        token = {"authorization": f"Bearer {some}"}
        async with here.http.stream("GET", "/runs/r/changes", headers=token) as stream:
            lines = stream.aiter_lines()
            while not (await anext(lines)).startswith("data: "):
                pass
            await rotate_token(here.client, "some", overlap=timedelta(hours=1))
            told(await here.http.post("/runs/r/cancel", json={}, headers={"if-match": "*"}))
            assert any("cancelled" in line for line in await rest(lines))


async def test_an_export_stops_without_its_last_line_when_the_token_is_revoked(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.http.routes import audit

    monkeypatch.setattr(audit, "_CHUNK_BYTES", 1)
    async with site(make_store, check_s=0.0) as here:
        for number in range(300):
            await here.client.start("unknown", {}, version="", id=f"{number:04}" + "x" * 400)
        token = {"authorization": f"Bearer {await make_token(here.client, 'ops', 'admin')}"}
        whole = (await here.http.get("/audit", headers=token)).text.splitlines()
        assert '"end"' in whole[-1]
        async with here.http.stream("GET", "/audit", headers=token) as stream:
            lines = stream.aiter_lines()
            first = await anext(lines)
            await revoke_token(here.client, "ops")
            left = [line async for line in lines]
        assert first == whole[0]
        assert not any('"end"' in line for line in left)
