"""Pages as streams: what has changed, once, and after an interruption from where the reader was."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from perdure import Client, Engine
from perdure.dashboard import dashboard
from perdure.graph import Graph, assign
from perdure.http import serving
from perdure.ports import Store
from perdure.storage import open_store
from perdure.upgrade import upgrade
from tests.http.site import WORKFLOWS, greet, sleeps

STREAM = {"accept": "text/event-stream"}


@pytest.fixture
def make_store(empty_file: Path, tmp_path: Path) -> Callable[[], Store]:
    url = f"sqlite:///{tmp_path / 'site.db'}"
    (tmp_path / "site.db").write_bytes(empty_file.read_bytes())
    return lambda: open_store(url)


class Reader:
    """Reads a page's stream."""

    def __init__(self, lines: AsyncIterator[str]) -> None:
        self._lines = lines
        self.last_id = ""

    async def region(self) -> tuple[str, str]:
        """The next region that has changed: its name and what it shows."""
        async for line in self._lines:
            if line.startswith("id: "):
                self.last_id = line[4:]
            if line.startswith("data: "):
                told: dict[str, Any] = msgspec.json.decode(line[6:])
                return told["name"], told["html"]
        raise AssertionError("the stream has ended")


@asynccontextmanager
async def reading(http: httpx.AsyncClient, path: str, last_id: str = "") -> AsyncIterator[Reader]:
    headers = {**STREAM, **({"last-event-id": last_id} if last_id else {})}
    async with http.stream("GET", path, headers=headers) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield Reader(answer.aiter_lines())


@asynccontextmanager
async def served(make_store: Callable[[], Store]) -> AsyncIterator[tuple[Engine, httpx.AsyncClient]]:
    async with (
        Engine(make_store(), workflows=WORKFLOWS, poll_s=0.05) as engine,
        Client(make_store(), poll_s=0.05) as client,
        serving(client, port=0, poll_s=0.02, pages=dashboard()) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        yield engine, http


async def test_only_what_has_changed_is_sent_and_a_reader_goes_on_where_it_was(
    make_store: Callable[[], Store],
) -> None:
    async with served(make_store) as (engine, http):
        page = (await http.get("/ui/runs")).text
        seen = page.partition('data-seen="')[2].partition('"')[0]
        async with reading(http, f"/ui/runs?seen={seen}") as reader:
            await engine.run(greet("a"), id="first")
            name, html = await reader.region()
            assert name == "runs"  # the pager is as it was
            while "succeeded" not in html:
                name, html = await reader.region()
            assert "first" in html
            last_id = reader.last_id
        await engine.run(greet("b"), id="second")
        async with reading(http, f"/ui/runs?seen={seen}", last_id) as reader:
            name, html = await reader.region()
            assert (name, "second" in html) == ("runs", True)
            last_id = reader.last_id
        async with reading(http, "/ui/runs", last_id) as reader:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.2):
                    await reader.region()


async def test_a_filter_holds_for_what_comes_later(make_store: Callable[[], Store]) -> None:
    async with served(make_store) as (engine, http), reading(http, "/ui/runs?q=workflow:sleeps") as reader:
        assert "No run matches" in (await reader.region())[1]
        await reader.region()
        await engine.run(greet("a"), id="other")
        await engine.start(sleeps(), id="mine")
        _, html = await reader.region()
        assert "mine" in html
        assert "other" not in html


async def test_a_page_of_nothing_has_no_stream(make_store: Callable[[], Store]) -> None:
    async with served(make_store) as (_, http):
        assert (await http.get("/ui/runs/nobody", headers=STREAM)).status_code == 404
        assert (await http.get("/ui/nothing", headers=STREAM)).status_code == 404


async def test_a_graph_that_is_too_large_for_a_picture_still_shows_its_tokens(make_store: Callable[[], Store]) -> None:
    dense: Graph[Any, Any] = Graph("dense")
    for n in range(60):
        dense.node(f"n{n}", assign({}))
    for source, target in combinations(range(60), 2):
        dense.edge(f"n{source}", f"n{target}", when=None if target == source + 1 else "input.x == 1")
    async with (
        Engine(make_store(), workflows=[dense], poll_s=0.05) as engine,
        serving(engine, port=0, pages=dashboard()) as url,
        httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http,
    ):
        await engine.run(dense({"x": 2}), id="d-1")
        shown = (await http.get("/ui/runs/d-1")).text
        assert "There is no picture: this graph is too large for a picture" in shown
        assert "<svg" not in shown.partition('id="graph"')[2].partition("</section>")[0]
        assert 'id="h-tokens"' in shown
        assert "<td>n59</td>" in shown


async def test_files_are_kept_by_browsers_as_long_as_they_are_the_same(make_store: Callable[[], Store]) -> None:
    async with served(make_store) as (_, http):
        page = (await http.get("/ui")).text
        path = page.partition('rel="stylesheet" href="')[2].partition('"')[0]
        answer = await http.get(path)
        assert "immutable" in answer.headers["cache-control"]
        assert (await http.get("/ui/static/older/style.css")).headers["cache-control"] == "no-store"
        assert (await http.get("/ui/static/x/..%2f..%2fsite.py")).status_code == 404


async def test_the_command_serves_it(tmp_path: Path) -> None:
    await upgrade(f"sqlite:///{tmp_path / 's.db'}")
    command = [sys.executable, "-m", "perdure", "serve", "--json", "--no-auth", "--port", "0"]
    command += ["--store", f"sqlite:///{tmp_path / 's.db'}"]
    for more, status in (((), 200), (("--no-dashboard",), 404)):
        with subprocess.Popen([*command, *more], stdout=subprocess.PIPE, text=True, cwd=tmp_path) as server:
            try:
                assert server.stdout is not None
                url = msgspec.json.decode(await asyncio.to_thread(server.stdout.readline))["url"]
                async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
                    assert (await http.get(f"{url}/ui")).status_code == status
            finally:
                server.terminate()
