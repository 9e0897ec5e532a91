"""Rollbacks that fail, and that are asked for twice at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from perdure.api.hierarchies import hierarchy_rows
from perdure.api.outcomes import outcome_of
from perdure.client import Client
from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import ScopeFailed
from perdure.models.cooperation.message_events import EventType
from perdure.ports import Store
from perdure.testing import Environment, YieldPoints
from perdure.testing.environment import StoreSource
from tests.cooperation.shop import topic
from tests.cooperation.test_cooperation_engine import Diary, agree

ROOT = topic("root")


async def test_a_rollback_that_fails_names_what_failed(source: StoreSource) -> None:
    root = Operation("root", ROOT)

    @root.step
    async def first(scope: Scope, message: Any) -> None: ...

    @first.rollback
    async def undo_first(scope: Scope, message: Any, cause: Failure) -> None:
        raise OSError("cannot undo")

    @root.step
    async def second(scope: Scope, message: Any) -> None: ...

    @root.step
    async def third(scope: Scope, message: Any) -> None:
        raise ValueError("no")

    async with Environment([root], source) as env:
        emitted = await env.engine.emit(ROOT, {})
        with pytest.raises(ScopeFailed, match="cannot undo"):
            await emitted.finished()
        rows = (await hierarchy_rows(env.engine.session, emitted.id)).events
        (failed,) = [row for row in rows if row.type is EventType.ROLLBACK_FAILED]
        assert failed.step == "Rollback of first[0,]"
        await agree(env, root)


async def test_a_run_that_recovery_claims_amid_a_conflict_is_begun_once(make_store: Callable[[], Store]) -> None:
    """An engine and a client undo the same hierarchy at once, and the engine finds the run while its commit fails."""
    diary, points = Diary(), YieldPoints()
    operations = [diary.operation("root", ROOT, [], [])]
    async with (
        Environment(operations, make_store, probe=points) as env,
        Client(make_store(), clock=env.clock, poll_s=None) as client,
    ):
        root = await env.engine.emit(ROOT, {})
        await root.finished()
        engine, run_id = env.engine, root.run_ids[0]
        with points.hold("take.before_commit") as taking:
            with points.hold("undoscope.before_commit") as held:
                undoing = asyncio.create_task(engine.handle(root.id).roll_back())
                await held.reached()
                assert await client.handle(root.id).roll_back()
                recovering = asyncio.create_task(engine.recover())
                while not engine.session.coordinator.loaded(run_id):  # pyright: ignore[reportPrivateUsage]
                    await asyncio.sleep(0)
            await taking.reached()
            # The conflict has not begun it: the recovery does.
            assert run_id not in engine.runtime.operations._live  # pyright: ignore[reportPrivateUsage]
        await asyncio.gather(undoing, recovering)
        assert (await outcome_of(env.engine.session, root.run_ids[0]))[0].status == "rolled_back"
        assert diary == ["root 0", "root 1", "root undo 1", "root undo 0"]
        await agree(env, *operations)
