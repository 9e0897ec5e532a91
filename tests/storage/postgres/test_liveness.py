"""Signs of life: a thread gives them, whatever the event loop does; who gives none for as long as the lease is dead."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from datetime import datetime
from pathlib import Path

import pytest

from perdure.errors import Fenced
from perdure.storage import open_store
from perdure.testing.conformance.base import a_run, insert
from tests.storage.postgres.meddler import author_on, meddler

ROOT = Path(__file__).resolve().parents[3]

ENGINE = """
import asyncio, sys
from perdure.errors import Fenced
from perdure.storage import open_store
from perdure.testing.conformance.base import Author, a_run, insert

async def main():
    store = open_store(sys.argv[1])
    await store.open()
    author = await Author.enroll(store, "paused")
    await author.commit(insert(a_run(owner="paused")))
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    print("alive" if store.is_surely_alive() else "in doubt", flush=True)
    try:
        await author.commit(insert(a_run("late")))
    except Fenced:
        print("fenced", flush=True)
    await store.close()

asyncio.run(main())
"""


async def test_a_stopped_process_is_buried_after_its_lease_and_fenced_when_it_goes_on(url: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENGINE, f"{url}&lease=3"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        async with author_on(url, "heir") as heir:
            assert await heir.store.mark_dead_engines() == []
            process.send_signal(signal.SIGSTOP)
            while not (marked_dead := await heir.store.mark_dead_engines()):
                await asyncio.sleep(0.05)
            assert marked_dead == ["paused"]
            assert await heir.claim() == ["r-1"]
            process.send_signal(signal.SIGCONT)
            process.stdin.write("go on\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.stdout.readline) == "in doubt\n"
            assert await asyncio.to_thread(process.stdout.readline) == "fenced\n"
            assert await heir.store.load(["late"]) == {}
    finally:
        process.kill()
        process.communicate()


async def test_the_heart_beats_while_the_event_loop_is_stuck(url: str) -> None:
    beats: set[datetime] = set()

    async def watch() -> None:
        async with meddler(url) as other:
            while len(beats) < 4:
                beats.add(await other.fetchval("select beat_at from heartbeats"))
                await asyncio.sleep(0.02)

    async with author_on(f"{url}&lease=4") as author:
        watching = threading.Thread(target=lambda: asyncio.run(watch()))
        watching.start()
        watching.join()  # The loop of this test stands still meanwhile.
        assert len(beats) == 4
        assert author.store.is_surely_alive()
        assert await author.store.mark_dead_engines() == []


async def test_the_heart_finds_its_way_back_after_its_connection_was_cut(url: str) -> None:
    async with author_on(f"{url}&lease=5") as author, meddler(url) as other:
        seen = await other.fetchval("select beat_at from heartbeats")
        while await other.fetchval("select beat_at from heartbeats") == seen:
            await asyncio.sleep(0.02)
        cut = "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'perdure heartbeat'"
        await other.execute(cut)
        seen = await other.fetchval("select beat_at from heartbeats")
        while await other.fetchval("select beat_at from heartbeats") == seen:
            await asyncio.sleep(0.02)
        assert await author.store.mark_dead_engines() == []


@pytest.mark.parametrize("end", ["close", "abandon"])
async def test_no_thread_and_no_sign_is_left_of_a_store_that_has_ended(url: str, end: str) -> None:
    before = threading.active_count()
    async with author_on(url) as author, meddler(url) as other:
        assert threading.active_count() == before + 1
        if end == "close":
            await author.store.close()
        else:
            author.store.abandon()
        assert await other.fetch("select 1 from heartbeats") == []
        hearts = [thread for thread in threading.enumerate() if thread.name == "perdure-heartbeat"]
        assert hearts == []


async def test_each_engine_is_judged_by_its_own_lease(url: str) -> None:
    async with author_on(f"{url}&lease=3600", "patient") as patient, author_on(f"{url}&lease=20", "brisk") as brisk:
        async with meddler(url) as other:
            await other.execute(
                "update heartbeats set beat_at = beat_at - interval '1 minute' where engine_id = 'patient'"
            )
        assert await brisk.store.mark_dead_engines() == []
        await patient.commit(insert(a_run()))


async def test_an_engine_that_was_buried_is_fenced_and_enrolls_anew_beside_its_old_self(url: str) -> None:
    async with author_on(url) as author:
        store = open_store(url)
        await store.open()
        async with meddler(url) as other:
            await other.execute("delete from heartbeats")
        assert await store.mark_dead_engines() == ["e-1"]
        with pytest.raises(Fenced):
            await author.commit(insert(a_run()))
        again = await author.store.enroll(engine_id="e-2", host="h", pid=1, workflows=[], at=1)
        assert again.alive
        assert await store.mark_dead_engines() == []
        await store.close()
