"""Making runs and batches, in as few words as a test wants."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from perdure.kernel.batch import Batch, RunWrite
from perdure.kernel.records import Audit, Engine, Entry, Outcome, Run, Wait
from perdure.kernel.status import Status
from perdure.ports import Store


def a_run(run_id: str = "r-1", **fields: Any) -> Run:
    defaults = _fields(workflow="checkout", status=Status.RUNNING, version=1, created_at=100, updated_at=100)
    return Run(id=run_id, **defaults | fields)


def insert(run: Run, text: str = '"in"', outcome: Outcome | None = None) -> RunWrite:
    return RunWrite(run=run, expected_version=None, input=text, outcome=outcome)


def update(before: Run, *, outcome: Outcome | None = None, **changes: Any) -> RunWrite:
    """A write of `before` with changes and the next version, which expects to find `before`."""
    after = msgspec.structs.replace(before, **{"version": before.version + 1, **changes})
    return RunWrite(run=after, expected_version=before.version, expected_owner=before.owner, outcome=outcome)


def an_entry(run_id: str = "r-1", seq: int = 1, **fields: Any) -> Entry:
    defaults = _fields(position=str(seq), kind="step", name="reserve", started_at=1, at=2)
    if "failure" not in fields:
        defaults["value"] = f'"{seq}"'
    return Entry(run_id=run_id, seq=seq, **defaults | fields)


def a_wait(run_id: str = "r-1", position: str = "1", **fields: Any) -> Wait:
    defaults = _fields(kind="timer", name="sleep", due_at=500)
    return Wait(run_id=run_id, position=position, **defaults | fields)


def an_audit(run_id: str = "r-1", seq: int = 1, **fields: Any) -> Audit:
    defaults = _fields(version=1, was=None, became="running", cause="start", actor="engine", at=3)
    return Audit(run_id=run_id, seq=seq, **defaults | fields)


def _fields(**fields: Any) -> dict[str, Any]:
    return fields


class Author:
    """An engine enrolled in a store: numbers its batches and sends them."""

    def __init__(self, store: Store, engine: Engine) -> None:
        self.store = store
        self.engine = engine
        self.id = engine.id
        self.number = engine.batch

    @classmethod
    async def enroll(cls, store: Store, engine_id: str = "e-1") -> Author:
        return cls(store, await store.enroll(engine_id=engine_id, host="h", pid=1, workflows=["checkout"], at=1))

    def batch(self, *runs: RunWrite, **parts: Any) -> Batch:
        """The next batch, not sent."""
        return Batch(
            engine_id=self.id,
            epoch=self.engine.epoch,
            number=self.number + 1,
            runs={write.run.id: write for write in runs},
            **parts,
        )

    async def commit(self, *runs: RunWrite, **parts: Any) -> None:
        await self.store.commit(self.batch(*runs, **parts))
        self.number += 1

    async def claim(self, limit: int = 100, **fingerprints: str) -> list[str]:
        """The ids of the runs claimed, for the workflow checkout unless others are given."""
        loaded = await self.store.claim(
            engine_id=self.id, epoch=self.engine.epoch, fingerprints=fingerprints or {"checkout": "f"}, limit=limit
        )
        return [one.run.id for one in loaded]


class Rules:
    """Tests of a store; a subclass says how to make one."""

    def make_store(self) -> Store:
        """A store, not opened, on the database of the running test: every store made in one test shares it."""
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
