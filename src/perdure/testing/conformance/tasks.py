"""Tasks: they are claimed, answered and withdrawn. Also versioned records."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from perdure.errors import CommitConflict
from perdure.kernel.tasks import Task, TaskAnswer, TaskRelease, TaskWrites
from perdure.ports import Store, TaskFilter, Within
from perdure.testing.conformance.base import Author, Rules, a_run, insert


def a_task(task_id: str = "t-1", **fields: Any) -> Task:
    defaults: dict[str, Any] = {
        "run_id": "r-1",
        "position": "1",
        "queue": "approvals",
        "kind": "human",
        "title": "Please approve",
        "schema": "{}",
        "payload": '"in"',
        "created_at": 4,
    }
    return Task(id=task_id, **defaults | fields)


def answered(task_id: str = "t-1", worker: str | None = None) -> TaskWrites:
    return TaskWrites(answers=[TaskAnswer(task_id=task_id, worker=worker, by=worker or "ann", at=8)])


def released(task_id: str = "t-1", worker: str = "w-1", error: str | None = None) -> TaskWrites:
    return TaskWrites(released=[TaskRelease(task_id=task_id, worker=worker, error=error, actor=worker, at=20)])


async def _listed(store: Store, **wanted: Any) -> list[str]:
    return [one.id for one in await store.tasks(TaskFilter(**wanted))]


async def _task(store: Store, task_id: str = "t-1") -> Task:
    return (await store.load_tasks([task_id]))[task_id]


async def _claim(store: Store, worker: str, *, at: int = 10, lease: int = 100, limit: int = 10) -> list[str]:
    claimed = await store.claim_tasks(queue="approvals", worker=worker, lease_us=lease, at=at, limit=limit)
    assert all((task.worker, task.lease_until) == (worker, at + lease) for task in claimed)
    return [task.id for task in claimed]


class TaskRules(Rules):
    async def test_a_task_comes_back_as_it_is(self) -> None:
        async with self.author() as author:
            task = a_task(due_at=9, title="𝕌 '", details="null", kind="remote")
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[task]))
            assert await _task(author.store) == task
            assert await author.store.tasks(TaskFilter()) == [task]
            assert await author.store.load_tasks(["t-2", "t-1", "t-1"]) == {"t-1": task}
            assert await author.store.load_tasks([]) == {}

    async def test_a_list_of_tasks_leaves_out_those_of_other_runs(self) -> None:
        async with self.author() as author:
            runs = [
                a_run("r-1", workflow="one", tags={"tenant": "acme", "a": "b"}),
                a_run("r-2", workflow="two", tags={"tenant": "other"}),
                a_run("r-3", workflow="one"),
            ]
            for number, run in enumerate(runs, 1):
                await author.commit(insert(run), tasks=TaskWrites(tasks=[a_task(f"t-{number}", run_id=run.id)]))
            cases: list[tuple[Within | None, list[str]]] = [
                (None, ["t-1", "t-2", "t-3"]),
                (Within(), []),
                (Within(workflows=("one",)), ["t-1", "t-3"]),
                (Within(tags=(("tenant", "acme"),)), ["t-1"]),
                (Within(tags=(("tenant", "b"), ("a", "acme"))), []),
                (Within(tags=(("a", "x"), ("a", "b")), workflows=("two", "none")), ["t-1", "t-2"]),
            ]
            for within, found in cases:
                assert await _listed(author.store, within=within) == found
                for more in ({"queue": "approvals", "status": "open"}, {"status": "open"}):
                    assert await _listed(author.store, within=within, at=5, **more) == found
                assert await _listed(author.store, within=within, run_id="r-1") == [
                    one for one in found if one == "t-1"
                ]
                assert await _listed(author.store, within=within, limit=1) == found[:1]
                assert await _listed(author.store, within=within, after="t-1") == [one for one in found if one > "t-1"]

    async def test_a_task_is_answered_once(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task()]))
            await author.commit(tasks=answered())
            expected = msgspec.structs.replace(a_task(), status="answered", closed_at=8, answered_by="ann")
            assert await _task(author.store) == expected
            with pytest.raises(CommitConflict) as conflict:
                await author.commit(tasks=answered())
            assert conflict.value.run_ids == frozenset()
            with pytest.raises(CommitConflict):
                await author.commit(tasks=answered("t-9"))

    async def test_a_withdrawn_task_is_not_answered_and_an_answered_one_not_withdrawn(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task(), a_task("t-2")]))
            await author.commit(tasks=answered("t-2"))
            await author.commit(at=9, tasks=TaskWrites(withdrawn=["t-1", "t-2", "t-3"]))
            found = {task.id: (task.status, task.closed_at) for task in await author.store.tasks(TaskFilter())}
            assert found == {"t-1": ("withdrawn", 9), "t-2": ("answered", 8)}
            with pytest.raises(CommitConflict):
                await author.commit(tasks=answered())

    async def test_one_worker_has_a_task_while_its_lease_lasts(self) -> None:
        async with self.author() as author:
            store = author.store
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task("t-2"), a_task("t-1")]))
            assert await _claim(store, "w-1", limit=1) == ["t-1"]
            assert await _claim(store, "w-2") == ["t-2"]
            assert await _claim(store, "w-3", at=109) == []
            assert await _claim(store, "w-3", at=110) == ["t-1", "t-2"]
            task = await _task(store)
            assert (task.claims, task.beat_at) == (2, 110)

    async def test_workers_that_claim_at_the_same_time_get_different_tasks(self) -> None:
        async with self.author("e-1") as one, self.author("e-2") as other:
            ids = [f"t-{number:02}" for number in range(40)]
            await one.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task(task_id) for task_id in ids]))
            got: list[str] = []

            async def work(author: Author, worker: str) -> None:
                # A claim may skip tasks that other workers are taking. So claim until no task is left.
                for _ in range(40):
                    got.extend(await _claim(author.store, worker, limit=3))

            await asyncio.gather(*(work(author, f"w-{author.id}-{n}") for author in (one, other) for n in range(2)))
            assert sorted(got) == ids

    async def test_only_open_tasks_of_the_queue_are_claimed(self) -> None:
        async with self.author() as author:
            tasks = [a_task("t-1"), a_task("t-2"), a_task("t-3", queue="other"), a_task("t-4")]
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=tasks))
            await author.commit(tasks=answered("t-1"))
            await author.commit(tasks=TaskWrites(withdrawn=["t-2"]))
            assert await _claim(author.store, "w-1") == ["t-4"]
            assert await _claim(author.store, "w-1", limit=0) == []

    async def test_a_heartbeat_lengthens_the_lease_of_who_has_the_task(self) -> None:
        async with self.author() as author:
            store = author.store
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task()]))
            await _claim(store, "w-1")
            assert await store.renew_lease(task_id="t-1", worker="w-1", at=90, details='"half"')
            assert await _claim(store, "w-2", at=150) == []
            assert await store.renew_lease(task_id="t-1", worker="w-1", at=95)
            task = await _task(store)
            assert (task.details, task.lease_until, task.beat_at) == ('"half"', 195, 95)
            # The heartbeat is late, but no other worker has claimed the task.
            assert await store.renew_lease(task_id="t-1", worker="w-1", at=300)
            assert not await store.renew_lease(task_id="t-1", worker="w-2", at=300)
            assert not await store.renew_lease(task_id="t-9", worker="w-1", at=300)
            assert await _claim(store, "w-2", at=500) == ["t-1"]
            assert not await store.renew_lease(task_id="t-1", worker="w-1", at=501)

    async def test_a_released_task_is_free_at_once(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task()]))
            await _claim(author.store, "w-1")
            await author.commit(tasks=released(error="tired"))
            task = await _task(author.store)
            assert (task.worker, task.lease_until, task.error, task.beat_at) == (None, None, "tired", 20)
            assert not await author.store.renew_lease(task_id="t-1", worker="w-1", at=21)
            assert await _claim(author.store, "w-2", at=21) == ["t-1"]
            await author.commit(tasks=released(worker="w-2"))
            assert (await _task(author.store)).error == "tired"

    async def test_only_the_worker_that_has_a_task_releases_it(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task(), a_task("t-2")]))
            for worker in ("w-1", "w-2"):
                with pytest.raises(CommitConflict):
                    await author.commit(insert(a_run("r-2")), tasks=released(worker=worker))
                await _claim(author.store, "w-1")
            await author.commit(tasks=answered("t-2"))
            with pytest.raises(CommitConflict):
                await author.commit(insert(a_run("r-2")), tasks=released("t-2"))
            assert await author.store.load(["r-2"]) == {}
            await author.commit(tasks=TaskWrites(released=released().released, answers=answered().answers))
            task = await _task(author.store)
            assert (task.status, task.worker, task.answered_by) == ("answered", None, "ann")

    async def test_a_worker_answers_only_what_nobody_else_has(self) -> None:
        async with self.author() as author:
            await author.commit(insert(a_run()), tasks=TaskWrites(tasks=[a_task(), a_task("t-2")]))
            await _claim(author.store, "w-1")
            await _claim(author.store, "w-2", at=500, limit=1)
            with pytest.raises(CommitConflict):
                await author.commit(tasks=answered("t-1", "w-1"))
            await author.commit(tasks=answered("t-1", "w-2"))
            # The lease has expired, but no other worker has claimed the task.
            await author.commit(tasks=answered("t-2", "w-1"))
            assert await _listed(author.store, status="answered") == ["t-1", "t-2"]

    async def test_tasks_are_listed_by_queue_kind_run_and_status(self) -> None:
        async with self.author() as author:
            tasks = [
                a_task("t-1"),
                a_task("t-2"),
                a_task("t-3", queue="other", kind="remote"),
                a_task("t-4", run_id="r-2"),
                a_task("t-5"),
            ]
            await author.commit(insert(a_run()), insert(a_run("r-2")), tasks=TaskWrites(tasks=tasks))
            await _claim(author.store, "w-1", limit=1)
            await author.commit(tasks=answered("t-2"))
            await author.commit(tasks=TaskWrites(withdrawn=["t-5"]))
            store = author.store
            assert await _listed(store) == ["t-1", "t-2", "t-3", "t-4", "t-5"]
            assert await _listed(store, queue="approvals") == ["t-1", "t-2", "t-4", "t-5"]
            assert await _listed(store, kind="remote") == ["t-3"]
            assert await _listed(store, run_id="r-1", status="open", at=50) == ["t-3"]
            assert await _listed(store, queue="approvals", status="open", at=50) == ["t-4"]
            assert await _listed(store, queue="approvals", status="open", at=110) == ["t-1", "t-4"]
            assert await _listed(store, queue="approvals", status="claimed", at=50) == ["t-1"]
            assert await _listed(store, status="claimed", at=110) == []
            assert await _listed(store, status="answered") == ["t-2"]
            assert await _listed(store, status="withdrawn") == ["t-5"]
            assert await _listed(store, after="t-2", limit=2) == ["t-3", "t-4"]
