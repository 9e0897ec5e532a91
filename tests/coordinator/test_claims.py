"""Runs that a recovery claims while others write them: each is begun once, and by what is stored last."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Retry, step, workflow
from perdure.client import Client
from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import RunFailed, StoreBusy
from perdure.kernel.cooperation import ScopeRows
from perdure.ports import LoadedRun, Offer, Store
from perdure.testing import Environment, YieldPoints
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy
from tests.cooperation.shop import topic

CALLS: list[str] = []
ROOT = topic("root")


@step(retry=Retry(attempts=1))
async def call() -> None:
    CALLS.append("call")
    if len(CALLS) == 1:
        raise ValueError("no")


@workflow
async def once() -> None:
    await call()


def operation() -> Operation[dict[str, Any]]:
    made = Operation("root", ROOT)

    @made.step
    async def work(scope: Scope, message: dict[str, Any]) -> None:
        CALLS.append("work")

    made.sleep(timedelta(hours=1))
    return made


MEANWHILE: list[Callable[[], Awaitable[object]]] = []  # what happens before the next claim is answered


class Claims(StoreProxy):
    """A store whose answer to a claim takes its time."""

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        claimed = await super().claim(engine_id=engine_id, epoch=epoch, offers=offers, limit=limit)
        if claimed and MEANWHILE:
            await MEANWHILE.pop()()
        return claimed


@pytest.fixture(autouse=True)
def nothing_yet() -> None:
    CALLS.clear()
    MEANWHILE.clear()


def slow(store: Store) -> Store:
    return Claims(store)


async def failed(env: Environment) -> None:
    """A run that has failed, which a client retries: it is running, and nobody has it."""
    run = await env.engine.start(once(), id="r")
    with pytest.raises(RunFailed):
        await run.result()
    made: Any = env._make  # pyright: ignore[reportPrivateUsage]
    async with Client(made(), clock=env.clock) as client:
        await client.handle("r").retry()
    assert CALLS == ["call"]


async def test_a_run_that_is_claimed_while_its_row_is_written_is_begun_once(source: StoreSource) -> None:
    points = YieldPoints()
    async with Environment([once], source, autojump_s=None, probe=points) as env:
        await failed(env)
        with points.hold("update.before_commit") as held:
            updating = asyncio.create_task(env.engine.handle("r").update(tags={"a": "b"}))
            await held.reached()
            recovering = asyncio.create_task(env.engine.recover())  # It claims the run: the update is out of date.
            while env.engine.session.coordinator.loaded("r") is None:  # pyright: ignore[reportPrivateUsage]
                await asyncio.sleep(0)
        await updating
        await recovering
        await env.engine.handle("r").result()
        assert CALLS == ["call", "call"]
        await env.check()


async def test_a_run_that_is_written_before_its_claim_is_answered_is_begun_once(source: StoreSource) -> None:
    points = YieldPoints()
    async with Environment([once], source, autojump_s=None, probe=points, watch=slow) as env:
        await failed(env)
        with points.hold("update.before_commit") as held:
            updating = asyncio.create_task(env.engine.handle("r").update(tags={"a": "b"}))
            await held.reached()

            async def meanwhile() -> None:
                held.release()
                await updating

            MEANWHILE.append(meanwhile)
            await env.engine.recover()
        await env.engine.handle("r").result()
        assert CALLS == ["call", "call"]
        view = await env.engine.runs.get("r")
        assert view is not None
        assert (view.hold, view.tags) == (None, {"a": "b"})
        await env.check()


async def test_a_run_that_ends_before_its_claim_is_answered_is_not_kept(source: StoreSource) -> None:
    async with Environment([once], source, autojump_s=None, watch=slow) as env:
        await failed(env)
        MEANWHILE.append(lambda: env.engine.handle("r").cancel())
        await env.engine.recover()
        await env.settle()
        assert await env.engine.handle("r").status() == "cancelled"
        assert env.engine.session.coordinator.loaded("r") is None  # pyright: ignore[reportPrivateUsage]
        assert env.engine.runtime.functions.live_runs == 0  # pyright: ignore[reportPrivateUsage]
        assert CALLS == ["call"]


async def test_what_an_engine_claimed_before_it_registered_anew_is_claimed_again(source: StoreSource) -> None:
    async with Environment([once], source, autojump_s=None, watch=slow) as env:
        await failed(env)
        coordinator = env.engine.session.coordinator  # pyright: ignore[reportPrivateUsage]
        was = coordinator.engine.id
        kept: list[object] = []

        async def marked_dead() -> None:
            made: Any = env._make  # pyright: ignore[reportPrivateUsage]
            other = made()
            await other.open()
            await other.retire(was)
            await other.close()
            MEANWHILE.append(later)  # The engine recovers once more when it registers anew.
            await coordinator.check_fence()

        async def later() -> None:
            kept.append(coordinator.loaded("r"))

        MEANWHILE.append(marked_dead)
        await env.engine.recover()
        await env.engine.handle("r").result()
        assert coordinator.engine.id != was
        assert kept == [None]
        assert CALLS == ["call", "call"]
        await env.check()


@pytest.mark.parametrize("is_answered", [False, True])
async def test_an_operation_that_is_claimed_while_it_is_asked_is_begun_once(
    source: StoreSource, is_answered: bool
) -> None:
    """The engine cancels a hierarchy of which it claims a run in the same moment."""
    points = YieldPoints()
    made = operation()
    async with Environment([made], source, autojump_s=None, probe=points, watch=slow) as env:
        emitted = await env.engine.emit(ROOT, {})
        await env.settle()
        (id,) = emitted.run_ids
        await env.engine.handle(id).pause()
        await env.settle()
        store: Any = env._make  # pyright: ignore[reportPrivateUsage]
        async with Client(store(), clock=env.clock) as client:
            await client.handle(id).resume()
        with points.hold("cancelscope.before_commit") as held:
            cancelling = asyncio.create_task(env.engine.handle(emitted.id).cancel())
            await held.reached()

            async def meanwhile() -> None:
                if is_answered:
                    held.release()
                    await cancelling

            MEANWHILE.append(meanwhile)
            recovering = asyncio.create_task(env.engine.recover())
            for _ in range(200):
                await asyncio.sleep(0)
        assert await cancelling
        await recovering
        await env.settle()
        view = await env.engine.runs.get(id)
        assert view is not None
        assert (view.status, view.hold) == ("rolled_back", None)
        assert CALLS == ["work"]
        assert env.engine.runtime.operations.live_runs == 0
        assert env.engine.session.coordinator.loaded(id) is None  # pyright: ignore[reportPrivateUsage]
        await env.check()


class Outage(StoreProxy):
    """A store that answers a claim, and then fails one call of each of the methods in `FAILING`."""

    async def claim(
        self, *, engine_id: str, epoch: int, offers: Sequence[Offer], limit: int
    ) -> builtins.list[LoadedRun]:
        self._fail("claim")
        claimed = await super().claim(engine_id=engine_id, epoch=epoch, offers=offers, limit=limit)
        if claimed:
            FAILING.update(MISSED)
            MISSED.clear()
        return claimed

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        self._fail("scopes")
        return await super().scopes(ids)

    @staticmethod
    def _fail(method: str) -> None:
        if method in FAILING:
            FAILING.remove(method)
            raise StoreBusy("the store is away for a moment")


MISSED: set[str] = set()  # what fails after the next claim that finds something
FAILING: set[str] = set()


def undone() -> Operation[dict[str, Any]]:
    """An operation that rolls back, and whose rollback never ends the first three times."""
    made = Operation("root", ROOT)

    @made.step
    async def work(scope: Scope, message: dict[str, Any]) -> None: ...

    @work.rollback
    async def undo(scope: Scope, message: dict[str, Any], cause: Failure) -> None:
        CALLS.append("undo")
        if len(CALLS) <= 3:
            await asyncio.Event().wait()

    @made.step
    async def fail(scope: Scope, message: dict[str, Any]) -> None:
        raise ValueError("no")

    return made


@pytest.mark.parametrize("method", ["claim", "scopes"])
async def test_a_recovery_that_breaks_off_after_a_claim_goes_on_with_what_it_claimed(
    source: StoreSource, method: str
) -> None:
    async with Environment([undone()], source, autojump_s=None) as env:
        emitted = await env.engine.emit(ROOT, {})
        for deaths in range(2):  # After two deaths of its engine, a run is a suspect: it is taken up apart from others.
            while len(CALLS) == deaths:
                await asyncio.sleep(0)
            env.kill()
            await env.restart()
        made: Any = env._make  # pyright: ignore[reportPrivateUsage]
        while len(CALLS) < 3:
            await asyncio.sleep(0)
        async with Engine(Outage(made()), workflows=[undone()], clock=env.clock, poll_s=None) as engine:
            env.kill()
            MISSED.add(method)
            with pytest.raises(StoreBusy):
                await engine.runtime._recovery.run()
            assert not FAILING
            await engine.recover()
            (id,) = emitted.run_ids
            with pytest.raises(RunFailed, match="no"):
                await engine.handle(id).result()
            assert CALLS == ["undo"] * 4
