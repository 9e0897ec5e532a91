"""The whole OpenAPI document, asked with whatever fits it and whatever does not: schemathesis makes it up.

No answer is a 500 or one that the document does not have, and what is refused leaves the store as it was.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy, one_of
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from perdure import Engine, Limits
from perdure.engine import AnyClient
from perdure.http import make_token, serving
from perdure.testing import VirtualClock
from perdure.testing.control import is_quiet
from perdure.views import RunView
from tests.http.site import APPROVALS, ORDERS, WORKFLOWS, Paid

EXAMPLES = int(os.environ.get("PERDURE_FUZZ_EXAMPLES", "10"))
MANY = 80  # of each operation, in a soak
SOAK = [pytest.mark.soak, pytest.mark.timeout(3600)]
POSITIVE = GenerationMode.POSITIVE


class Target:
    """A server in a thread of its own, since schemathesis asks without awaiting."""

    def __init__(self, url: str, token: str, client: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.headers = {"authorization": f"Bearer {token}"}
        self.ids: dict[str, list[str]] = {
            "run_id": ["r-1", "r-3", "r-4", "g-1"],
            "key": ["k"] * 4,
            "name": ["log"] * 4,
            "queue": ["gpu"],
            "topic": ["orders", "approvals"],
            "kind": ["prompt"] * 4,
        }
        self._client = client
        self._loop = loop

    async def look_round(self) -> None:
        """Learn the ids of what is there."""
        self.ids["task_id"] = [one.id for one in await self._client.tasks.list()]
        self.ids["letter_id"] = [one.id for one in await self._client.dead_letters.list()]
        root = await self._client.emit(ORDERS, {"asks": True}, id="m-1")
        self.ids["root_id"] = [root.id, *root.run_ids]
        self.ids["artifact_id"] = [one.id for one in await self._client.artifacts.list()]

    def contents(self) -> Any:
        """All that a request could change."""
        return asyncio.run_coroutine_threadsafe(self._contents(), self._loop).result(30)

    async def _contents(self) -> Any:
        client = self._client
        # What was begun goes on until it waits or has ended: then nothing changes but by request.
        # One that waits, and has just been given what it waits for, only the engine knows of.
        while not is_quiet(client) or any(
            is_busy(run) for run in (await client.runs.list(status=("created", "running"), limit=1000)).runs
        ):
            await asyncio.sleep(0.005)
            await client.recover()  # Time stands still, so the engine does not look by itself for runs that nobody has.
        runs = (await client.runs.list(limit=1000)).runs
        kinds = ("perdure.dead-letter-removal", "perdure.handler")
        found = [
            [await client.handle(run.id).audit() for run in runs],
            await client.events.pending(limit=1000),
            await client.dead_letters.list(limit=1000),
            await client.tasks.list(limit=1000),
            await client.artifacts.list(limit=1000),
            [await client.records.list(kind, limit=1000) for kind in kinds],
            [(one.name, one.version) for one in await client.credentials.token_versions()],
            await client.topics.handlers(),
        ]
        return msgspec.json.encode(found)


def is_busy(run: RunView) -> bool:
    return run.stranded is None and run.hold is None


async def settled(client: AnyClient) -> None:
    """Have something of everything that a request can be about, none of which changes by itself."""
    for id in ("r-1", "r-2"):
        await client.start("asks", {"order": "o", "kind": "remote" if id == "r-2" else "human"}, id=id)
    await client.topics.register(APPROVALS, "boss")
    await client.emit(ORDERS, {"asks": True}, id="m-1")
    await client.start("sleeps", {}, id="r-3")
    await client.start("makes", {"name": "n", "text": "t"}, id="r-4")
    await client.handle("r-4").result()
    await client.start("greeting", {"input": {"name": "ada"}}, id="g-1")
    while len(await client.tasks.list()) < 2 or await client.handle("r-3").status() != "suspended":
        await asyncio.sleep(0.01)
    await client.send(Paid(amount=1), to="r-3")
    await client.handle("r-3").cancel()
    for id in ("r-1", "r-2", "g-1"):
        while await client.handle(id).status() != "suspended":
            await asyncio.sleep(0.01)


@contextmanager
def target(store: str) -> Iterator[Target]:
    ready: list[Target] = []
    is_ready, is_over = threading.Event(), threading.Event()

    async def house() -> None:
        loop = asyncio.get_running_loop()
        # Time stands still: no delay or deadline that a request asked for passes while another one is judged.
        async with Engine(store, workflows=WORKFLOWS, limits=Limits(grace_s=0), clock=VirtualClock()) as engine:
            await settled(engine)
            token = await make_token(engine, "root", "admin")
            options: dict[str, Any] = {"requests_burst": 1_000_000, "stream_s_max": 0.02, "poll_s": 0.01}
            async with serving(engine, port=0, **options) as url:
                ready.append(Target(url, token, engine, loop))
                await ready[0].look_round()
                is_ready.set()
                await asyncio.to_thread(is_over.wait)

    thread = threading.Thread(target=asyncio.run, args=(house(),))
    thread.start()
    try:
        while not is_ready.wait(0.1):
            assert thread.is_alive()
        yield ready[0]
    finally:
        is_over.set()
        thread.join()


CONFORMS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
]
LIMITS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


def cases(operation: Any, there: Target) -> SearchStrategy[Any]:
    """Requests that fit the document and some that do not, for things that are there and for things that are not."""
    names = [parameter.name for parameter in operation.path_parameters]
    strategies = [operation.as_strategy(mode) for mode in GenerationMode if mode is POSITIVE or has_parts(operation)]
    for ids in zip(*(there.ids[name] for name in names), strict=False) if names else ():
        known = dict(zip(names, ids, strict=True))
        strategies.append(operation.as_strategy(path_parameters=known))
        strategies.append(operation.as_strategy(path_parameters=known, headers={"If-Match": "*"}))
    return one_of(strategies)


def has_parts(operation: Any) -> bool:
    """Whether there is anything about a request that could be wrong."""
    return bool(operation.body.items or operation.query.items or operation.path_parameters.items)


def without_security(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what it says of tokens. Else schemathesis leaves the token out of some of the cases that do
    not fit: they test the gate, which test_matrix does, and soon they are too many guesses and test nothing at all."""
    assert document.pop("security", None), "the document says no longer that requests need a token"
    del document["components"]["securitySchemes"]
    for item in document["paths"].values():
        for operation in item.values():
            operation.pop("security", None)
    return document


