"""A run's state from outside: starting it, reading it, its tags and its deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure import step, workflow
from perdure.errors import (
    ConcurrentModification,
    DeadlineExceeded,
    Misuse,
    RunExists,
    RunFailed,
    RunNotFound,
)
from perdure.ports import StoredRun
from perdure.storage.memory import MemoryStore
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.engine.world import World, environment, steps, waiting

# Reading.


async def test_a_run_is_read_with_its_payloads(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.run(steps("a", "b"), id="r-1", tags={"tenant": "acme"})
        view = await env.engine.runs.get("r-1")
        assert view is not None
        assert (view.id, view.workflow, view.status, view.version, view.attempt) == ("r-1", "steps", "succeeded", 2, 1)
        assert (view.input, view.output, view.failure) == ({"names": ["a", "b"]}, ["A", "B"], None)
        assert (view.tags, view.owner, view.hold) == ({"tenant": "acme"}, None, None)
        assert view.created_at == view.started_at == datetime(2030, 1, 1, tzinfo=UTC) == view.completed_at
        assert await env.engine.runs.get("unknown") is None


async def test_many_runs_are_read_in_one_query_and_none_in_none() -> None:
    asked: list[Sequence[str]] = []

    class Counting(MemoryStore):
        async def get(self, ids: Sequence[str]) -> dict[str, StoredRun]:
            asked.append(ids)
            return await super().get(ids)

    store = Counting()
    async with environment(lambda: store) as env:
        for number in range(3):
            await env.engine.run(steps(), id=f"r-{number}")
        asked.clear()
        found = await env.engine.runs.get_many(["r-2", "unknown", "r-0"])
        assert set(found) == {"r-2", "r-0"}
        assert len(asked) == 1
        assert await env.engine.runs.get_many([]) == {}
        assert len(asked) == 1


async def test_runs_are_listed_newest_first_by_every_filter(source: StoreSource) -> None:
    async with environment(source) as env:
        engine = env.engine
        await engine.run(steps(), id="done", tags={"tenant": "acme", "region": "eu"})
        await env.advance(60)
        await engine.start(waiting(), id="asleep", tags={"tenant": "acme"})
        await env.advance(60)
        await engine.start(waiting(), id="paused", tags={"tenant": "other"})
        await env.quiet()
        await engine.handle("paused").pause()
        await env.quiet()

        async def ids(**wanted: Any) -> list[str]:
            page = await engine.runs.list(**wanted)
            assert all(run.input is None and run.output is None for run in page.runs)
            return [run.id for run in page.runs]

        middle = datetime(2030, 1, 1, 0, 1, tzinfo=UTC)
        assert await ids() == ["paused", "asleep", "done"]
        assert await ids(workflow="waiting") == ["paused", "asleep"]
        assert await ids(status="succeeded") == ["done"]
        assert await ids(status=["succeeded", "suspended"]) == ["paused", "asleep", "done"]
        assert await ids(hold="paused") == ["paused"]
        assert await ids(tags={"tenant": "acme"}) == ["asleep", "done"]
        assert await ids(tags={"tenant": "acme", "region": "eu"}) == ["done"]
        assert await ids(created_from=middle) == ["paused", "asleep"]
        assert await ids(created_before=middle) == ["done"]
        assert await ids(workflow="steps", status="failed") == []
        assert await ids(limit=1) == ["paused"]


async def test_pages_follow_each_other_without_gaps_or_repeats(source: StoreSource) -> None:
    async with environment(source) as env:
        for number in range(7):  # All at the same moment.
            await env.engine.run(steps(), id=f"r-{number}")
        seen: list[str] = []
        cursor = None
        while True:
            page = await env.engine.runs.list(limit=3, cursor=cursor)
            seen += [run.id for run in page.runs]
            await env.engine.run(steps(), id=f"late-{len(seen)}")  # What comes meanwhile is not on later pages twice.
            if (cursor := page.cursor) is None:
                break
        assert [one for one in seen if one.startswith("r-")] == [f"r-{number}" for number in reversed(range(7))]
        assert len(seen) == len(set(seen))


async def test_the_history_has_all_that_happened(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waiting(), id="r-1", actor="ada")
        await env.advance(timedelta(days=1))
        history = await env.engine.handle("r-1").history()
        (entry,) = history.journal
        assert (entry.kind, entry.name, entry.position, entry.seq) == ("timer", "sleep", "1", 1)
        assert [(row.was, row.became, row.cause) for row in history.audit] == [
            (None, "running", "started"),
            ("running", "suspended", "waiting"),
            ("suspended", "running", "ended"),
            ("running", "succeeded", "ended"),
        ]
        assert [row.actor for row in history.audit] == ["ada", "engine", "engine", "engine"]
        assert [row.version for row in history.audit] == [1, 2, 3, 4]
        with pytest.raises(RunNotFound, match=r"'nobody'.*engine.runs"):
            await env.engine.handle("nobody").history()


# Starting.


async def test_starting_the_same_id_again_is_the_same_run(source: StoreSource) -> None:
    world = World()
    async with environment(source, world) as env:
        first = await env.engine.start(steps("a"), id="r-1")
        second = await env.engine.start(steps("a"), id="r-1")
        both = await asyncio.gather(*[env.engine.start(steps("a"), id="r-2") for _ in range(10)])
        assert await first.result() == await second.result() == ["A"]
        assert {run.id for run in both} == {"r-2"}
        await both[0].result()
        await env.restart()
        assert await env.engine.run(steps("a"), id="r-1") == ["A"]
        assert world.calls == ["a", "a"]


async def test_an_id_that_is_taken_by_something_else_is_refused(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(steps("a"), id="r-1")
        with pytest.raises(
            RunExists, match=r"'r-1' belongs to a run of 'steps' with the arguments .*\"a\".*another id"
        ):
            await env.engine.start(steps("b"), id="r-1")
        with pytest.raises(RunExists):
            await env.engine.start(waiting(), id="r-1")


async def test_runs_get_ids_that_sort_by_age(source: StoreSource) -> None:
    async with environment(source) as env:
        ids = []
        for _ in range(3):
            ids.append((await env.engine.start(steps())).id)
            await env.advance(1)
        assert ids == sorted(ids)
        assert {one[14] for one in ids} == {"7"}


# Updating.


async def test_an_update_takes_the_version_that_was_read(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waiting(), id="r-1", tags={"a": "1"})
        await env.quiet()
        view = await env.engine.runs.get("r-1")
        assert view is not None
        changed = await env.engine.handle("r-1").update(expected_version=view.version, tags={"b": "2"}, actor="ada")
        assert (changed.version, changed.tags) == (view.version + 1, {"b": "2"})
        with pytest.raises(ConcurrentModification) as caught:
            await env.engine.handle("r-1").update(expected_version=view.version, tags={"c": "3"})
        assert (caught.value.version, caught.value.expected_version) == (view.version + 1, view.version)
        again = await env.engine.runs.get("r-1")
        assert again is not None
        assert again.tags == {"b": "2"}
        assert (await env.engine.handle("r-1").history()).audit[-1].actor == "ada"
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").update(tags={})


async def test_of_many_updates_at_once_one_wins(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waiting(), id="r-1")
        await env.quiet()
        answers = await asyncio.gather(
            *[env.engine.handle("r-1").update(expected_version=2, tags={"by": str(n)}) for n in range(10)],
            return_exceptions=True,
        )
        assert sum(isinstance(answer, ConcurrentModification) for answer in answers) == 9


async def test_results_of_parallel_steps_do_not_disturb_an_update(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(steps(*"abcdef"), id="r-1")
        await env.engine.handle("r-1").update(tags={"while": "running"})
        assert await run.result() == list("ABCDEF")


# Deadlines.


async def test_a_run_that_misses_its_deadline_fails(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(waiting(), id="r-1", deadline=timedelta(hours=1))
        await env.advance(timedelta(minutes=59))
        assert await run.status() == "suspended"
        await env.restart()
        await env.advance(timedelta(minutes=1))
        with pytest.raises(RunFailed) as caught:
            await env.engine.handle("r-1").result()
        assert isinstance(caught.value.__cause__, DeadlineExceeded)
        await env.advance(timedelta(days=2))
        assert len((await env.engine.handle("r-1").history()).journal) == 0


async def test_a_paused_run_fails_by_its_deadline(source: StoreSource) -> None:
    """A hold stops a run's code, not its deadline; nor does the end of the process that held it."""
    async with Environment([waiting], source, autojump_s=None) as env:
        await env.engine.start(waiting(), id="r-1", deadline=timedelta(hours=1))
        await env.settle()
        assert await env.engine.handle("r-1").pause()
        await env.restart()
        await env.advance(timedelta(hours=2))
        assert await env.engine.handle("r-1").status() == "failed"
        await env.check()


