"""Claims: which engine may take over which runs."""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import Fenced
from perdure.kernel.runs import Hold
from perdure.kernel.status import ACTIVE, FINISHED, Status
from perdure.ports import WorkFound
from perdure.testing.conformance.base import Author, Rules, a_run, a_wait, insert, offers

BLOCKED = Hold(kind="blocked", reason="r", fingerprint="other")


class ClaimRules(Rules):
    async def test_only_active_runs_that_do_not_just_wait_are_claimed(self) -> None:
        async with self.author() as author:
            await author.commit(*(insert(a_run(status.value, status=status)) for status in Status))
            assert sorted(await author.claim()) == sorted(ACTIVE - {Status.SUSPENDED})
            assert len(FINISHED) + len(ACTIVE) == len(Status)

    async def test_a_claimed_run_comes_as_it_is_stored(self) -> None:
        async with self.author() as author:
            waits = {("r-1", position, 0): a_wait(position=position) for position in ("2", "1")}
            await author.commit(insert(a_run(claim=4, tags={"k": "v"})), insert(a_run("r-2")), waits=waits)
            claimed = await author.store.claim(
                engine_id=author.id, epoch=author.engine.epoch, offers=offers(checkout="f"), limit=10
            )
            assert claimed[0].run == a_run(claim=5, tags={"k": "v"}, owner=author.id)
            assert claimed[0].waits == (a_wait(position="1"), a_wait(position="2"))
            assert claimed[1].waits == ()
            assert await author.store.load(["r-1", "r-2"]) == {one.run.id: one for one in claimed}

    async def test_only_runs_of_given_workflows_are_claimed(self) -> None:
        async with self.author() as author:
            await author.commit(*(insert(a_run(name, workflow=name)) for name in ("a", "b", "c")))
            assert await author.claim(a="1", c="1", unknown="1") == ["a", "c"]
            assert await author.store.claim(engine_id=author.id, epoch=1, offers=[], limit=10) == []

    async def test_runs_come_oldest_first_and_up_to_the_limit(self) -> None:
        async with self.author() as author:
            ages = {"x": 3, "c": 2, "a": 2, "y": 1, "z": 4}
            for run_id, created_at in ages.items():
                workflow = "other" if run_id in "cy" else "checkout"
                await author.commit(insert(a_run(run_id, created_at=created_at, workflow=workflow)))
            assert await author.claim(0, checkout="f", other="f") == []
            assert await author.claim(3, checkout="f", other="f") == ["y", "a", "c"]
            assert await author.claim(3, checkout="f", other="f") == ["x", "z"]
            assert await author.claim(3, checkout="f", other="f") == []

    async def test_runs_of_a_living_engine_are_left_to_it(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run("owned", owner="e-1")), insert(a_run("free")))
            assert await other.claim() == ["free"]
            assert await one.claim() == []

    async def test_runs_of_a_dead_engine_are_taken_over_once_it_is_buried(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run("old", created_at=1, owner="e-1", claim=1)))
            await other.commit(insert(a_run("free", created_at=2)))
            one.store.abandon()
            assert await other.claim(1) == ["free"]
            await other.store.mark_dead_engines()
            assert await other.claim() == ["old"]
            run = (await other.store.load(["old"]))["old"].run
            assert (run.owner, run.claim, run.version) == ("e-2", 2, 1)

    async def test_what_a_dead_engine_left_is_told_from_what_was_released(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other, self.author("e-3") as heir:
            await one.commit(insert(a_run("left", owner="e-1")), insert(a_run("free")))
            await other.commit(insert(a_run("released", owner="e-2")))
            await other.store.retire("e-2")
            one.store.abandon()
            await heir.store.mark_dead_engines()
            claimed = await heir.store.claim(
                engine_id="e-3", epoch=heir.engine.epoch, offers=offers(checkout="f"), limit=9
            )
            assert {one.run.id: one.orphaned for one in claimed} == {"left": True, "free": False, "released": False}
            assert not any(one.orphaned for one in (await heir.store.load(["left", "free"])).values())

    async def test_runs_of_several_dead_engines_come_in_one_order(self) -> None:
        async with self.opened() as store:
            for number, engine_id in enumerate(("e-3", "e-1", "e-2")):
                author = await Author.enroll(store, engine_id)
                runs = (a_run(f"{engine_id}-{age}", created_at=age * 10 + number, owner=engine_id) for age in (1, 2))
                await author.commit(*map(insert, runs), insert(a_run(f"of-nobody-{number}", created_at=25, owner="?")))
            for engine_id in ("e-3", "e-1"):
                await store.retire(engine_id)
            heir = await Author.enroll(store, "heir")
            expected = ["e-3-1", "e-1-1", "e-3-2", "e-1-2", "of-nobody-0", "of-nobody-1", "of-nobody-2"]
            assert await heir.claim() == expected

    async def test_held_runs_are_left_alone_but_for_blocked_ones_that_other_code_may_fit(self) -> None:
        async with self.author() as author:
            holds = {
                "paused": Hold(kind="paused", reason="r", fingerprint=""),
                "poison": Hold(kind="poison", reason="r", fingerprint="other"),
                "not by code": Hold(kind="blocked", reason="r", fingerprint=""),
                "same": Hold(kind="blocked", reason="r", fingerprint="f", details="ü" * 5000, at=5),
                "changed": Hold(kind="blocked", reason="r", fingerprint="other"),
            }
            await author.commit(*(insert(a_run(run_id, hold=hold)) for run_id, hold in holds.items()))
            assert await author.claim(checkout="f") == ["changed"]
            assert await author.claim(checkout="f2") == ["same"]
            loaded = await author.store.load(list(holds))
            assert {run_id: loaded[run_id].run.hold for run_id in holds} == holds

    async def test_code_that_was_tried_does_not_claim_a_blocked_run_again(self) -> None:
        async with self.author() as author:
            hold = Hold(kind="blocked", reason="r", fingerprint="f1 f2 f3")
            await author.commit(insert(a_run("tried", hold=hold)))
            for known in ("f1", "f2", "f3"):
                assert not (await self._look(author, known)).blocked
                assert await author.claim(checkout=known) == []
            # The fingerprint is only the beginning of the other fingerprints.
            assert (await self._look(author, "f")).blocked
            assert await author.claim(checkout="f") == ["tried"]

    async def test_without_a_fingerprint_blocked_runs_are_seen_and_not_claimed(self) -> None:
        async with self.author() as author:
            assert not (await self._look(author, "")).blocked
            await author.commit(insert(a_run("by hand", hold=Hold(kind="blocked", reason="r"))))
            await author.commit(insert(a_run("other code", workflow="other", hold=BLOCKED)))
            assert not (await self._look(author, "")).blocked
            await author.commit(insert(a_run("by code", hold=BLOCKED)))
            found = await self._look(author, "")
            assert (found.blocked, found.stray) == (True, False)
            assert await author.claim(checkout="") == []

    async def _look(self, author: Author, fingerprint: str) -> WorkFound:
        return await author.store.look(engine_id=author.id, offers=offers(checkout=fingerprint), at=0)

    async def test_a_dead_engine_claims_nothing(self) -> None:
        async with self.author("e-1") as one, self.opened() as other:
            await one.commit(insert(a_run()))
            await other.retire("e-1")
            with pytest.raises(Fenced):
                await one.claim()
            with pytest.raises(Fenced):
                await other.claim(engine_id="nobody", epoch=1, offers=offers(checkout="f"), limit=1)
            assert (await other.load(["r-1"]))["r-1"].run == a_run()

    async def test_a_wrong_epoch_claims_nothing(self) -> None:
        async with self.author() as author:
            with pytest.raises(Fenced):
                await author.store.claim(
                    engine_id=author.id, epoch=author.engine.epoch + 1, offers=offers(checkout="f"), limit=1
                )

    async def test_no_run_is_claimed_by_two(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(*(insert(a_run(f"r-{i:02}")) for i in range(40)))
            claims = await asyncio.gather(*(author.claim(3) for _ in range(10) for author in (one, other)))
            assert sorted(run_id for claim in claims for run_id in claim) == [f"r-{i:02}" for i in range(40)]
