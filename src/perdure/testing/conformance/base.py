"""Short helper functions that make runs and batches for the conformance tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from itertools import count
from typing import Any

import msgspec

from perdure.kernel.batch import Batch, Committed, RunWrite, is_brief_change
from perdure.kernel.events import Event
from perdure.kernel.rows import Engine, Entry, Wait
from perdure.kernel.runs import Audit, Outcome, Run
from perdure.kernel.status import Status
from perdure.ports import Offer, Store


def a_run(run_id: str = "r-1", **fields: Any) -> Run:
    defaults = _fields(workflow="checkout", status=Status.RUNNING, version=1, created_at=100, updated_at=100)
    return Run(id=run_id, **defaults | fields)


def insert(run: Run, text: str = '"in"', outcome: Outcome | None = None) -> RunWrite:
    return RunWrite(run=run, expected_version=None, input=text, outcome=outcome)


def update(before: Run, *, outcome: Outcome | None = None, **changes: Any) -> RunWrite:
    """Return a write of `before` with changes and the next version. The write expects to find `before` in the store."""
    after = msgspec.structs.replace(before, **{"version": before.version + 1, **changes})
    return RunWrite(
        run=after,
        expected_version=before.version,
        expected_owner=before.owner,
        expected_claim=before.claim,
        outcome=outcome,
        is_brief=is_brief_change(before, after),
    )


def an_entry(run_id: str = "r-1", seq: int = 1, **fields: Any) -> Entry:
    defaults = _fields(position=str(seq), kind="step", name="reserve", started_at=1, at=2)
    if "failure" not in fields:
        defaults["value"] = f'"{seq}"'
    return Entry(run_id=run_id, seq=seq, **defaults | fields)


def a_wait(run_id: str = "r-1", position: str = "1", **fields: Any) -> Wait:
    defaults = _fields(kind="timer", name="sleep", due_at=500)
    return Wait(run_id=run_id, position=position, **defaults | fields)


def an_event(event_id: str = "e-1", **fields: Any) -> Event:
    defaults = _fields(name="paid", value='{"amount":1}', expires_at=10_000, at=5)
    return Event(id=event_id, **defaults | fields)


def waits_for(run_id: str = "r-1", position: str = "1", **fields: Any) -> Wait:
    """Return a wait for an event."""
    defaults = _fields(kind="event", name="paid", mode="after_wait", due_at=None)
    return a_wait(run_id, position, **defaults | fields)


def an_audit(run_id: str = "r-1", seq: int = 1, **fields: Any) -> Audit:
    defaults = _fields(version=1, was=None, became="running", cause="start", actor="engine", at=3)
    return Audit(run_id=run_id, seq=seq, **defaults | fields)


def _fields(**fields: Any) -> dict[str, Any]:
    return fields


def offers(**fingerprints: str) -> list[Offer]:
    """Return offers of these workflows, with these fingerprints and no version."""
    return [Offer(workflow, "", fingerprint) for workflow, fingerprint in fingerprints.items()]


CHECKOUT = {"checkout": "f"}


class Author:
    """An engine that is registered in a store. It numbers and sends its batches."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self.id = engine.id
        self.number = engine.batch

    @classmethod
    async def enroll(cls, store: Store, engine_id: str = "e-1") -> Author:
        workflows = [("checkout", "")]
        return cls(store, await store.enroll(engine_id=engine_id, host="h", pid=1, workflows=workflows, at=1))

    def batch(self, *runs: RunWrite, **parts: Any) -> Batch:
        """Return the next batch without sending it."""
        return Batch(
            engine_id=self.id,
            epoch=self.engine.epoch,
            number=self.number + 1,
            runs={write.run.id: write for write in runs},
            **parts,
        )

    async def commit(self, *runs: RunWrite, **parts: Any) -> Committed:
        committed = await self.store.commit(self.batch(*runs, **parts))
        self.number += 1
        return committed

    async def exchange(
        self, *runs: RunWrite, waits: Sequence[Wait] = (), events: Sequence[Event] = (), **parts: Any
    ) -> Committed:
        """Commit waits for events and new events, numbered in this order."""
        numbers = count(1)
        numbered = {
            (wait.run_id, wait.position, wait.option): msgspec.structs.replace(
                wait, number=next(numbers) if wait.kind == "event" else 0
            )
            for wait in waits
        }
        sent = [msgspec.structs.replace(event, number=next(numbers)) for event in events]
        return await self.commit(
            *runs,
            waits=numbered,
            events=sent,
            numbered=next(numbers) - 1,
            pending_max={event.id: 100 for event in sent if event.run_id is None},
            **parts,
        )

    async def claim(self, limit: int = 100, **fingerprints: str) -> list[str]:
        """Claim runs and return their ids. By default, these are runs of the workflow checkout."""
        loaded = await self.store.claim(
            engine_id=self.id, epoch=self.engine.epoch, offers=offers(**fingerprints or CHECKOUT), limit=limit
        )
        return [one.run.id for one in loaded]


class Rules:
    """Tests of a store. A subclass implements `make_store`.

    If the store has transactions for steps, set `fails_in_steps`. It is SQL that makes the database fail while a step
    uses it, as a full disk or a broken connection would. `works_again` is SQL that ends this failure on the same
    connection.
    """

    fails_in_steps: Sequence[str] = ()
    works_again: Sequence[str] = ()

    def make_store(self) -> Store:
        """Return a store that is not open yet, on the database of the running test. All stores of one test share the
        database."""
        raise NotImplementedError

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[Store]:
        store = self.make_store()
        await store.open()
        try:
            yield store
        finally:
            await store.close()

    @asynccontextmanager
    async def author(self, engine_id: str = "e-1") -> AsyncGenerator[Author]:
        async with self.opened() as store:
            yield await Author.enroll(store, engine_id)
