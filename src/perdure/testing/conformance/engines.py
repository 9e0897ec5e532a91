"""Engines: they register, retire and die."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from perdure.errors import CommitRefused, Fenced, PerdureError
from perdure.kernel.rows import Engine
from perdure.kernel.runs import Hold
from perdure.ports import ENGINES_KEPT_US
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
                assert await other.mark_dead_engines() == []
        async with self.opened() as later:
            with pytest.raises(CommitRefused):
                await Author.enroll(later, "e")
            assert await later.mark_dead_engines() == ["e"]

    @pytest.mark.parametrize("engine_id", ["../up/and/away", "a b", "ü:*?", "."])
    async def test_any_text_can_be_an_engines_id(self, engine_id: str) -> None:
        async with self.author(engine_id) as author:
            await author.commit(insert(a_run()))
            assert await author.store.mark_dead_engines() == []

    async def test_a_living_engine_is_not_buried(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            assert await one.store.mark_dead_engines() == []
            assert await other.store.mark_dead_engines() == []
            await one.commit()
            await other.commit()

    async def test_an_abandoned_engine_is_buried_once_and_fenced(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run(owner=one.id)))
            one.store.abandon()
            assert [engine.alive for engine in await other.store.engines()] == [True, True]
            assert await other.store.mark_dead_engines() == ["e-1"]
            assert await other.store.mark_dead_engines() == []
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
                assert await other.mark_dead_engines() == []
            await one.store.close()
            assert await other.mark_dead_engines() == ["e-1"]

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

    async def test_an_engine_that_has_signed_off_is_forgotten_and_stays_fenced(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run(owner=one.id)))
            await one.store.retire("e-1")
            assert [engine.id for engine in await other.store.engines()] == ["e-2"]
            assert [engine.id for engine in await other.store.engines(living=True)] == ["e-2"]
            with pytest.raises(Fenced):
                await one.commit(insert(a_run("late")))
            assert await other.claim() == ["r-1"]
            await one.store.retire("e-1")  # A second call is harmless.

    async def test_engines_that_come_and_go_one_by_one_are_forgotten(self) -> None:
        async with self.opened() as store:
            for number in range(5):
                await store.enroll(engine_id=f"e-{number}", host="h", pid=1, workflows=[], at=1)
                await store.retire(f"e-{number}")
            assert len(await store.engines()) <= 1  # A store may need the last engine to number later engines.
            later = await store.enroll(engine_id="e-5", host="h", pid=1, workflows=[], at=1)
            assert later.epoch > 5

    async def test_the_last_engine_that_had_some_code_is_remembered(self) -> None:
        async with self.opened() as store, self.author("e-9") as other:
            for engine_id in ("e-1", "e-2"):
                await store.enroll(engine_id=engine_id, host="h", pid=1, workflows=[("w", "")], at=1)
            await store.enroll(engine_id="e-3", host="h", pid=1, workflows=[], at=1)
            for engine_id in ("e-1", "e-2"):
                await store.retire(engine_id)
            assert [engine.id for engine in await other.store.engines()] == ["e-9", "e-2", "e-3"]

    async def test_engines_that_died_are_forgotten_after_a_day_unless_they_own_a_run(self) -> None:
        day = ENGINES_KEPT_US
        async with self.author("e-1") as owner, self.author("e-2") as idle, self.author("e-3") as other:
            await owner.commit(insert(a_run(owner="e-1")))
            owner.store.abandon()
            idle.store.abandon()
            assert sorted(await other.store.mark_dead_engines()) == ["e-1", "e-2"]
            for at, forgotten in ((1, 0), (day, 0), (day + 2, 1), (day + 3, 0)):
                assert await other.store.purge(at=at, keys_before=0, limit=10) == forgotten
            assert [(engine.id, engine.alive) for engine in await other.store.engines()] == [
                ("e-1", False),
                ("e-3", True),
            ]
            assert await other.claim() == ["r-1"]  # Runs of dead engines and of forgotten engines can be claimed.
            assert await other.store.purge(at=2 * day, keys_before=0, limit=10) == 1

    async def test_a_run_of_an_engine_that_nobody_knows_is_forsaken(self) -> None:
        async with self.author("e-1") as author:
            runs = [a_run("mine", owner="e-1"), a_run("lost", owner="gone"), a_run("free")]
            await author.commit(*map(insert, runs))
            loaded = await author.store.load(["mine", "lost", "free"])
            assert {run_id for run_id, one in loaded.items() if one.forsaken} == {"lost"}

    async def test_a_damaged_run_is_held_and_nobody_owns_it(self) -> None:
        hold = Hold(kind="blocked", reason="its row is damaged", at=5)
        async with self.author("e-1") as author, self.author("e-2") as other:
            mine, theirs = a_run("mine", owner="e-1"), a_run("theirs", owner="e-2")
            await author.commit(insert(mine), insert(theirs))
            assert await author.store.set_aside("mine", hold, engine_id="e-1", at=6)
            assert not await author.store.set_aside("mine", hold, engine_id="e-1", at=7)
            assert not await author.store.set_aside("theirs", hold, engine_id="e-1", at=6)
            found = await other.store.load(["mine", "theirs"])
            assert found["mine"].run == replace(mine, owner=None, hold=hold, revision=mine.revision + 1)
            assert found["theirs"].run == theirs
            (row,) = await other.store.audit("mine")
            assert (row.seq, row.became, row.cause, row.at) == (mine.revision + 1, "blocked", hold.reason, 6)
