"""A store that cannot be used as it is: tables are renamed, rights are revoked, the file is read-only.

An engine gives its runs up, so that others can take them, and goes on by itself once that is mended. If nobody mends
it, the engine stops: everybody who waits is told at once, and nothing is left that looks alive.
"""

from __future__ import annotations

import asyncio
import fcntl
import sqlite3
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest

from perdure import Blocking, Client, Engine, Event, Limits, receive, resource, step, workflow
from perdure.cooperation import Operation, Scope, Topic
from perdure.errors import EngineStopped, InvariantViolated, RunNotFound, StoreBroken, StoreMisconfigured
from perdure.kernel.batch import Batch, Committed
from perdure.ports import Store
from perdure.storage import open_store
from perdure.storage.postgres import upgrade
from perdure.testing import check_store
from perdure.testing.proxy import StoreProxy
from tests.fleet.conftest import Sailing, until
from tests.storage.postgres.meddler import meddler
from tests.storage.postgres.test_rights import make_roles

T = TypeVar("T")

QUICK = Limits(restart_first_s=0.02, restart_max_s=0.1, restarts_max=1000, grace_s=0)
SOON = Limits(restart_first_s=0.01, restarts_max=2, grace_s=0)


class Go(Event):
    pass


class Calls:
    def __init__(self) -> None:
        self.made: list[str] = []


@step
async def calls(run: str) -> str:
    resource(Calls).made.append(run)
    return run


@workflow
async def waits_not(run: str) -> str:
    return await calls(run)


@workflow
async def waits(run: str) -> str:
    await receive(Go)
    return await calls(run)


TOPIC = Topic("orders", str)
place = Operation("place", TOPIC)


@place.step
async def hangs(scope: Scope, order: str) -> None:
    await asyncio.Event().wait()


class Trouble:
    """Makes the store of `store` unfit, and fit again. Other stores come from `make`."""

    def __init__(self, make: Callable[[], Store]) -> None:
        self.make = make
        self.store = make()

    async def begin(self) -> None: ...

    async def end(self) -> None: ...

    async def left(self) -> list[str]:
        """The signs of life that there are."""
        return []


class SqliteTrouble(Trouble):
    """A table is renamed by somebody else."""

    def __init__(self, path: Path) -> None:
        super().__init__(lambda: open_store(f"sqlite:///{path}"))
        self._path = path

    async def begin(self) -> None:
        self._change("alter table journal rename to elsewhere")

    async def end(self) -> None:
        self._change("alter table elsewhere rename to journal")

    def _change(self, sql: str) -> None:
        with closing(sqlite3.connect(self._path, timeout=60)) as connection:
            connection.execute(sql)

    async def left(self) -> list[str]:
        return [path.name for path in self._path.parent.glob("*.lock") if _is_locked(path)]


def _is_locked(path: Path) -> bool:
    """Whether an engine lives. The file of one that does not may stay: it tells how many commits there should be."""
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class ReadOnly(SqliteTrouble):
    """The engine's connection may not write."""

    async def begin(self) -> None:
        await self._allow("on")

    async def end(self) -> None:
        await self._allow("off")

    async def _allow(self, state: str) -> None:
        store: Any = self.store
        with suppress(StoreBroken):  # It may be closed.
            await store._db.writer.run(lambda connection: connection.execute(f"pragma query_only = {state}"))


class PostgresTrouble(Trouble):
    """A table is renamed by somebody else. Leases are long: whoever looks alive is alive for the whole test."""

    CHANGES = ("alter table journal rename to elsewhere", "alter table elsewhere rename to journal")

    def __init__(self, owner: str, url: str, other: Any) -> None:
        super().__init__(lambda: open_store(url))
        self.owner = owner
        self._other = other

    async def begin(self) -> None:
        await self._other.execute(self.CHANGES[0])

    async def end(self) -> None:
        await self._other.execute(self.CHANGES[1])

    async def left(self) -> list[str]:
        return [row[0] for row in await self._other.fetch("select engine_id from heartbeats")]


class RightsTrouble(PostgresTrouble):
    """The engine's user loses a right."""

    CHANGES = ("revoke insert on journal from shop_runtime", "grant insert on journal to shop_runtime")


Troubled = Callable[[], AbstractAsyncContextManager[Trouble]]


@pytest.fixture(params=["sqlite", "sqlite read-only", "postgres", "postgres rights"])
def troubled(request: pytest.FixtureRequest, tmp_path: Path) -> Troubled:
    @asynccontextmanager
    async def opened() -> AsyncGenerator[Trouble]:
        kind: str = request.param
        if kind.startswith("sqlite"):
            yield (ReadOnly if kind == "sqlite read-only" else SqliteTrouble)(tmp_path / "runs.db")
            return
        owner = f"{request.getfixturevalue('postgres_servers').fresh()}&lease=60"
        if kind == "postgres":
            async with Client(owner), meddler(owner) as other:
                yield PostgresTrouble(owner, owner, other)
            return
        as_owner, url = await make_roles(owner)
        await upgrade(as_owner, runtime_role="shop_runtime")
        async with meddler(owner) as other:
            yield RightsTrouble(owner, url, other)

    return opened


def engine_on(store: Store, made: Calls, **options: Any) -> Engine:
    return Engine(
        store,
        workflows=[waits, waits_not, place],
        resources={Calls: lambda: made},
        poll_s=0.05,
        **options,
    )


