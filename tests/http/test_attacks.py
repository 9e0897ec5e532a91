"""Every route, by everybody who may not use it, and with texts in every place that mean harm.

Both are made from the OpenAPI document. A part of the texts is sent here, all of them in `make soak`.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from perdure.http import revoke_token, shield
from perdure.ports import Store
from tests.http.attacks import MARK, attacks, body_of, filled, operations
from tests.http.site import Site, site, told

MakeStore = Callable[[], Store]
OPEN = {"/health/live", "/health/ready"}
SOME, PARTS = 400, 24


async def callers(here: Site) -> dict[str, dict[str, str]]:
    """Headers of everybody who might ask."""
    revoked = await here.token("revoked", "admin")
    await revoke_token(here.client, "revoked")
    root = str(here.http.headers["authorization"])
    return {
        "nobody": {},
        "wrong": {"authorization": f"{root[:-1]}{'a' if root[-1] != 'a' else 'b'}"},
        "revoked": revoked,
        "proxied": {"x-forwarded-for": "127.0.0.1", "cookie": f"token={root}; perdure_session={root}"},
        "read": await here.token("reader", "read"),
        "operate": await here.token("operator", "operate"),
        "admin": {"authorization": root},
    }


def needed(method: str, path: str) -> str:
    """The least scope for a route, by its path and method alone."""
    if path.startswith(("/api/v1/tokens", "/api/v1/audit")):
        return "admin"
    return "read" if method == "GET" else "operate"


SCOPES = ("read", "operate", "admin")


async def test_every_route_is_for_those_only_who_have_its_scope(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shield, "_keep_pace", lambda *_: None)  # Strangers would be slowed down, and told nothing else.
    asked: Counter[str] = Counter()
    async with site(make_store, stream_s_max=0.05) as here:
        document = told(await here.http.get("/openapi.json"))
        everybody = await callers(here)
        async with httpx.AsyncClient(base_url=here.url, timeout=60, trust_env=False) as http:
            for method, path, operation in operations(document):
                for caller, header in everybody.items():
                    given = {**header, "If-Match": "*"}
                    body = body_of(document, operation)
                    answer = await http.request(method, filled(path, operation), headers=given, json=body)
                    asked[caller] += 1
                    status = answer.status_code
                    place = f"{caller}: {method} {path} gives {status} {answer.text[:200]}"
                    assert status < 500, place
                    if path in OPEN:
                        assert status == 200, place
                    elif caller not in SCOPES:
                        assert status == 401, place
                    elif SCOPES.index(caller) < SCOPES.index(needed(method, path)):
                        assert status == 403, place
                    else:
                        assert status not in (401, 403, 429), place
    print(f"{asked.total()} requests over {len(list(operations(document)))} operations")  # noqa: T201 - for the record
    assert asked.total() >= 382


async def send_all(here: Site, chosen: list[Any]) -> Counter[int]:
    statuses: Counter[int] = Counter()
    async with httpx.AsyncClient(
        base_url=here.url, headers=dict(here.http.headers), timeout=60, trust_env=False
    ) as http:
        for attack in chosen:
            answer = await http.request(
                attack.method, attack.path, params=attack.params, headers=attack.headers, json=attack.body
            )
            statuses[answer.status_code] += 1
            place = f"{attack}: {answer.status_code} {answer.text[:300]}"
            assert answer.status_code < 500, place
            assert "set-cookie" not in answer.headers, place
            assert "text/html" not in answer.headers.get("content-type", ""), place
            assert "root:x:0" not in answer.text, place
            assert answer.headers["x-content-type-options"] == "nosniff", place
    return statuses


SOAK = [pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.mark.parametrize("part", ["some", *(pytest.param(number, marks=SOAK) for number in range(PARTS))])
async def test_no_text_is_taken_for_more_than_text(
    make_store: MakeStore, part: int | str, caplog: pytest.LogCaptureFixture
) -> None:
    async with site(make_store, stream_s_max=0.02) as here:
        document = told(await here.http.get("/openapi.json"))
        every = list(attacks(document))
        chosen = every[part::PARTS] if isinstance(part, int) else random.Random(18).sample(every, SOME)
        before = await here.start("sleeps", "untouched")
        statuses = await send_all(here, chosen)
        # Nothing was dropped, and nobody who was not named was touched.
        assert (await here.run("untouched"))["input"] == before["input"]
        await here.start("greet", "still", name="ada")
        assert (await here.until("still", "succeeded"))["output"] == "hello ada"
    assert not Path(MARK).exists()
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
    print(f"{len(chosen)} of {len(every)} injections: {dict(statuses)}")  # noqa: T201 - for the record
