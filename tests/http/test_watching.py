"""Health, metrics, engines, definitions, codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from perdure import Client
from perdure.errors import StoreBusy
from perdure.http import create_app, serving
from perdure.http.problems import every_error, meanings, table
from perdure.http.routes import metrics
from perdure.kernel.rows import Engine
from perdure.ports import Store
from perdure.storage.memory import MemoryStore
from perdure.testing import StoreProxy
from perdure.testing.control import kill
from tests.http.site import greet, refused, site, told

MakeStore = Callable[[], Store]
DOCS = Path(__file__).resolve().parents[2] / "docs"


async def test_health_tells_a_server_whose_store_is_gone() -> None:
    client = Client(MemoryStore())
    await client.open()
    async with serving(client, port=0) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert told(await http.get("/health/ready")) == {"status": "ok"}
        kill(client)
        assert told(await http.get("/health/live")) == {"status": "ok"}
        assert told(await http.get("/health/ready"), 503) == {"status": "unavailable"}
        answer = await http.get("/api/v1/runs")
        refused(answer, 503, "engine_stopped")


async def test_definitions_and_engines_are_those_that_are_alive(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        found = told(await here.http.get("/definitions"))
        names = [one["workflow"] for one in found]
        assert names == sorted(names)
        assert {"greet", "pays"} <= set(names)
        engines = told(await here.http.get("/engines"))
        assert len(engines) == 2
        assert found[0]["engines"] == [one["id"] for one in engines if one["workflows"]]


async def test_metrics_can_be_read_by_prometheus(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        await here.start("greet", "r-1", name="ada")
        await here.until("r-1", "succeeded")
        await here.http.get("/nothing")
        answer = await here.http.get(f"{here.url}/metrics")
        assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        lines = answer.text.splitlines()
        sample = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')
        assert [line for line in lines if not line.startswith("#") and not sample.fullmatch(line)] == []
        assert "perdure_engines 1" in lines
        assert 'perdure_runs_held{hold="poison"} 0' in lines
        assert 'perdure_http_requests_total{method="POST",route="/api/v1/runs",status="201"} 1' in lines
        assert any('route="/api/v1/runs/{run_id}",status="200"' in line for line in lines)
        assert "r-1" not in answer.text
        assert "perdure_store_up 1" in lines
        assert "perdure_runs_stranded 0" in lines


async def test_metrics_count_holds_by_kind_and_what_nobody_has_the_code_of(make_store: MakeStore) -> None:
    async with site(make_store) as here:
        for id in ("r-1", "r-2"):
            await here.start("sleeps", id)
            await here.until(id, "suspended")
        assert await here.engine.handle("r-1").pause()
        assert here.engine.engines.stats.holds == {"paused": 1}
        lines = (await here.http.get(f"{here.url}/metrics")).text.splitlines()
        assert 'perdure_runs_held{hold="paused"} 1' in lines
        assert "perdure_runs_stranded 0" in lines
    async with site(make_store, workflows=[greet]) as here:
        lines = (await here.http.get(f"{here.url}/metrics")).text.splitlines()
        assert "perdure_runs_stranded 1" in lines
        assert 'perdure_holds_total{hold="paused"} 0' in lines  # It counts what this process has done.


async def test_metrics_say_that_the_store_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are what somebody looks at then."""
    monkeypatch.setattr(metrics, "_PATIENCE_S", 0.05)
    store = Away(MemoryStore())
    async with (
        Client(store) as client,
        serving(client, port=0) as url,
        httpx.AsyncClient(base_url=url, trust_env=False) as http,
    ):
        assert "perdure_store_up 1" in (await http.get("/metrics")).text.splitlines()
        store.is_away = True
        answer = await http.get("/metrics")
        assert answer.status_code == 200
        lines = answer.text.splitlines()
        assert "perdure_store_up 0" in lines
        assert any(line.startswith("perdure_commits_total ") for line in lines)
        assert not any(line.startswith("perdure_runs_held") for line in lines)
        store.is_away = False


class Away(StoreProxy):
    """A store that does not say who is there, on demand."""

    is_away = False

    async def engines(self, *, living: bool = False) -> list[Engine]:
        if self.is_away:
            raise StoreBusy("the way is broken")
        return await super().engines(living=living)


def test_every_error_has_a_code_a_status_and_a_meaning() -> None:
    rows = table()
    codes = [code for code, _, _ in rows]
    assert len(codes) == len(set(codes))
    assert {error.__name__ for error in every_error()} <= set(meanings())
    assert all(400 <= status < 600 for _, status, _ in rows)


def test_the_codes_in_the_docs_are_those_of_the_code() -> None:
    text = (DOCS / "http.md").read_text()
    shown = re.findall(r"^\| `([a-z_]+)` \| (\d{3}) \| (.+) \|$", text, re.MULTILINE)
    assert [(code, int(status), meaning) for code, status, meaning in shown] == table()


def test_every_route_is_in_the_docs() -> None:
    text = (DOCS / "http.md").read_text()
    shown = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^`]*)`", text))
    document = create_app("memory://").document
    there = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, item in document["paths"].items()
        for method in item
    }
    assert shown == there


def test_several_applications_can_be_made() -> None:
    assert create_app("memory://").document == create_app("memory://").document
