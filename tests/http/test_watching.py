"""Health, metrics, engines, definitions, codes."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import httpx

from perdure import Client
from perdure.http import create_app, serving
from perdure.http.problems import every_error, meanings, table
from perdure.ports import Store
from perdure.storage.memory import MemoryStore
from tests.http.site import refused, site, told

MakeStore = Callable[[], Store]
DOCS = Path(__file__).resolve().parents[2] / "docs"


async def test_health_tells_a_server_whose_store_is_gone() -> None:
    client = Client(MemoryStore())
    await client.open()
    async with serving(client, port=0) as url, httpx.AsyncClient(base_url=url, trust_env=False) as http:
        assert told(await http.get("/health/ready")) == {"status": "ok"}
        client.kill()
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
    shown = set(re.findall(r"`((?:GET|POST|PATCH|DELETE) /[^`]*)`", text))
    document = create_app("memory://").document
    there = {
        f"{method.upper()} {path.removeprefix('/api/v1')}"
        for path, item in document["paths"].items()
        for method in item
    }
    assert shown == there


def test_several_applications_can_be_made() -> None:
    assert create_app("memory://").document == create_app("memory://").document
