"""Real processes that share a store, some of them killed or stopped under load: nothing is lost, nothing is doubled."""

from __future__ import annotations

import asyncio
import os
import random
import re
import sys
from collections import Counter
from pathlib import Path

import msgspec
import pytest

from perdure.kernel.status import Status
from perdure.testing import check_store
from tests.fleet.convoy import Convoy, steps_of
from tests.fleet.load import KINDS, LATE, STARTED, TICKET, UNSEEN, chosen, run_id
from tests.storage.postgres.server import VERSIONS, PostgresServer, Servers

LEASE_S = 2.0
REJOINED = re.compile(r"was marked dead; dropping \d+ runs and registering anew")


@pytest.mark.timeout(600)
def test_a_fleet_on_one_file_survives_the_loss_of_any_process(tmp_path: Path) -> None:
    asyncio.run(survive(f"sqlite:///{tmp_path / 'fleet.db'}", tmp_path, runs=500, kills=5))


@pytest.mark.timeout(600)
def test_a_fleet_on_postgres_survives_the_loss_of_any_process(tmp_path: Path, postgres_servers: Servers) -> None:
    asyncio.run(survive(f"{postgres_servers.fresh()}&lease={LEASE_S}", tmp_path, runs=500, kills=5))


@pytest.mark.timeout(600)
def test_a_fleet_survives_crashes_of_its_database(tmp_path: Path) -> None:
    asyncio.run(outlast(tmp_path, runs=300, crashes=2))


async def outlast(folder: Path, *, runs: int, crashes: int) -> None:
    """The server crashes, or is killed, under load, and is started again."""
    chance = seeded()
    server = await asyncio.to_thread(PostgresServer, VERSIONS[-1])
    try:
        async with Convoy(f"{server.url}?lease={LEASE_S}", folder, size=3, runs=runs, at_once=8) as convoy:
            part = steps_of(runs) // (crashes + 1)
            for number in range(crashes):
                await convoy.began(part * number + chance.randint(part // 2, part))
                await asyncio.to_thread(server.kill if number % 2 else server.crash)
                # However long it is away: shorter than the lease, or longer, when all engines seem dead.
                await asyncio.sleep(chance.choice((0.0, 0.5, LEASE_S)))
                await asyncio.to_thread(server.revive)
            await finish(convoy)
    finally:
        await asyncio.to_thread(server.end)


async def survive(url: str, folder: Path, *, runs: int, kills: int) -> None:
    chance = seeded()
    has_leases = url.startswith("postgres")
    async with Convoy(url, folder, size=3, runs=runs, at_once=8) as convoy:
        part = steps_of(runs) // (kills + 3)
        for number in range(kills + 1):
            await convoy.began(part * number + chance.randint(part // 2, part))
            index = chance.randrange(convoy.size)
            if number == kills // 2:
                await stop_for_a_while(convoy, index, chance, has_leases)
            else:
                await convoy.kill(index)
                if chance.random() < 0.7:
                    await taken_over(convoy)
                convoy.restart(index)
        await finish(convoy)
        assert convoy.takeovers.waited


def seeded() -> random.Random:
    seed = int(os.environ.get("PERDURE_SEED", random.randrange(2**32)))
    tell(f"PERDURE_SEED={seed}")  # pytest shows it when the test fails
    return random.Random(seed)


async def finish(convoy: Convoy) -> None:
    """Wait for all runs to end, have the processes leave, and see that all is as it must be."""
    await convoy.until(convoy.has_ended, "all runs are to end")
    await convoy.until(convoy.has_no_mail, "all mail is to be read")
    await convoy.leave()
    await check(convoy)


async def stop_for_a_while(convoy: Convoy, index: int, chance: random.Random, has_leases: bool) -> None:
    engines = await convoy.stop(index, is_lost=has_leases)
    if has_leases:
        await convoy.until(lambda: convoy.are_marked_dead(engines), "the stopped engine is to be marked dead")
        await taken_over(convoy)
    else:
        # It keeps its lock, and its runs wait for it.
        await asyncio.sleep(chance.uniform(0.5, 1.5))
        assert not await convoy.are_marked_dead(engines)
    convoy.processes[index].wake()
    if has_leases:

        async def has_rejoined() -> bool:
            return REJOINED.search(convoy.processes[index].messages.read_text()) is not None

        await convoy.until(has_rejoined, "the stopped engine is to hear that it was marked dead")


async def taken_over(convoy: Convoy) -> None:
    async def is_done() -> bool:
        await convoy.takeovers.look()
        return not convoy.takeovers.is_waiting

    await convoy.until(is_done, "its runs are to be taken over")


async def check(convoy: Convoy) -> None:
    lines = convoy.lines()
    starts = [line for line in lines if line.what == STARTED]
    unseen = sum(line.what == UNSEEN for line in lines)
    again = sum(count > 1 for count in Counter((line.run_id, line.position) for line in starts).values())
    tell(f"{len(starts)} attempts of steps ({unseen} not looked at), {again} steps again;", convoy.takeovers.summary)
    assert [line for line in lines if line.what == LATE] == []
    assert unseen < len(starts) // 2
    assert again
    await check_results(convoy)
    await check_journals(convoy, {(line.run_id, line.position) for line in starts})
    assert await convoy.store.events(limit=10) == []
    assert await convoy.store.letters(limit=10) == []
    assert await check_store(convoy.store) >= convoy.runs


async def check_results(convoy: Convoy) -> None:
    found = {}
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
