"""A client: a process without workflow code talks to the engines."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from perdure import Client, Delivered, Engine, Event, Queued, Retry, Workflow, receive, sleep, step, stub, workflow
from perdure.errors import (
    EngineStopped,
    InvalidArguments,
    RunCancelled,
    RunExists,
    RunFailed,
    RunFinished,
    RunNotFound,
    StoreBusy,
    StoreUnavailable,
    UnknownWorkflow,
)
from perdure.kernel.status import Status
from perdure.models.functions.publications import publish, stream
from perdure.ports import Store, StoredRun
from perdure.testing.proxy import StoreProxy
from perdure.values.limits import Limits
from tests.fleet.conftest import until


class Paid(Event):
    amount: int


@workflow(name="greet")
async def greet_here(name: str, times: int = 1) -> str:
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


FAILURES: list[str] = []


@step(retry=Retry.never())
async def once() -> str:
    if not FAILURES:
        FAILURES.append("failed")
        raise ValueError("the first time")
    return "done"


@workflow
async def fails_once() -> str:
    return await once()


WORKFLOWS: list[Workflow[Any, Any]] = [greet_here, pays, sleeps, fails_once]


@stub(name="greet")
async def greet(name: str, times: int = 1) -> str:
    raise NotImplementedError


@workflow
async def asks_elsewhere(name: str) -> str:
    return await greet(name) + "!"


Make = Callable[[], Store]


async def test_a_run_is_started_by_name_and_json(make_store: Make) -> None:
    async with Engine(make_store(), workflows=WORKFLOWS), Client(make_store()) as client:
        run = await client.start("greet", {"name": "Ada", "times": 2}, id="g", tags={"by": "client"})
        assert await run.result() == "hello hello Ada"
        assert (await client.start("greet", {"name": "Ada", "times": 2}, id="g")).id == "g"
        with pytest.raises(RunExists):
            await client.start("greet", {"name": "Bob"}, id="g")
        view = await client.runs.get("g")
        assert view is not None
        assert (view.output, view.tags) == ("hello hello Ada", {"by": "client"})
        assert [one.id for one in (await client.runs.list(workflow="greet")).runs] == ["g"]
        assert [entry.became for entry in (await client.handle("g").history()).audit][-1] == Status.SUCCEEDED


class AwayNowAndThen(StoreProxy):
    """A store that cannot be asked for runs just now, for a while or for ever."""

    def __init__(self, inner: Store, times: float) -> None:
        super().__init__(inner)
        self.times = times

    async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
        self.times -= 1
        if self.times >= 0:
            raise StoreBusy("the store is away, as asked")
        return await super().get(ids)


async def test_whoever_waits_for_a_result_does_not_hear_that_the_store_was_away_for_a_moment(make_store: Make) -> None:
    store = AwayNowAndThen(make_store(), times=3)
    async with Engine(make_store(), workflows=WORKFLOWS) as engine, Client(store) as client:
        await engine.run(greet_here("Ada"), id="g")
        assert await client.handle("g").result() == "hello Ada"
        assert store.times < 0


async def test_whoever_waits_for_a_result_hears_in_the_end_that_the_store_is_away(make_store: Make) -> None:
    store = AwayNowAndThen(make_store(), times=math.inf)
    async with Client(store, limits=Limits(resend_first_s=0.001, patience_s=0.01)) as client:
        with pytest.raises(StoreUnavailable, match="the store is away, as asked"):
            await client.handle("g").result()


async def test_a_stub_makes_typed_calls(make_store: Make) -> None:
    async with Engine(make_store(), workflows=WORKFLOWS), Client(make_store()) as client:
        text: str = await client.run(greet("Ada"))
        assert text == "hello Ada"
        with pytest.raises(InvalidArguments):
            await client.run(greet(5))  # type: ignore[arg-type]


async def test_a_stub_is_awaited_as_a_child(make_store: Make) -> None:
    async with Engine(make_store(), workflows=WORKFLOWS), Engine(make_store(), workflows=[asks_elsewhere]) as other:
        assert await other.run(asks_elsewhere("Ada")) == "hello Ada!"


async def test_arguments_that_do_not_fit_fail_the_run(make_store: Make) -> None:
    async with Engine(make_store(), workflows=WORKFLOWS) as engine, Client(make_store()) as client:
        with pytest.raises(RunFailed, match="times"):
            await (await client.start("greet", {"name": "Ada", "times": "many"})).result()
        with pytest.raises(InvalidArguments):
            await engine.start("greet", {"nome": "Ada"})


async def test_what_nobody_has_code_for_is_not_started_unless_it_is_to_wait(make_store: Make) -> None:
    async with Client(make_store()) as client:
        with pytest.raises(
            UnknownWorkflow, match="no engine that is alive has a workflow 'greet', only: none; to start"
        ):
            await client.start("greet", {"name": "Ada"})
        run = await client.start("greet", {"name": "Ada"}, version="")
        view = await client.runs.get(run.id)
        assert view is not None
        assert (view.status, view.stranded) == (Status.CREATED, "no engine has workflow 'greet'")
        async with Engine(make_store(), workflows=WORKFLOWS):
            assert await run.result() == "hello Ada"


async def test_a_client_sends_and_follows(make_store: Make) -> None:
    async with Engine(make_store(), workflows=WORKFLOWS), Client(make_store()) as client:
        run = await client.start(pays("o-17"), id="o-17")

        async def waits() -> bool:
            return await run.status() == Status.SUSPENDED

        await until(waits)
        lines: list[str] = []

        async def follow() -> None:
            lines.extend([item.value async for item in client.handle("o-17").stream("log")])

        following = asyncio.ensure_future(follow())
        assert await client.send(Paid(amount=7), to="o-17") == Delivered(("o-17",))
        assert await run.result() == 7
        await following
        assert lines == ["waits", "paid"]
        assert await client.handle("o-17").published("order") == "o-17"
        with pytest.raises(RunFinished):
            await client.send(Paid(amount=8), to="o-17")
        with pytest.raises(RunNotFound):
            await client.send(Paid(amount=8), to="nobody")
        assert isinstance(await client.send(Paid(amount=9)), Queued)
        assert await client.run(pays("o-18")) == 9


async def test_a_client_cancels_retries_and_holds(make_store: Make) -> None:
    FAILURES.clear()
    async with Engine(make_store(), workflows=WORKFLOWS), Client(make_store()) as client:
        run = await client.start(sleeps(), id="s")
        assert await client.handle("s").pause(reason="later")
        assert await client.handle("s").resume()
        assert await client.handle("s").cancel(reason="enough")
        with pytest.raises(RunCancelled, match="enough"):
            await run.result()
        failing = await client.start(fails_once(), id="f")
        with pytest.raises(RunFailed, match="the first time"):
            await failing.result()
        assert await (await client.handle("f").retry()).result() == "done"


async def test_a_client_alone_does_what_needs_no_code(make_store: Make) -> None:
    async with Client(make_store()) as client:
        run = await client.start(sleeps(), id="s")
        assert (await client.handle("s").update(tags={"a": "b"})).tags == {"a": "b"}
        assert isinstance(await client.send(Paid(amount=1), to="s"), Queued)
        assert await client.handle("s").cancel()
        with pytest.raises(RunCancelled):
            await run.result()


async def test_a_client_that_is_closed_says_so(make_store: Make) -> None:
    client = Client(make_store())
    with pytest.raises(EngineStopped, match="use it inside `async with Client"):
        await client.runs.list()
    async with client:
        assert await client.engines.list() != []
    with pytest.raises(EngineStopped, match="this client was shut down; open a new one"):
        await client.runs.list()
