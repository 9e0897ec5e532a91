"""Engines that share a store: the code that each engine has, the hints that it gets, and the work that it finds when it
polls.
"""

from __future__ import annotations

import asyncio

import pytest

from perdure.errors import CommitConflict
from perdure.kernel.mail import wake_mail
from perdure.kernel.rows import Mail
from perdure.kernel.runs import Hold
from perdure.kernel.status import Status
from perdure.ports import Offer, WorkFound
from perdure.testing.conformance.base import (
    CHECKOUT,
    Author,
    Rules,
    a_run,
    a_wait,
    an_event,
    insert,
    offers,
    update,
    waits_for,
)


class FleetRules(Rules):
    async def test_a_run_is_for_engines_with_its_version(self) -> None:
        async with self.author() as author:
            versions = {"none": "", "one": "1", "two": "2"}
            for run_id, version in versions.items():
                await author.commit(insert(a_run(run_id, workflow_version=version, deadline=50)))
                hold = Hold(kind="blocked", reason="r", fingerprint="other")
                await author.commit(insert(a_run(f"{run_id} held", workflow_version=version, hold=hold)))
                due = {(f"{run_id} due", "1", 0): a_wait(f"{run_id} due", due_at=40)}
                sleeping = a_run(f"{run_id} due", workflow_version=version, status=Status.SUSPENDED)
                await author.commit(insert(sleeping), waits=due)
            store, epoch = author.store, author.engine.epoch
            has = [Offer("checkout", "1", "f"), Offer("checkout", "3", "f"), Offer("other", "2", "f")]
            due_runs = await store.due_runs(offers=has, before=60, limit=10)
            assert [one.run_id for one in due_runs] == ["one due", "one"]
            claimed = await store.claim(engine_id=author.id, epoch=epoch, offers=has, limit=10)
            assert [one.run.id for one in claimed] == ["one", "one held"]
            has = [Offer("checkout", "", "f"), Offer("checkout", "2", "f")]
            claimed = await store.claim(engine_id=author.id, epoch=epoch, offers=has, limit=10)
            assert [one.run.id for one in claimed] == ["none", "none held", "two", "two held"]

    async def test_a_claim_says_what_a_run_is_that_was_started_by_name_alone(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run("plain")), insert(a_run("drawn", workflow="drawn")))
            await author.commit(insert(a_run("operation", workflow="drawn", model="operation")))
            store, epoch = author.store, author.engine.epoch
            has = [Offer("checkout", "", "f"), Offer("drawn", "", "f", "graph")]
            claimed = await store.claim(engine_id=author.id, epoch=epoch, offers=has, limit=10)
            models = {"plain": "function", "drawn": "graph"}
            assert {one.run.id: one.run.model for one in claimed} == models
            stored = await store.get(["plain", "drawn", "operation"])
            assert {run_id: one.run.model for run_id, one in stored.items()} == {**models, "operation": "operation"}

    async def test_a_claim_takes_no_run_of_another_kind(self) -> None:
        async with self.author() as author:
            due = {("asleep", "1", 0): a_wait("asleep", due_at=40)}
            late = a_run("asleep", status=Status.SUSPENDED, claim=1, deadline=50)
            hold = Hold(kind="blocked", reason="r", fingerprint="other")
            await author.commit(insert(a_run("begun", claim=1)), insert(late), waits=due)
            await author.commit(insert(a_run("held", claim=1, hold=hold)), insert(a_run("drawn", model="graph")))
            called = a_run("called", claim=1, bond="called", origin="m-1 root/m-1")
            await author.commit(insert(called))
            store, epoch = author.store, author.engine.epoch
            graph = [Offer("checkout", "", "f", "graph")]
            assert not await store.due_runs(offers=graph, before=60, limit=10)
            claimed = await store.claim(engine_id=author.id, epoch=epoch, offers=graph, limit=10)
            assert [one.run.id for one in claimed] == ["drawn"]
            function = [Offer("checkout", "", "f")]
            due_runs = await store.due_runs(offers=function, before=60, limit=10)
            assert {one.run_id for one in due_runs} == {"asleep"}
            claimed = await store.claim(engine_id=author.id, epoch=epoch, offers=function, limit=10)
            assert sorted(one.run.id for one in claimed) == ["begun", "called", "held"]
            assert {one.run.model for one in claimed} == {"function"}

    async def test_a_claim_takes_a_run_that_has_continued_as_another_kind(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run("to a graph", claim=3, origin="before 5d41 #2")))
            await author.commit(insert(a_run("to a function", claim=3, model="graph", origin="before 5d41 #2")))
            store, epoch = author.store, author.engine.epoch
            has = [Offer("checkout", "", "f", "graph")]
            claimed = await store.claim(engine_id=author.id, epoch=epoch, offers=has, limit=1)
            assert [one.run.model for one in claimed] == ["graph"]
            claimed += await store.claim(engine_id=author.id, epoch=epoch, offers=[Offer("checkout", "", "f")], limit=1)
            stored = await store.get([one.run.id for one in claimed])
            assert [stored[one.run.id].run.model for one in claimed] == ["graph", "function"]

    async def test_who_looks_finds_nothing_where_there_is_nothing_to_do(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            assert await _look(one) == WorkFound()
            later = {("later", "1", 0): a_wait("later", due_at=11)}
            await other.commit(
                insert(a_run("theirs", owner="e-2", deadline=5)),
                insert(a_run("ended", status=Status.SUCCEEDED)),
                insert(a_run("later", status=Status.SUSPENDED, deadline=11)),
                insert(a_run("foreign", workflow="other")),
                insert(a_run("held", hold=Hold(kind="paused", reason="r"))),
                waits=later,
            )
            await other.store.leave_mail(_mail("theirs"))
            assert await _look(one) == WorkFound()
            assert await _look(other) == WorkFound(mail=True)

    async def test_who_looks_finds_mail(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run("mine", owner="e-1")))
            mail_id = await other.store.leave_mail(_mail("mine"))
            assert await _look(one) == WorkFound(mail=True)
            await one.commit(mail_done={mail_id: ""})
            assert await _look(one) == WorkFound()
            await other.store.leave_mail(_mail("unknown"))
            assert (await _look(one), await _look(other)) == (WorkFound(mail=True), WorkFound(mail=True))

    async def test_an_engine_that_gives_its_sign_of_life_up_is_dead_and_another_can_come(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.commit(insert(a_run(owner="e-1")))
            assert one.store.is_surely_alive()
            one.store.withdraw("e-1")
            one.store.withdraw("e-1")
            assert not one.store.is_surely_alive()
            while not (await _look(other)).dead:  # noqa: ASYNC110 - a server notices it a little later
                await asyncio.sleep(0.01)
            assert await other.store.mark_dead_engines() == ["e-1"]
            epoch = other.engine.epoch
            (claimed,) = await other.store.claim(engine_id="e-2", epoch=epoch, offers=offers(**CHECKOUT), limit=10)
            assert (claimed.run.owner, claimed.orphaned) == ("e-2", True)
            await one.store.enroll(engine_id="e-3", host="h", pid=1, workflows=[], at=1)
            assert one.store.is_surely_alive()
            assert [(engine.id, engine.alive) for engine in await other.store.engines()] == [
                ("e-1", False), ("e-2", True), ("e-3", True),
            ]  # fmt: skip
            assert await other.store.mark_dead_engines() == []

    async def test_who_looks_finds_the_dead_and_what_they_leave(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await other.commit(insert(a_run(owner="e-2")))
            other.store.abandon()
            assert await _look(one) == WorkFound(dead=True)
            await one.store.mark_dead_engines()
            assert await _look(one) == WorkFound(stray=True)
            await one.claim()
            assert await _look(one) == WorkFound()

    async def test_who_looks_finds_runs_that_nobody_has_and_that_can_go_on(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run("new", status=Status.CREATED)))
            assert await _look(author) == WorkFound(stray=True)
            await author.claim()
            await author.commit(insert(a_run("late", status=Status.SUSPENDED, deadline=10)))
            assert await _look(author) == WorkFound(stray=True)
            await author.commit(update(a_run("late", status=Status.SUSPENDED, deadline=10), owner=author.id))
            assert await _look(author) == WorkFound()
            due = {("due", "1", 0): a_wait("due", due_at=10)}
            await author.commit(insert(a_run("due", status=Status.SUSPENDED)), waits=due)
            assert await _look(author) == WorkFound(stray=True)

    async def test_who_listens_hears_of_what_others_leave(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            hinted = asyncio.Event()
            await one.commit(insert(a_run(owner="e-1")))
            one.store.listen(hinted.set)
            await asyncio.sleep(0)
            hinted.clear()
            await other.store.leave_mail(_mail("r-1"))
            await asyncio.wait_for(hinted.wait(), 30)
            hinted.clear()
            await other.commit(insert(a_run("r-2")))
            await asyncio.wait_for(hinted.wait(), 30)

    async def test_a_run_of_another_engine_that_wins_an_event_gets_word(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            waiting = a_run(owner="e-1", status=Status.SUSPENDED)
            unowned = a_run("r-2", status=Status.SUSPENDED)
            mine = a_run("r-3", owner="e-2", status=Status.SUSPENDED)
            await one.exchange(insert(waiting), insert(unowned), insert(mine), waits=[waits_for(r) for r in _THREE])
            events = [an_event(f"e-{number}") for number in range(3)]
            committed = await other.exchange(events=events, at=7)
            assert [won.run_id for won in committed.won] == list(_THREE)
            assert committed.notified == {"r-1"}
            (mail,) = await one.store.mail("e-1", 10)
            assert (mail.op, mail.run_id, mail.at) == (wake_mail("r-1", "e-2", 7).op, "r-1", 7)

    async def test_no_word_is_left_for_an_engine_that_was_marked_dead(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            await one.exchange(insert(a_run(owner="e-1", status=Status.SUSPENDED)), waits=[waits_for()])
            one.store.abandon()
            await other.store.mark_dead_engines()
            committed = await other.exchange(events=[an_event()])
            assert [won.run_id for won in committed.won] == ["r-1"]
            assert committed.notified == set()
            assert await other.store.mail("e-2", 10) == []

    async def test_a_run_of_another_engine_that_waits_for_an_end_gets_word(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            run = a_run("r-2", owner="e-2")
            await other.commit(insert(run))
            waits = {("r-1", "1", 0): a_wait(kind="run", target="r-2", due_at=None)}
            await one.commit(insert(a_run(owner="e-1", status=Status.SUSPENDED)), waits=waits)
            assert await one.store.mail("e-1", 10) == []
            committed = await other.commit(update(run, status=Status.SUCCEEDED, owner=None))
            assert committed.notified == {"r-1"}
            assert [mail.run_id for mail in await one.store.mail("e-1", 10)] == ["r-1"]

    async def test_a_batch_tells_what_the_runs_that_it_takes_have_by_now(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            run = a_run(status=Status.SUSPENDED)
            await one.exchange(insert(run), waits=[waits_for(), waits_for(position="2", name="shipped")])
            await other.exchange(events=[an_event()])
            committed = await one.commit(update(run, version=run.version, owner="e-1", claim=1))
            loaded = (await one.store.load(["r-1"]))["r-1"]
            assert committed.taken == [("r-1", loaded.waits, loaded.events)]
            assert [(event.id, event.position) for event in loaded.events] == [("e-1", "1")]
            again = await one.commit(update(loaded.run, status=Status.RUNNING), insert(a_run("new", owner="e-1")))
            assert again.taken == []

    async def test_a_batch_tells_the_same_of_a_run_that_it_gives_up_and_takes_again(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            run = a_run(status=Status.SUSPENDED, owner="e-1", claim=1)
            await one.exchange(insert(run), waits=[waits_for()])
            await other.exchange(events=[an_event()])
            committed = await one.commit(update(run, claim=2))
            ((run_id, _, events),) = committed.taken
            assert (run_id, [event.position for event in events]) == ("r-1", ["1"])

    async def test_a_run_that_had_another_owner_in_between_is_not_as_expected(self) -> None:
        async with self.author() as author:
            run = a_run(status=Status.SUSPENDED)
            await author.commit(insert(run))
            await author.commit(update(run, version=1, claim=1, owner=author.id))
            await author.commit(update(a_run(status=Status.SUSPENDED, claim=1, owner=author.id), version=1, owner=None))
            with pytest.raises(CommitConflict):
                await author.commit(update(run, owner=author.id))
            await author.commit(update(a_run(status=Status.SUSPENDED, claim=1), owner=author.id))


_THREE = ("r-1", "r-2", "r-3")


def _mail(run_id: str) -> Mail:
    return Mail(run_id=run_id, sender="s", op="{}", at=5)


async def _look(author: Author) -> WorkFound:
    return await author.store.look(engine_id=author.id, offers=offers(**CHECKOUT), at=10)
