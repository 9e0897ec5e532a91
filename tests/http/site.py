"""A site as users have it: an engine, and a server of its own beside it, asked over a real connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from perdure import (
    Client,
    Engine,
    Event,
    Limits,
    Retry,
    Workflow,
    current_step,
    publish,
    receive,
    sleep,
    stage,
    step,
    stream,
    task,
    workflow,
)
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.engine import AnyClient
from perdure.graph import Graph, wait
from perdure.http import Scope as TokenScope
from perdure.http import make_token, serving
from perdure.ports import Store

JSON = {"content-type": "application/json"}


class Paid(Event, on_target_terminated="dead_letter"):
    amount: int


class Approval(msgspec.Struct):
    ok: bool


@workflow
async def greet(name: str, times: int = 1) -> str:
    return "hello " * times + name


@workflow
async def pays(order: str) -> int:
    await publish("order", order)
    log = stream("log")
    await log.append("waits")
    paid = await receive(Paid)
    await log.append("paid")
    return paid.amount


@workflow
async def sleeps() -> None:
    await sleep(3600)


@workflow
async def family() -> str:
    return await greet("child")


class Luck:
    """What makes `fails` succeed at last."""

    has_come = False


@step(retry=Retry.never())
async def tries() -> str:
    if not Luck.has_come:
        raise ValueError("<b>no luck</b>")
    return "done"


@workflow
async def fails() -> str:
    return await tries()


@workflow
async def asks(order: str, kind: str = "human") -> str:
    got = await task(
        queue="gpu" if kind == "remote" else "approvals",
        payload={"order": order},
        title=f"Approve {order}?",
        schema=Approval,
        kind="remote" if kind == "remote" else "human",
    )
    return f"{order} {got.ok}"


@step
async def renders(name: str, text: str, media_type: str | None) -> None:
    current_step().stage("bytes", b"\0\xff" * 700_000)
    current_step().stage(name, text, media_type=media_type)


@workflow
async def makes(name: str, text: str, media_type: str | None = None) -> str:
    await renders(name, text, media_type)
    await stage("numbers", [1, 2, 3])
    return name


@step
async def says(name: str) -> str:
    return f"hello {name}"


greeting: Graph[Any, Any] = Graph("greeting")
greeting.node("says", says, input={"name": "input.name"})
greeting.node("more", wait("told"))
greeting.edge("says", "more")

ORDERS, APPROVALS = Topic("orders", dict[str, Any]), Topic("approvals", dict[str, Any])
places: Operation[dict[str, Any]] = Operation("places", ORDERS)


@places.step
async def book(scope: Scope, order: dict[str, Any]) -> None:
    if order.get("asks"):
        await scope.emit(APPROVALS, order)


@book.rollback
async def unbook(scope: Scope, order: dict[str, Any], cause: Failure) -> None: ...


WORKFLOWS: list[Workflow[Any, Any] | Operation[Any]] = [
    *(greet, pays, sleeps, family, fails, asks, makes, greeting),
    places,
]


class Site:
    """`http` asks as an admin. `client` is the server's own."""

    def __init__(self, engine: Engine, client: AnyClient, http: httpx.AsyncClient, url: str) -> None:
        self.engine = engine
        self.client = client
        self.http = http
        self.url = url

    async def token(self, name: str, scope: TokenScope | str) -> dict[str, str]:
        """The header of a new token."""
        return {"authorization": f"Bearer {await make_token(self.client, name, scope)}"}

    async def start(self, workflow: str, id: str, **input: Any) -> dict[str, Any]:
        run: dict[str, Any] = told(
            await self.http.post("/runs", json={"workflow": workflow, "id": id, "input": input}), 201
        )
        return run

    async def run(self, id: str) -> dict[str, Any]:
        run: dict[str, Any] = told(await self.http.get(f"/runs/{id}"))
        return run

    async def until(self, id: str, *statuses: str) -> dict[str, Any]:
        while (found := await self.run(id))["status"] not in statuses:
            await asyncio.sleep(0.01)
        return found

    async def task(self, **wanted: str) -> dict[str, Any]:
        """The first task there is, as soon as there is one."""
        while not (found := told(await self.http.get("/tasks", params=wanted))["tasks"]):
            await asyncio.sleep(0.01)
        first: dict[str, Any] = found[0]
        return first


@asynccontextmanager
async def site(
    make_store: Callable[[], Store], *, workflows: Sequence[Any] = WORKFLOWS, **options: Any
) -> AsyncGenerator[Site]:
    Luck.has_come = False
    engine = Engine(make_store(), workflows=workflows, poll_s=0.05, limits=Limits(grace_s=0))
    client = Client(make_store(), poll_s=0.05)
    options = {"poll_s": 0.02, "requests_burst": 100_000, **options}
    async with engine, client:
        header = {"authorization": f"Bearer {await make_token(client, 'root', TokenScope.ADMIN)}"}
        async with (
            serving(client, port=0, **options) as url,
            httpx.AsyncClient(base_url=f"{url}/api/v1", headers=header, timeout=60, trust_env=False) as http,
        ):
            yield Site(engine, client, http, url)


def told(response: httpx.Response, status: int = 200) -> Any:
    """What was answered, with this status."""
    assert response.status_code == status, f"{response.status_code}: {response.text}"
    return response.json() if response.content else None


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Why it was refused: with this status and this code."""
    found = told(response, status)
    assert response.headers["content-type"] == "application/problem+json"
    assert (found["code"], found["status"], found["type"]) == (code, status, f"urn:perdure:problem:{code}")
    about: dict[str, Any] = found["about"]
    return about