@pytest.mark.parametrize(
    "examples",
    [pytest.param(EXAMPLES, marks=pytest.mark.timeout(300)), pytest.param(MANY, marks=SOAK)],
    ids=["some", "many"],
)
def test_nothing_that_is_asked_gets_an_answer_that_is_not_in_the_document(tmp_path: Path, examples: int) -> None:
    statuses: Counter[int] = Counter()
    with target(f"sqlite:///{tmp_path / 'fuzz.db'}") as there, requests.Session() as session:
        document = session.get(f"{there.url}/api/v1/openapi.json", headers=there.headers, timeout=30).json()
        schema = schemathesis.openapi.from_dict(without_security(document))
        for result in schema.get_all_operations():
            operation: Any = result.ok()  # type: ignore[union-attr] # an error in the document fails here, and should

            def one(case: Any) -> None:
                may_change = case.method != "GET"
                before = there.contents() if may_change else None
                response = case.call(base_url=there.url, headers=there.headers, session=session, timeout=30)
                case.validate_response(response, checks=CONFORMS, headers=there.headers)
                statuses[response.status_code] += 1
                if may_change and 400 <= response.status_code < 500:
                    assert there.contents() == before, f"{case.method} {case.path}: {response.text}"

            settings(LIMITS, max_examples=examples)(given(case=cases(operation, there))(one))()
    print(f"{statuses.total()} cases: {dict(statuses)}")  # noqa: T201 - for the record
    assert {200, 201, 202, 204, 400, 404, 409, 428} <= set(statuses), statuses
    assert not {401, 403, 429} & set(statuses), f"not all cases got past the gate: {statuses}"
