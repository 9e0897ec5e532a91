"""A crowd of engines that send, wait, cease to wait and read, all at once: nothing is lost, doubled or overlooked."""

from __future__ import annotations

import asyncio
import random
import re
from collections import Counter
from contextlib import AsyncExitStack, suppress

import pytest
from msgspec.structs import replace

from perdure.errors import OutcomeUnknown, StoreBusy
from perdure.kernel.batch import Batch, Committed
from perdure.kernel.events import Event
from perdure.kernel.rows import Wait
from perdure.kernel.status import Status
from perdure.kernel.wait_matches import accepts
from perdure.testing.conformance.base import Author, a_run, an_event, insert, update, waits_for
from tests.storage.postgres.meddler import author_on, meddler
from tests.storage.postgres.server import Servers

ENGINES = 4
RUNS = 3  # of each engine
ACTIONS = 25  # of each engine
NAMES = ("paid", "shipped")


class Member:
    """One engine of the crowd, with runs of its own. It knows of them what it loads."""

    def __init__(self, author: Author, luck: random.Random) -> None:
        self.author = author
        self.runs = {f"{author.id} {number}": 1 for number in range(RUNS)}  # id -> version
        self.sent: list[str] = []
        self.read: list[str] = []
        self._luck = luck
        self._count = 0

    async def act(self) -> None:
        run_id = self._luck.choice(list(self.runs))
        loaded = (await self.author.store.load([run_id]))[run_id]
        positions = {wait.position for wait in loaded.waits}
        won = {event.position: event for event in loaded.events if event.position is not None}
        action = self._luck.choice(["send", "send", "wait", "wait", "leave", "end"])
        if action == "send":
            await self._send()
        elif action == "wait" and len(positions) < 3:
            await self._wait(run_id)
        elif action == "end" and self._luck.random() < 0.2:
            await self._begin_anew(run_id)
        elif positions:
            # What has won is read; what has not is left, while somebody may be about to win it.
            position = self._luck.choice(sorted(positions))
            read = [(run_id, won[position].id)] if position in won else []
            await self._commit(self._batch(waits_dropped=[(run_id, position)], events_read=read))
            self.read += [event_id for _, event_id in read]

    async def _send(self) -> None:
        events = [an_event(self._id("e"), name=self._luck.choice(NAMES)) for _ in range(self._luck.randint(1, 2))]
        await self._exchange(events=events)
        self.sent += [event.id for event in events]

    async def _wait(self, run_id: str) -> None:
        names = self._luck.sample(NAMES, self._luck.randint(1, 2))
        position = self._id("p")
        await self._exchange(waits=[waits_for(run_id, position, option=n, name=name) for n, name in enumerate(names)])

    async def _begin_anew(self, run_id: str) -> None:
        """The run ends, and what it had not read goes back."""
        ended = a_run(run_id, owner=self.author.id, status=Status.SUCCEEDED, version=self.runs[run_id] + 1)
        before = a_run(run_id, owner=self.author.id, version=self.runs[run_id])
        write = update(before, status=ended.status)
        await self._commit(self._batch(runs={run_id: write}, waits_cleared=[run_id]))
        self.runs[run_id] += 1
        again = update(ended, status=Status.RUNNING)
        await self._commit(self._batch(runs={run_id: again}))
        self.runs[run_id] += 1

    async def _exchange(self, waits: list[Wait] | None = None, events: list[Event] | None = None) -> None:
        numbered = [replace(wait, number=number) for number, wait in enumerate(waits or [], 1)]
        sent = [replace(event, number=number) for number, event in enumerate(events or [], 1)]
        await self._commit(
            self._batch(
                waits={(wait.run_id, wait.position, wait.option): wait for wait in numbered},
                events=sent,
                numbered=len(numbered) + len(sent),
                pending_max={event.id: 1000 for event in sent},
            )
        )

    def _batch(self, **parts: object) -> Batch:
        return replace(self.author.batch(), **parts)

    async def _commit(self, batch: Batch) -> Committed:
        while True:
            try:
                committed = await self.author.store.commit(batch)
            except (StoreBusy, OutcomeUnknown):
                await asyncio.sleep(0.001)
            else:
                self.author.number = batch.number
                return committed

    def _id(self, kind: str) -> str:
        self._count += 1
        return f"{kind} {self.author.id} {self._count}"


@pytest.mark.parametrize("seed", range(4))
async def test_a_crowd_loses_doubles_and_overlooks_nothing(url: str, seed: int) -> None:
    await gather_crowd(url, seed)


async def test_without_the_locks_on_names_a_crowd_would_overlook_something(postgres_servers: Servers) -> None:
    """So that the one above is known to look hard enough."""
    for seed in range(100):
        url = postgres_servers.fresh()
        async with author_on(url, "first"), meddler(url) as other:
            text: str = await other.fetchval("select pg_get_functiondef('prepare_v1'::regproc)")
            await other.execute(re.sub(r"perform pg_advisory_xact_lock\w*", "perform abs", text))
        with suppress(AssertionError):
            await gather_crowd(url, seed)
            continue
        return
    raise AssertionError("nothing was overlooked")


async def gather_crowd(url: str, seed: int) -> None:
    luck = random.Random(seed)
    async with AsyncExitStack() as stack:
        authors = [await stack.enter_async_context(author_on(url, f"e-{number}")) for number in range(ENGINES)]
        crowd = [Member(author, random.Random(luck.random())) for author in authors]
        for member in crowd:
            await member.author.commit(*(insert(a_run(run_id, owner=member.author.id)) for run_id in member.runs))

        for _ in range(ACTIONS):
            await asyncio.gather(*(member.act() for member in crowd))
            await check(crowd, seed)


async def check(crowd: list[Member], seed: int) -> None:
    """What must be true whenever nobody does anything."""
    store = crowd[0].author.store
    queued = await store.events(limit=1000)
    loaded = (await store.load([run_id for member in crowd for run_id in member.runs])).values()
    places = Counter(event.id for event in queued)
    places.update(event.id for one in loaded for event in one.events)
    places.update(event_id for member in crowd for event_id in member.read)
    assert places == Counter(event_id for member in crowd for event_id in member.sent), f"seed {seed}"
    for one in loaded:
        held = Counter(event.position for event in one.events)
        assert max(held.values(), default=1) == 1, f"seed {seed}: a position was won twice"
        won = {wait.position for wait in one.waits if wait.due_at == 0}
        assert won == set(held), f"seed {seed}: what was won and what is there differ"
        for wait in one.waits:
            if wait.due_at is None:
                missed = [event.id for event in queued if accepts(wait, event)]
                assert not missed, f"seed {seed}: {wait} overlooked {missed}"