async def test_a_deadline_that_was_moved_or_lifted_is_forgotten(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waiting(), id="moved", deadline=datetime(2030, 1, 1, 1, tzinfo=UTC))
        await env.engine.start(waiting(), id="lifted", deadline=timedelta(hours=1))
        await env.engine.handle("moved").update(deadline=timedelta(hours=2))
        await env.engine.handle("lifted").update(deadline=None)
        await env.advance(timedelta(minutes=90))
        assert await env.engine.handle("moved").status() == "suspended"
        await env.advance(timedelta(days=1))
        assert await env.engine.handle("moved").status() == "failed"
        assert await env.engine.handle("lifted").result() == "waited"


async def test_a_run_that_missed_its_deadline_can_be_retried(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waiting(), id="r-1", deadline=timedelta(hours=1))
        await env.advance(timedelta(hours=2))
        run = await env.engine.handle("r-1").retry()
        await env.advance(timedelta(minutes=59))
        assert await run.status() == "suspended"
        await env.advance(timedelta(hours=1))
        assert await run.status() == "failed"
        run = await env.engine.handle("r-1").retry()
        await env.engine.handle("r-1").update(deadline=None)
        await env.advance(timedelta(days=1))
        assert await run.result() == "waited"


@step
async def leaf(name: str) -> str:
    return name


@workflow(name="branching")
async def branching(depth: int) -> int:
    if depth == 0:
        await leaf("x")
        return 1
    return sum([await branching(depth - 1), await branching(depth - 1)])


async def test_a_tree_has_all_that_a_run_started_in_order(source: StoreSource) -> None:
    async with Environment([branching], source) as env:
        assert await env.engine.run(branching(2), id="root") == 4
        tree = await env.engine.handle("root").tree()
        assert (tree.run.id, tree.run.parent_id) == ("root", None)
        assert [child.run.parent_id for child in tree.children] == ["root", "root"]
        assert [len(child.children) for child in tree.children] == [2, 2]
        ids = [child.run.id for child in tree.children]
        assert ids == sorted(ids)
        with pytest.raises(Misuse, match="more than 3"):
            await env.engine.handle("root").tree(runs_max=3)
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").tree()
