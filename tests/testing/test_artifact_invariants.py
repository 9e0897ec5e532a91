"""check_store finds artifacts and tasks that do not fit their runs."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure import receive, stage, task, workflow
from perdure.errors import InvariantViolated
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import Environment


@workflow
async def ends() -> None:
    await stage("report", 1)


@workflow
async def asks() -> None:
    await task(queue="q")


@workflow
async def waits() -> None:
    await stage("draft", 1)
    await receive("go")


def _staged_in_a_finished_run(database: MemoryDatabase) -> None:
    _set_state(database, "report", "staged")


def _published_by_a_run_under_way(database: MemoryDatabase) -> None:
    _set_state(database, "draft", "published")


def _set_state(database: MemoryDatabase, name: str, state: str) -> None:
    artifacts = database.artifacts.artifacts
    (one,) = [one for one in artifacts.values() if one.name == name]
    artifacts[one.id] = replace(one, state=state)


def _open_task_of_a_run_that_does_not_wait(database: MemoryDatabase) -> None:
    tasks = database.tasks.tasks
    (one,) = tasks.values()
    tasks["other"] = replace(one, id="other", run_id="ends")


def _open_task_at_another_position(database: MemoryDatabase) -> None:
    tasks = database.tasks.tasks
    (one,) = tasks.values()
    tasks[one.id] = replace(one, position="9")


def _withdrawn_task_that_is_waited_for(database: MemoryDatabase) -> None:
    tasks = database.tasks.tasks
    (one,) = tasks.values()
    tasks[one.id] = replace(one, status="withdrawn")


@pytest.mark.parametrize(
    ("break_it", "problem"),
    [
        (_staged_in_a_finished_run, "has staged"),
        (_published_by_a_run_under_way, "has not succeeded"),
        (_open_task_of_a_run_that_does_not_wait, "does not wait for the task 'other'"),
        (_open_task_at_another_position, "does not wait for the task"),
        (_withdrawn_task_that_is_waited_for, "which is not open"),
    ],
)
async def test_what_does_not_fit_is_found(break_it: Callable[[MemoryDatabase], None], problem: str) -> None:
    database = MemoryDatabase()
    async with Environment([ends, asks, waits], lambda: MemoryStore(database)) as env:
        await env.engine.run(ends(), id="ends")
        await env.engine.start(asks(), id="asks")
        await env.engine.start(waits(), id="waits")
        await env.quiet()
        await env.check()
        break_it(database)
        with pytest.raises(InvariantViolated, match=problem):
            await env.check()
