"""The simulated database: locks, snapshots, and what becomes of calls that get lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from perdure.errors import CommitConflict, Fenced, OutcomeUnknown, StoreBusy
from perdure.kernel.status import Status
from perdure.testing.conformance.base import Author, a_run, an_event, insert, update, waits_for
from perdure.testing.simulate import Bug, Network, SimulatedDatabase, SimulatedLoop, SimulatedStore, Weather
from perdure.testing.simulate.locks import Holder, Locks

LEASE_S = 10.0


def played(scene: Callable[[SimulatedLoop, SimulatedDatabase], Coroutine[Any, Any, Any]], **weather: float) -> None:
    loop = SimulatedLoop(1)
    database = SimulatedDatabase(Network(Random(1), Weather(**weather)), lease_s=LEASE_S)
    try:
        loop.run_until_complete(loop.spawn("main", scene(loop, database)))
    finally:
        loop.run_out()
        loop.close()


async def an_author(database: SimulatedDatabase, engine_id: str) -> Author:
    store = SimulatedStore(database)
    await store.open()
    return await Author.enroll(store, engine_id)


def test_shared_locks_go_together_and_an_exclusive_one_waits_its_turn() -> None:
    async def scene(_: SimulatedLoop, __: SimulatedDatabase) -> None:
        locks = Locks()
        one, two, writer, late = Holder(), Holder(), Holder(), Holder()
        await locks.take(one, ("row", "1"), exclusive=False)
        await locks.take(two, ("row", "1"), exclusive=False)
        writing = asyncio.ensure_future(locks.take(writer, ("row", "1"), exclusive=True))
        await asyncio.sleep(0.1)
        reading = asyncio.ensure_future(locks.take(late, ("row", "1"), exclusive=False))
        locks.release(one)
        await asyncio.sleep(0.1)
        assert not writing.done()
        locks.release(two)
        assert await writing
        assert not reading.done()
        locks.release(writer)
        assert await reading

    played(scene)


def test_who_waits_too_long_for_a_lock_is_told_to_try_again() -> None:
    async def scene(loop: SimulatedLoop, _: SimulatedDatabase) -> None:
        locks = Locks()
        one, other = Holder(), Holder()
        await locks.take(one, ("row", "1"), exclusive=True)
        await locks.take(other, ("row", "2"), exclusive=True)
        waiting = asyncio.ensure_future(locks.take(one, ("row", "2"), exclusive=True))
        with pytest.raises(StoreBusy):
            await locks.take(other, ("row", "1"), exclusive=True)
        locks.release(other)
        with pytest.raises(StoreBusy):
            await waiting  # Both ran out of patience in the same moment.

    played(scene)


def test_two_writers_of_one_run_do_not_both_win() -> None:
    async def scene(_: SimulatedLoop, database: SimulatedDatabase) -> None:
        one, other = await an_author(database, "e-1"), await an_author(database, "e-2")
        await one.commit(insert(a_run()))
        tries = [author.commit(update(a_run(), tags={"by": author.id})) for author in (one, other)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sorted(isinstance(result, CommitConflict) for result in results) == [False, True]

    played(scene)


def test_a_wait_and_a_broadcast_that_meet_find_each_other() -> None:
    async def scene(_: SimulatedLoop, database: SimulatedDatabase) -> None:
        one, other = await an_author(database, "e-1"), await an_author(database, "e-2")
        for number in range(30):
            run_id = f"r-{number}"
            run = a_run(run_id, owner="e-1")
            await one.commit(insert(run))
            asleep = update(run, status=Status.SUSPENDED)
            await asyncio.gather(
                one.exchange(asleep, waits=[waits_for(run_id)]), other.exchange(events=[an_event(f"e-{number}")])
            )
            loaded = (await one.store.load([run_id]))[run_id]
            assert [event.position for event in loaded.events] == ["1"]

    played(scene)


@pytest.mark.parametrize("bugs", [frozenset[Bug](), frozenset({Bug.UNLOCKED_OWNERS})])
def test_whoever_takes_a_run_that_wins_something_just_then_hears_of_it(bugs: frozenset[Bug]) -> None:
    unheard: list[str] = []

    async def scene(_: SimulatedLoop, database: SimulatedDatabase) -> None:
        database.bugs = bugs
        one, other = await an_author(database, "e-1"), await an_author(database, "e-2")
        for number in range(30):
            run = a_run(f"r-{number}", status=Status.SUSPENDED)
            await one.exchange(insert(run), waits=[waits_for(run.id)])
            taken, sent = await asyncio.gather(
                one.commit(update(run, owner="e-1", claim=1)), other.exchange(events=[an_event(f"e-{number}")])
            )
            has_found = any(events for _, _, events in taken.taken)
            if not has_found and run.id not in sent.notified:
                unheard.append(run.id)

    played(scene)
    assert bool(unheard) == bool(bugs)


def test_an_engine_that_shows_no_life_for_longer_than_the_lease_is_buried_and_fenced() -> None:
    async def scene(loop: SimulatedLoop, database: SimulatedDatabase) -> None:
        paused = await loop.spawn("paused", an_author(database, "e-1"))
        other = await loop.spawn("other", an_author(database, "e-2"))
        await asyncio.sleep(3 * LEASE_S)
        assert await other.store.mark_dead_engines() == []
        loop.process("paused").paused = True
        await asyncio.sleep(LEASE_S + 1)
        assert await other.store.mark_dead_engines() == ["e-1"]
        loop.process("paused").paused = False
        with pytest.raises(Fenced):
            await loop.spawn("paused", paused.commit(insert(a_run())))

    played(scene)


@pytest.mark.parametrize("is_buried", [False, True])
def test_a_process_that_stood_still_for_its_lease_is_in_doubt_until_its_sign_is_renewed(is_buried: bool) -> None:
    async def scene(loop: SimulatedLoop, database: SimulatedDatabase) -> None:
        paused = await loop.spawn("paused", an_author(database, "e-1"))
        other = await loop.spawn("other", an_author(database, "e-2"))
        await asyncio.sleep(3 * LEASE_S)
        assert paused.store.is_surely_alive()
        loop.process("paused").paused = True
        await asyncio.sleep(LEASE_S + 1)
        assert not paused.store.is_surely_alive()
        if is_buried:
            assert await other.store.mark_dead_engines() == ["e-1"]
        loop.process("paused").paused = False
        await asyncio.sleep(LEASE_S / 2)
        assert paused.store.is_surely_alive() != is_buried
        assert await other.store.mark_dead_engines() == []

    played(scene)


def test_an_engine_that_renews_its_sign_while_its_burial_waits_for_a_lock_lives() -> None:
    async def scene(loop: SimulatedLoop, database: SimulatedDatabase) -> None:
        paused = await loop.spawn("paused", an_author(database, "e-1"))
        other = await loop.spawn("other", an_author(database, "e-2"))
        loop.process("paused").paused = True
        await asyncio.sleep(LEASE_S + 1)
        async with database.transaction() as transaction:
            await transaction.lock([("engine", "e-1")], exclusive=False)
            burial = loop.spawn("other", other.store.mark_dead_engines())
            await asyncio.sleep(0.1)
            loop.process("paused").paused = False
            await asyncio.sleep(0.1)
            assert paused.store.is_surely_alive()
        assert await burial == []
        assert paused.store.is_surely_alive()

    played(scene)


def test_a_burial_waits_for_a_batch_in_flight_and_what_comes_after_it_is_refused() -> None:
    async def scene(loop: SimulatedLoop, database: SimulatedDatabase) -> None:
        silent = await loop.spawn("silent", an_author(database, "e-1"))
        other = await an_author(database, "e-2")
        database.beats["e-1"] = -LEASE_S
        loop.process("silent").paused = True
        batch = silent.batch(insert(a_run("r-1")))
        _, marked_dead = await asyncio.gather(
            database.serve(database.commit(batch, "")), other.store.mark_dead_engines()
        )
        silent.number += 1
        assert marked_dead == ["e-1"]
        assert list(await other.store.load(["r-1"])) == ["r-1"]
        with pytest.raises(Fenced):
            await database.serve(database.commit(silent.batch(insert(a_run("r-2"))), ""))

    played(scene, latency_s=0.01)


def test_whatever_becomes_of_a_commit_sending_it_again_finds_out() -> None:
    async def scene(_: SimulatedLoop, database: SimulatedDatabase) -> None:
        author = await an_author(database, "e-1")
        unknown = 0
        database.network.weather = Weather(busy=0.2, unknown=0.4)
        for number in range(100):
            batch = author.batch(insert(a_run(f"r-{number}")))
            while True:
                try:
                    await author.store.commit(batch)
                    break
                except OutcomeUnknown:
                    unknown += 1
                except StoreBusy:
                    pass
            author.number += 1
        assert unknown > 20
        assert len(database.memory.runs) == 100
        assert database.memory.engines["e-1"].batch == 100

    played(scene)
