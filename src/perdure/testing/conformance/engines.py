"""Engines: enrolling, retiring, dying."""

from __future__ import annotations

import pytest

from perdure.errors import CommitRefused, Fenced, PerdureError
from perdure.kernel.records import Engine
from perdure.testing.conformance.base import Author, Rules, a_run, insert, update


class EngineRules(Rules):
    async def test_an_enrolled_engine_is_known_to_all(self) -> None:
        async with self.opened() as store, self.opened() as other:
            has = [("a", ""), ("b", "2")]
            engine = await store.enroll(engine_id="e", host="höst", pid=7, workflows=has, at=9)
            assert engine == Engine(
                id="e", epoch=engine.epoch, alive=True, batch=0, host="höst", pid=7, workflows=has, started_at=9
            )
            assert await other.engines() == [engine]

    async def test_epochs_grow(self) -> None:
        async with self.opened() as store:
            engines = [(await Author.enroll(store, engine_id)).engine for engine_id in ("c", "a", "b")]
            assert engines[0].epoch < engines[1].epoch < engines[2].epoch
            assert await store.engines() == engines

    async def test_an_id_can_be_enrolled_once(self) -> None:
        async with self.author("e"):
            async with self.opened() as other:
                with pytest.raises(CommitRefused):
                    await Author.enroll(other, "e")
            async with self.opened() as other:
                assert await other.bury() == []
        async with self.opened() as later:
            with pytest.raises(CommitRefused):
                await Author.enroll(later, "e")
            assert await later.bury() == ["e"]

    @pytest.mark.parametrize("engine_id", ["../up/and/away", "a b", "ü:*?", "."])
    async def test_any_text_can_be_an_engines_id(self, engine_id: str) -> None:
        async with self.author(engine_id) as author:
            await author.commit(insert(a_run()))
            assert await author.store.bury() == []

    async def test_a_living_engine_is_not_buried(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            assert await one.store.bury() == []
            assert await other.store.bury() == []
            await one.commit()
            await other.commit()

    async def test_an_abandoned_engine_is_buried_once_and_fenced(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run(owner=one.id)))
            one.store.abandon()
            assert [engine.alive for engine in await other.store.engines()] == [True, True]
            assert await other.store.bury() == ["e-1"]
            assert await other.store.bury() == []
            assert [engine.alive for engine in await other.store.engines()] == [False, True]
            assert (await other.store.load(["r-1"]))["r-1"].run.owner == "e-1"

    async def test_an_abandoned_store_writes_nothing_more(self) -> None:
        async with self.author("e-1") as one, self.opened() as other:
            one.store.abandon()
            one.store.abandon()
            with pytest.raises(PerdureError):
                await one.commit(insert(a_run()))
            assert await other.load(["r-1"]) == {}
            await one.store.close()

    async def test_a_closed_store_leaves_its_engine_without_a_sign_of_life(self) -> None:
        async with self.opened() as other:
            async with self.author("e-1") as one:
                assert await other.bury() == []
            await one.store.close()
            assert await other.bury() == ["e-1"]

    async def test_a_store_is_of_no_use_before_and_after(self) -> None:
        store = self.make_store()
        with pytest.raises(PerdureError):
            await store.engines()
        await store.open()
        await store.close()
        with pytest.raises(PerdureError):
            await store.engines()

    async def test_a_buried_engine_enrolls_anew_under_another_id(self) -> None:
        async with self.author("e-1") as one:
            await one.store.retire("e-1")
            with pytest.raises(Fenced):
                await one.commit()
            again = await Author.enroll(one.store, "e-1b")
            assert again.engine.epoch > one.engine.epoch
            await again.commit(insert(a_run()))

    async def test_a_retired_engine_owns_nothing_any_more(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run("a", owner="e-1", claim=3)), insert(a_run("b", owner="e-1")))
            await other.commit(insert(a_run("c", owner="e-2")))
            await one.store.retire("e-1")
            await one.store.retire("e-1")
            loaded = await other.store.load(["a", "b", "c"])
            assert {one: loaded[one].run.owner for one in loaded} == {"a": None, "b": None, "c": "e-2"}
            assert loaded["a"].run.version == 1
            await other.commit(update(loaded["a"].run, owner="e-2"))

    async def test_retiring_an_unknown_engine_does_nothing(self) -> None:
        async with self.opened() as store:
            await store.retire("nobody")
            assert await store.engines() == []