async def test_an_engine_goes_on_by_itself_once_its_store_is_fit_again(
    troubled: Troubled, caplog: pytest.LogCaptureFixture
) -> None:
    made = Calls()
    async with troubled() as trouble, engine_on(trouble.store, made, limits=QUICK) as engine:
        run = await engine.start(waits("r"), id="r")
        result = asyncio.ensure_future(run.result())
        await trouble.begin()
        # The event is written, and the step's result is not; or not even the event is.
        sending = asyncio.ensure_future(engine.send(Go(), to="r", key="once"))
        while caplog.text.count("the engine registers anew in") < 3:
            await asyncio.sleep(0.01)
        assert not result.done()
        await trouble.end()
        await sending
        assert await result == "r"
        assert await engine.run(waits_not("s")) == "s"
        stored = await engine.session.store.engines()
        assert [one.alive for one in stored if one.workflows].count(True) == 1
        assert not stored[-1].alive or stored[-1].id == engine.session.coordinator.engine.id
        assert await check_store(engine.session.store) == 2


async def test_an_engine_whose_store_stays_unfit_stops_and_tells_everybody_at_once(troubled: Troubled) -> None:
    made = Calls()
    async with troubled() as trouble, engine_on(trouble.store, made, limits=SOON) as engine:
        await engine.start(waits("r"), id="r")
        root = await engine.emit(TOPIC, "o-1")
        before = await trouble.left()
        waiting = [
            asyncio.ensure_future(one)
            for one in (
                engine.handle("r").result(),
                root.finished(),
                anext(engine.handle("r").stream("log")),
                engine.until_stopped(),
            )
        ]
        await trouble.begin()
        sending = asyncio.ensure_future(engine.send(Go(), to="r"))
        for one in waiting:
            with pytest.raises(EngineStopped, match=r"has stopped: .*after 2 new starts: "):
                await one
        await asyncio.wait([sending])
        for call in (
            engine.runs.get("r"),
            engine.send(Go(), to="r"),
            engine.emit(TOPIC, "o"),
            engine.start(waits("s")),
        ):
            with pytest.raises(EngineStopped, match="has stopped"):
                await call
        assert len(await trouble.left()) == len(before) - 1  # Nothing is left that looks alive.
        await trouble.end()
        async with engine_on(trouble.make(), made) as other:
            await other.send(Go(), to="r")
            assert await other.handle("r").result() == "r"


class Unfit(StoreProxy):
    """Cannot be used by one engine while `is_unfit`, as if that one's user had lost a right."""

    is_unfit = False

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if self.is_unfit:
            request.close()
            raise StoreMisconfigured("this user has not the rights")
        return await request


async def test_others_take_the_runs_of_an_engine_that_cannot_use_the_store(
    fleet: Sailing, make_store: Callable[[], Store]
) -> None:
    made = Calls()
    store = Unfit(make_store())
    async with fleet() as ships:
        resources = {Calls: lambda: made}
        one = await ships.engine([waits], store=store, resources=resources, limits=QUICK)
        await one.start(waits("r"), id="r")
        result = asyncio.ensure_future(one.handle("r").result())
        other = await ships.engine([waits], resources=resources)
        store.is_unfit = True
        asking = asyncio.ensure_future(one.send(Go(), to="nobody"))  # It notices.

        async def is_given_up() -> bool:
            return not store.is_surely_alive()

        await until(is_given_up)
        await other.send(Go(), to="r")
        assert await other.handle("r").result() == "r"
        store.is_unfit = False
        assert await result == "r"  # Whoever waits at the first one hears of it there.
        with pytest.raises(RunNotFound):
            await asking
        assert made.made == ["r"]


def test_who_waits_without_awaiting_is_told_too(tmp_path: Path) -> None:
    trouble = SqliteTrouble(tmp_path / "runs.db")
    engine = engine_on(trouble.store, Calls(), limits=SOON)
    with Blocking(engine) as wait:
        run = wait(engine.start(waits("r"), id="r"))
        asyncio.run(trouble.begin())
        with pytest.raises(EngineStopped, match="has stopped"):
            wait(asyncio_gather(engine.send(Go(), to="r"), run.result()), timeout=60)


async def asyncio_gather(sending: Any, result: Any) -> None:
    sent = asyncio.ensure_future(sending)
    try:
        await result
    finally:
        await asyncio.wait([sent])


class Wrong(StoreProxy):
    """Finds at a commit that something is not as it must be."""

    is_wrong = False

    async def commit(self, batch: Batch) -> Committed:
        if self.is_wrong:
            raise InvariantViolated("a row is not as it must be")
        return await super().commit(batch)


async def test_an_engine_that_stops_for_good_leaves_its_runs_to_others_at_once(
    fleet: Sailing, make_store: Callable[[], Store]
) -> None:
    made = Calls()
    store = Wrong(make_store())
    async with fleet() as ships:
        resources = {Calls: lambda: made}
        one = await ships.engine([waits], store=store, resources=resources)
        await one.start(waits("r"), id="r")
        result = asyncio.ensure_future(one.handle("r").result())
        other = await ships.engine([waits], resources=resources)
        store.is_wrong = True
        with pytest.raises(EngineStopped, match="a row is not as it must be"):
            await one.start(waits("s"))
        with pytest.raises(EngineStopped, match="a row is not as it must be"):
            await result
        with pytest.raises(EngineStopped, match="a row is not as it must be"):
            await one.until_stopped()
        assert len(await other.engines.list()) == 1 or await other.engines.mark_dead() == 1
        await other.send(Go(), to="r")
        assert await other.handle("r").result() == "r"
        assert not one.session.tasks, "nothing of it goes on"
