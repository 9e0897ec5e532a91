"""An engine that was taken for dead and lives comes back by itself."""

from __future__ import annotations

from collections.abc import Callable

from perdure import Engine
from perdure.ports import Store
from perdure.storage import open_store
from perdure.testing.proxy import StoreProxy
from tests.fleet.conftest import until
from tests.fleet.test_together import sleeps
from tests.storage.postgres.server import Servers


async def test_an_engine_that_was_marked_dead_registers_anew_though_it_has_nothing_to_do(
    postgres_servers: Servers,
) -> None:
    url = f"{postgres_servers.fresh()}&lease=1"
    async with Engine(url, workflows=[sleeps]) as engine:
        store = open_store(url)
        await store.open()
        try:
            (first,) = await store.engines()
            await store.retire(first.id)

            async def is_back() -> bool:
                return any(one.alive for one in await store.engines())

            await until(is_back)
            assert await engine.run(sleeps(0.01)) == "awake"
            assert [one.alive for one in await store.engines()] == [False, True]
        finally:
            await store.close()


async def test_an_engine_that_is_marked_dead_while_it_opens_registers_anew(make_store: Callable[[], Store]) -> None:
    class Hasty(StoreProxy):
        """Somebody takes the engine for dead before it has claimed anything."""

        async def mark_dead_engines(self) -> list[str]:
            engines = await self.inner.engines()
            if len(engines) == 1:
                await self.inner.retire(engines[0].id)
            return await super().mark_dead_engines()

    async with Engine(Hasty(make_store()), workflows=[sleeps]) as engine:
        assert await engine.run(sleeps(0.01)) == "awake"
        assert [one.alive for one in await engine.session.store.engines()] == [False, True]
