"""Real processes that share a store, some of them killed or stopped under load: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
import time
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure.kernel.status import Status
from perdure.ports import StoredRun
from perdure.testing import check_store
from tests.fleet.convoy import PATIENCE_S, Convoy
from tests.fleet.load import FORGOTTEN, KINDS, LATE, STARTED, TICKET, UNSEEN, chosen, run_id
from tests.storage.postgres.server import VERSIONS, PostgresServer, Servers

LEASE_S = 2.0
REJOINED = re.compile(r"was marked dead; dropping \d+ runs and registering anew")
# What asyncio says of a future of asyncpg's, when a process sleeps for longer than an attempt to connect may take: the
# driver gives the attempt up and forgets the future. The attempt is made again.
DRIVERS_OWN = re.compile(
    r"ERROR Future exception was never retrieved\n"
    r"future: <Future finished exception=ConnectionError\('unexpected connection_lost\(\) call'\)>"
)


@pytest.mark.timeout(600)
def test_a_fleet_on_one_file_survives_the_loss_of_any_process(tmp_path: Path) -> None:
    asyncio.run(survive(f"sqlite:///{tmp_path / 'fleet.db'}", tmp_path))


@pytest.mark.timeout(600)
def test_a_fleet_on_postgres_survives_the_loss_of_any_process(tmp_path: Path, postgres_servers: Servers) -> None:
    asyncio.run(survive(f"{postgres_servers.fresh()}&lease={LEASE_S}", tmp_path))


@pytest.mark.timeout(600)
def test_a_fleet_survives_crashes_of_its_database(tmp_path: Path) -> None:
    asyncio.run(outlast(tmp_path, runs=150, crashes=2))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_large_fleet_on_one_file_survives_kills_again_and_again(tmp_path: Path) -> None:
    asyncio.run(survive_for_long(f"sqlite:///{tmp_path / 'fleet.db'}", tmp_path, waited_max_s=2.0))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_large_fleet_on_postgres_survives_kills_again_and_again(tmp_path: Path, postgres_servers: Servers) -> None:
    url = f"{postgres_servers.fresh()}&lease={LEASE_S}"
    asyncio.run(survive_for_long(url, tmp_path, waited_max_s=LEASE_S + 2.0))


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_a_fleet_survives_ten_crashes_of_its_database(tmp_path: Path) -> None:
    asyncio.run(outlast(tmp_path, runs=3000, crashes=10))


async def survive(url: str, folder: Path, *, runs: int = 500, kills: int = 5) -> None:
    """Processes are killed, and one is stopped for a while, each in the midst of a part of the runs."""
    chance = seeded()
    has_leases = url.startswith("postgres")
    strokes = [kill_one] * kills + [stop_one]
    chance.shuffle(strokes)
    async with Convoy(url, folder, size=3, runs=runs, at_once=12) as convoy:
        for number, stroke in enumerate(strokes, start=1):
            convoy.allow(runs * number // len(strokes))
            await convoy.began(chance.randint(1, runs // len(strokes)))
            await stroke(convoy, chance, has_leases)
        await finish(convoy)
        assert convoy.takeovers.waited, "nobody was hit, so nothing was tested"
        assert convoy.takeovers.longest <= PATIENCE_S  # The soak has the real bound.


async def survive_for_long(url: str, folder: Path, *, waited_max_s: float) -> None:
    """The same with many more runs, under kills for half a minute, and with a bound on how long runs wait."""
    chance = seeded()
    has_leases = url.startswith("postgres")
    async with Convoy(url, folder, size=3, runs=10_000, at_once=40) as convoy:
        convoy.allow(convoy.runs)
        strokes, end_at = 0, time.monotonic() + 30
        while time.monotonic() < end_at:
            await convoy.began(chance.randint(1, 500))
            await chance.choice([kill_one, kill_one, kill_one, stop_one])(convoy, chance, has_leases)
            strokes += 1
        tell(f"{strokes} times a process was killed or stopped")
        await finish(convoy)
        assert convoy.takeovers.waited, "nobody was hit, so nothing was tested"
        assert convoy.takeovers.longest <= waited_max_s


async def outlast(folder: Path, *, runs: int, crashes: int) -> None:
    """The server crashes, or is killed, in the midst of each part of the runs, and is started again."""
    chance = seeded()
    server = await asyncio.to_thread(PostgresServer, VERSIONS[-1])
    try:
        async with Convoy(f"{server.url}?lease={LEASE_S}", folder, size=3, runs=runs, at_once=12) as convoy:
            for number in range(1, crashes + 1):
                convoy.allow(runs * number // crashes)
                await convoy.began(chance.randint(1, runs // crashes))
                await asyncio.to_thread(server.kill if number % 2 else server.crash)
                # However long it is away: shorter than the lease, or longer, when engines may be taken for dead.
                await asyncio.sleep(chance.choice((0.0, LEASE_S / 2, LEASE_S)))
                await asyncio.to_thread(server.revive)
            await finish(convoy)
            assert "is sent again" in convoy.messages(), "nobody was hit, so nothing was tested"
    finally:
        await asyncio.to_thread(server.end)


async def kill_one(convoy: Convoy, chance: random.Random, has_leases: bool) -> None:
    """The next one in its place comes after its runs were taken over, or at once. It may still be starting itself, but
    somebody else is there to take its runs over."""
    index = chance.randrange(convoy.size)
    await convoy.one_is_open(*convoy.others(index))
    await convoy.kill(index)
    if chance.random() < 0.5:
        await taken_over(convoy)
    convoy.restart(index)


async def stop_one(convoy: Convoy, chance: random.Random, has_leases: bool) -> None:
    """Wake it again after others have taken its runs over; or, if nobody can, after a while."""
    index = chance.randrange(convoy.size)
    process = convoy.processes[index]
    await convoy.one_is_open(index)
    await convoy.one_is_open(*convoy.others(index))
    engines = await convoy.stop(index, is_lost=has_leases)
    if not has_leases:
        # Not a wait for something: it keeps its lock, and its runs wait for it.
        await asyncio.sleep(chance.uniform(0.2, 1.0))
        assert not await convoy.are_marked_dead(engines)
        process.wake()
        convoy.takeovers.hindered()  # It may have been stopped while it wrote, and then nobody else can.
        return
    await convoy.until(lambda: convoy.are_marked_dead(engines), "the stopped engine is to be marked dead")
    await taken_over(convoy)
    heard = len(process.messages.read_text())
    process.wake()

    async def has_rejoined() -> bool:
        return REJOINED.search(process.messages.read_text(), heard) is not None

    await convoy.until(has_rejoined, "the stopped engine is to hear that it was marked dead")


def seeded() -> random.Random:
    seed = int(os.environ.get("PERDURE_SEED", random.randrange(2**32)))
    tell(f"PERDURE_SEED={seed}")  # pytest shows it when the test fails
    return random.Random(seed)


async def finish(convoy: Convoy, *, is_lossy: bool = False) -> None:
    """Wait for all runs to end, have the processes leave, and see that all is as it must be. A store that is lossy may
    have forgotten children, which then were made again with other ids."""
    await convoy.until(convoy.has_ended, "all runs are to end")
    await convoy.until(convoy.has_no_mail, "all mail is to be read")
    await convoy.leave()
    await check(convoy, is_lossy)


async def taken_over(convoy: Convoy) -> None:
    async def is_done() -> bool:
        await convoy.takeovers.look()
        return not convoy.takeovers.is_waiting

    await convoy.until(is_done, "its runs are to be taken over")


async def check(convoy: Convoy, is_lossy: bool) -> None:
    lines = convoy.lines()
    starts = [line for line in lines if line.what == STARTED]
    unseen = sum(line.what == UNSEEN for line in lines)
    again = sum(count > 1 for count in Counter((line.run_id, line.position) for line in starts).values())
    tell(f"{len(starts)} attempts of steps ({unseen} not looked at), {again} steps again;", convoy.takeovers.summary)
    messages = convoy.messages()
    tell(f"{len(REJOINED.findall(messages))} times an engine was marked dead and registered anew")
    assert " ERROR " not in DRIVERS_OWN.sub("", messages), messages
    assert [line for line in lines if line.what == LATE] == []
    assert unseen < len(starts) // 2
    assert is_lossy or FORGOTTEN not in convoy.messages()
    await check_results(convoy)
    begun = {(line.run_id, line.position) for line in starts}
    if is_lossy:
        known = {run_id(number) for number in range(convoy.runs)}
        begun = {(of_run, position) for of_run, position in begun if of_run in known}
    await check_journals(convoy, begun)
    assert await convoy.store.events(limit=10) == []
    assert await convoy.store.dead_letters(limit=10) == []
    assert await check_store(convoy.store) >= convoy.runs


async def check_results(convoy: Convoy) -> None:
    found: dict[str, StoredRun] = {}
    for start in range(0, convoy.runs, 1000):
        ids = [run_id(number) for number in range(start, min(start + 1000, convoy.runs))]
        found |= await convoy.store.get(ids)
    tickets: list[int] = []
    for number in range(convoy.runs):
        one = found[run_id(number)]
        assert (one.run.status, one.run.hold, one.run.owner) == (Status.SUCCEEDED, None, None), one
        _, expected = chosen(number)
        result = msgspec.json.decode(one.outcome.output or "")
        if expected is None:
            tickets.append(result)
        else:
            assert result == expected, one.run.id
    assert sorted(tickets) == list(range(TICKET, convoy.runs, KINDS))


async def check_journals(convoy: Convoy, begun: set[tuple[str, str]]) -> None:
    ids = sorted({of_run for of_run, _ in begun})
    written: Counter[tuple[str, str]] = Counter()
    for start in range(0, len(ids), 500):
        for of_run, journal in (await convoy.store.journals(ids[start : start + 500])).items():
            written.update((of_run, entry.position) for entry in journal.entries)
    assert {key for key, count in written.items() if count > 1} == set()
    assert begun <= written.keys()


def tell(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
