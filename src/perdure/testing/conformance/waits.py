"""Waits for the ends of runs, runs that went on without suspending, children, and due runs."""

from __future__ import annotations

from msgspec.structs import replace

from perdure.kernel.batch import RunWrite
from perdure.kernel.runs import Hold
from perdure.kernel.status import Status
from perdure.ports import DueRun
from perdure.testing.conformance.base import (
    CHECKOUT,
    Author,
    Rules,
    a_run,
    a_wait,
    an_audit,
    an_event,
    insert,
    offers,
    update,
    waits_for,
)
from perdure.testing.conformance.events import ended


def for_end(run_id: str, target: str, position: str = "1", option: int = 0) -> dict[tuple[str, str, int], object]:
    wait = a_wait(run_id, position, kind="run", name="run", target=target, due_at=None, option=option)
    return {(run_id, position, option): wait}


class WaitRules(Rules):
    async def test_who_waits_for_the_end_of_a_run_is_found_when_it_ends(self) -> None:
        async with self.author() as author:
            target = a_run("target", owner=author.id)
            await author.commit(insert(target), insert(a_run("r-1")), insert(a_run("r-2")), insert(a_run("r-3")))
            assert (await author.commit(waits=for_end("r-1", "target") | for_end("r-2", "target"))).won == []
            committed = await author.commit(ended(target), waits=for_end("r-3", "target"))
            found = {(won.run_id, won.position, won.target) for won in committed.won}
            assert found == {("r-1", "1", "target"), ("r-2", "1", "target"), ("r-3", "1", "target")}
            loaded = await author.store.load(["r-1", "r-2", "r-3"])
            assert [one.waits[0].due_at for one in loaded.values()] == [0, 0, 0]

    async def test_a_run_that_has_ended_or_does_not_exist_is_not_waited_for(self) -> None:
        async with self.author() as author:
            target = a_run("target", owner=author.id)
            await author.commit(insert(target), insert(a_run("r-1")), insert(a_run("r-2")))
            await author.commit(ended(target))
            committed = await author.commit(waits=for_end("r-1", "target") | for_end("r-2", "nobody"))
            assert {(won.run_id, won.target) for won in committed.won} == {("r-1", "target"), ("r-2", "nobody")}

    async def test_a_child_that_is_new_in_the_batch_has_not_ended(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run("r-1", owner=author.id)))
            child = a_run("child", owner=author.id, parent_id="r-1", bond="awaited")
            assert (await author.commit(insert(child), waits=for_end("r-1", "child"))).won == []
            assert [won.target for won in (await author.commit(ended(child))).won] == ["child"]

    async def test_a_wait_that_is_put_anew_is_open_again(self) -> None:
        async with self.author() as author:
            target = a_run("target", owner=author.id)
            await author.commit(insert(target), insert(a_run("r-1")), waits=for_end("r-1", "target"))
            await author.commit(ended(target))
            after = replace(ended(target).run, status=Status.RUNNING, owner=author.id, completed_at=None, version=3)
            await author.commit(RunWrite(run=after, expected_version=2))
            assert (await author.commit(waits=for_end("r-1", "target"))).won == []
            assert [won.run_id for won in (await author.commit(ended(after))).won] == ["r-1"]

    async def test_a_run_does_not_fall_asleep_when_what_it_waits_for_is_there(self) -> None:
        async with self.author() as author:
            run = a_run(owner=author.id)
            await author.commit(insert(run), audit=[an_audit()])
            await author.exchange(events=[an_event("e-1")])
            asleep = update(run, status=Status.SUSPENDED, revision=2)
            asleep.awake, asleep.dozing = run, 2
            audit = [an_audit(seq=2, version=2, was="running", became="suspended")]
            committed = await author.exchange(asleep, waits=[waits_for()], audit=audit)
            assert committed.awake == {"r-1"}
            loaded = (await author.store.load(["r-1"]))["r-1"]
            assert (loaded.run.status, loaded.run.version) == ("running", 1)
            assert [event.position for event in loaded.events] == ["1"]
            assert [row.seq for row in await author.store.audit("r-1")] == [1]

    async def test_a_run_falls_asleep_when_nothing_is_there(self) -> None:
        async with self.author() as author:
            run = a_run(owner=author.id)
            await author.commit(insert(run))
            asleep = update(run, status=Status.SUSPENDED, revision=2)
            asleep.awake, asleep.dozing = run, 2
            committed = await author.exchange(asleep, waits=[waits_for()])
            assert committed.awake == set()
            assert (await author.store.load(["r-1"]))["r-1"].run.status == "suspended"

    async def test_the_active_children_that_are_not_detached_are_found(self) -> None:
        async with self.author() as author:
            bonds = {"awaited": "p-1", "started": "p-2", "detached": "p-1", "ended": "p-1", "other's": "p-3"}
            children = {
                name: a_run(name, parent_id=parent, bond="detached" if name == "detached" else "awaited")
                for name, parent in bonds.items()
            }
            await author.commit(*map(insert, children.values()))
            await author.commit(ended(children["ended"]))
            found = await author.store.children(["p-1", "p-2"])
            assert {one.run.id for one in found} == {"awaited", "started"}
            assert await author.store.children([]) == []

    async def test_children_that_were_stopped_are_found_if_asked_for(self) -> None:
        async with self.author() as author:
            statuses = ["cancelled", "rolled_back", "rollback_failed", "succeeded", "failed"]
            children = {status: a_run(status, parent_id="p-1", bond="called") for status in statuses}
            detached = a_run("detached", parent_id="p-1", bond="detached")
            await author.commit(*map(insert, [*children.values(), detached, a_run("active", parent_id="p-1")]))
            await author.commit(
                *(ended(run, Status(status)) for status, run in children.items()), ended(detached, Status.CANCELLED)
            )
            found = await author.store.children(["p-1", "p-2"], stopped=True)
            assert {one.run.id for one in found} == {"active", "cancelled", "rolled_back", "rollback_failed"}
            assert {one.run.id for one in await author.store.children(["p-1"])} == {"active"}

    async def _suspended(self, author: Author, run_id: str, due_at: int | None, **fields: object) -> None:
        run = a_run(run_id, status=Status.SUSPENDED, **fields)
        waits = {} if due_at is None else {(run_id, "1", 0): a_wait(run_id, due_at=due_at)}
        await author.commit(insert(run), waits=waits)

    async def test_runs_that_nobody_has_are_told_with_their_earliest_time(self) -> None:
        async with self.author() as author:
            await self._suspended(author, "late", 300)
            await self._suspended(author, "early", 100)
            await self._suspended(author, "far", 999)
            await self._suspended(author, "dated", None, deadline=200)
            await self._suspended(author, "owned", 100, owner=author.id)
            await self._suspended(author, "other", 100, workflow="other")
            await self._suspended(author, "held", 100, hold=Hold(kind="paused", reason="r"))
            found = await author.store.due_runs(offers=offers(**CHECKOUT), before=999, limit=10)
            assert found == [
                DueRun(run_id="early", due_at=100, deadline=False),
                DueRun(run_id="dated", due_at=200, deadline=True),
                DueRun(run_id="late", due_at=300, deadline=False),
            ]
            assert await author.store.due_runs(offers=offers(**CHECKOUT), before=999, limit=1) == found[:1]

    async def test_deadlines_of_held_runs_are_told_whoever_has_their_code(self) -> None:
        async with self.author() as author:
            fields = {"deadline": 200, "hold": Hold(kind="blocked", reason="r"), "workflow": "other"}
            await self._suspended(author, "held", 100, **fields)
            await author.commit(insert(a_run("undoing", status=Status.ROLLING_BACK, **fields)))
            operation = a_run("operation", status=Status.ROLLING_BACK, model="operation", **fields | {"deadline": 300})
            await author.commit(insert(operation))
            found = await author.store.due_runs(offers=offers(**CHECKOUT), before=999, limit=10)
            assert found == [
                DueRun(run_id="held", due_at=200, deadline=True),
                DueRun(run_id="operation", due_at=300, deadline=True),
            ]
            work = await author.store.look(engine_id=author.id, offers=offers(**CHECKOUT), at=200)
            assert work.stray
            work = await author.store.look(engine_id=author.id, offers=offers(**CHECKOUT), at=199)
            assert not work.stray

    async def test_runs_of_an_engine_that_died_are_due_as_well(self) -> None:
        async with self.author("e-1") as dead, self.opened() as store:
            await self._suspended(dead, "r-1", 100, owner="e-1")
            assert await store.due_runs(offers=offers(**CHECKOUT), before=200, limit=10) == []
            await store.retire("e-1")
            found = await store.due_runs(offers=offers(**CHECKOUT), before=200, limit=10)
            assert [due.run_id for due in found] == ["r-1"]

    async def test_a_run_whose_wait_was_won_is_due_at_once(self) -> None:
        async with self.author() as author:
            await author.exchange(insert(a_run("r-1", status=Status.SUSPENDED)), waits=[waits_for()])
            assert await author.store.due_runs(offers=offers(**CHECKOUT), before=10_000, limit=10) == []
            await author.exchange(events=[an_event()])
            assert await author.store.due_runs(offers=offers(**CHECKOUT), before=10_000, limit=10) == [
                DueRun(run_id="r-1", due_at=0, deadline=False)
            ]
