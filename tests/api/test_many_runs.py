"""The same change to many runs, how many runs there are, and many starts in few commits."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from perdure import Event, Limits, Retry, RunSelection, Workflow, receive, step, workflow
from perdure.errors import InvalidArguments, Misuse, RunFinished, RunNotFound
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

MANY = 1_000
FAILS: set[str] = set()


class Go(Event, event_name="many-runs.go"):
    """What the runs below wait for."""


@workflow(name="many-runs-waits")
async def waits() -> str:
    await receive(Go)
    return "gone"


@step(name="many-runs-fragile", retry=Retry.never())
async def fragile(name: str) -> str:
    if name in FAILS:
        raise ValueError(name)
    return name


@workflow(name="many-runs-works")
async def works(name: str) -> str:
    return await fragile(name)


WORKFLOWS: list[Workflow[Any, Any]] = [waits, works]
WAITING = RunSelection(workflow="many-runs-waits")


def environment(source: StoreSource, **options: Any) -> Environment:
    return Environment(WORKFLOWS, source, autojump_s=None, **options)


async def statuses(env: Environment) -> dict[str, str]:
    return {run.id: run.status for run in (await env.engine.runs.list(limit=1000)).runs}


async def started(env: Environment, *ids: str) -> None:
    for id in ids:
        await env.engine.start(waits(), id=id)
    await env.quiet()


# How many.


async def test_runs_are_counted_up_to_a_limit(source: StoreSource) -> None:
    async with environment(source) as env:
        runs = env.engine.runs
        assert await runs.count() == 0
        await env.engine.start_many([works(f"n-{number}") for number in range(7)], tags={"team": "a"})
        await started(env, "w-1", "w-2")
        assert await runs.count() == 9
        assert await runs.count(WAITING) == 2
        assert await runs.count(RunSelection(tags={"team": "a"}, status="succeeded")) == 7
        assert await runs.count(RunSelection(status=("succeeded", "suspended"))) == 9
        assert await runs.count(RunSelection(workflow="unknown")) == 0
        assert await runs.count(limit=4) == 4
        with pytest.raises(Misuse, match="no such status: gone"):
            await runs.count(RunSelection(status="gone"))
        with pytest.raises(Misuse, match="limit"):
            await runs.count(limit=0)


# The same change to many.


async def test_a_dry_run_says_which_and_changes_nothing(source: StoreSource) -> None:
    FAILS.clear()
    FAILS.add("bad")
    async with environment(source) as env:
        await started(env, "w-1", "w-2")
        await env.engine.handle("w-2").pause()
        await env.engine.start(works("bad"), id="bad")
        await env.quiet()
        before = {run.id: run.version for run in (await env.engine.runs.list()).runs}
        runs = env.engine.runs
        found = {
            "cancel": await runs.cancel(RunSelection(), dry_run=True),
            "pause": await runs.pause(RunSelection(), dry_run=True),
            "resume": await runs.resume(RunSelection(), dry_run=True),
            "retry": await runs.retry(RunSelection(), dry_run=True),
        }
        assert {verb: set(report.changed) for verb, report in found.items()} == {
            "cancel": {"w-1", "w-2"},
            "pause": {"w-1"},
            "resume": {"w-2"},
            "retry": {"bad"},
        }
        assert all(report.dry_run and not report.refused for report in found.values())
        await env.quiet()
        assert {run.id: run.version for run in (await env.engine.runs.list()).runs} == before


async def test_finished_runs_are_never_touched(source: StoreSource) -> None:
    FAILS.clear()
    async with environment(source) as env:
        await env.engine.run(works("done"), id="done")
        await started(env, "w-1")
        await env.engine.handle("w-1").cancel()
        before = {run.id: run.version for run in (await env.engine.runs.list()).runs}
        for verb in ("cancel", "pause", "resume", "retry"):
            for selection in (RunSelection(), RunSelection(status="succeeded")):
                report = await getattr(env.engine.runs, verb)(selection)
                assert (report.changed, report.refused) == ([], {}), verb
        assert {run.id: run.version for run in (await env.engine.runs.list()).runs} == before


async def test_a_selection_is_paused_resumed_and_cancelled(source: StoreSource) -> None:
    async with environment(source) as env:
        await env.engine.start(waits(), id="other", tags={"team": "b"})
        for number in range(5):
            await env.engine.start(waits(), id=f"w-{number}", tags={"team": "a"})
        await env.quiet()
        team = RunSelection(tags={"team": "a"})
        ids = {f"w-{number}" for number in range(5)}
        runs = env.engine.runs
        assert set((await runs.pause(team, reason="a deploy", actor="ann")).changed) == ids
        assert {run.id for run in (await runs.list(hold="paused")).runs} == ids
        assert (await env.engine.handle("w-0").audit())[-1].actor == "ann"
        again = await runs.pause(team)
        assert (again.changed, again.refused) == ([], {})
        assert set((await runs.resume(team)).changed) == ids
        assert (await runs.list(hold="paused")).runs == []
        assert set((await runs.cancel(team, reason="no more")).changed) == ids
        assert await statuses(env) == {"other": "suspended", **dict.fromkeys(ids, "cancelled")}


async def test_failed_runs_are_retried(source: StoreSource) -> None:
    FAILS.clear()
    FAILS.update({"a", "b"})
    async with environment(source) as env:
        for name in ("a", "b", "c"):
            await env.engine.start(works(name), id=name)
        await env.quiet()
        assert await statuses(env) == {"a": "failed", "b": "failed", "c": "succeeded"}
        FAILS.discard("a")
        report = await env.engine.runs.retry(RunSelection(workflow="many-runs-works"))
        assert set(report.changed) == {"a", "b"}
        await env.quiet()
        assert await statuses(env) == {"a": "succeeded", "b": "failed", "c": "succeeded"}


async def test_runs_that_end_meanwhile_are_left_as_they_are(source: StoreSource) -> None:
    async with environment(source) as env:
        ids = [f"w-{number}" for number in range(40)]
        await started(env, *ids)

        async def end() -> set[str]:
            gone: set[str] = set()
            for id in ids:
                try:
                    await env.engine.send(Go(), to=id)
                except RunFinished:
                    continue
                gone.add(id)
            return gone

        report, gone = await asyncio.gather(env.engine.runs.cancel(WAITING), end())
        await env.quiet()
        became = await statuses(env)
        cancelled = {id for id, status in became.items() if status == "cancelled"}
        assert set(report.changed) == cancelled
        assert {id for id, status in became.items() if status == "succeeded"} == set(ids) - cancelled
        assert set(report.refused) <= gone
        await env.check()


async def test_two_who_cancel_the_same_runs_cancel_each_once(source: StoreSource) -> None:
    async with environment(source) as env:
        ids = {f"w-{number}" for number in range(30)}
        await started(env, *ids)
        one, two = await asyncio.gather(env.engine.runs.cancel(WAITING), env.engine.runs.cancel(WAITING))
        assert sorted([*one.changed, *two.changed]) == sorted(ids)
        assert set(await statuses(env)) == ids


async def test_a_thousand_runs_are_cancelled_in_bounded_batches(source: StoreSource) -> None:
    async with environment(source, limits=Limits(inbox_max=100)) as env:
        await env.engine.start_many([waits() for _ in range(MANY)])
        await env.quiet()
        before = env.engine.engines.stats.commits
        report = await env.engine.runs.cancel(WAITING)
        assert len(set(report.changed)) == MANY
        assert not report.refused
        assert await env.engine.runs.count(RunSelection(status="cancelled")) == MANY
        assert env.engine.engines.stats.commits - before < MANY / 10


@pytest.mark.parametrize("verb", ["cancel", "pause"])
async def test_wherever_the_process_dies_asking_again_changes_the_others(verb: str) -> None:
    async def scenario(env: Environment) -> list[str]:
        for number in range(3):
            await env.engine.start(waits(), id=f"w-{number}")
        await getattr(env.engine.runs, verb)(WAITING)
        runs = (await env.engine.runs.list()).runs
        return sorted("paused" if run.hold is not None else run.status for run in runs)

    expected = ["cancelled" if verb == "cancel" else "paused"] * 3

    def check(found: list[str]) -> None:
        assert found == expected

    await run_with_crashes(scenario, workflows=WORKFLOWS, check=check)


# Many starts.


async def test_many_runs_are_started_in_few_commits_and_in_order(source: StoreSource) -> None:
    FAILS.clear()
    async with environment(source) as env:
        before = env.engine.engines.stats.commits
        handles = await env.engine.start_many([waits() for _ in range(MANY)], tags={"of": "many"})
        assert env.engine.engines.stats.commits - before < MANY / 10
        assert len({handle.id for handle in handles}) == MANY
        assert await env.engine.runs.count(RunSelection(tags={"of": "many"})) == MANY
        few = await env.engine.start_many(works(f"n-{number}") for number in range(5))
        assert [await handle.result() for handle in few] == [f"n-{number}" for number in range(5)]
        assert list(await env.engine.start_many([])) == []


async def test_if_one_call_is_refused_none_is_started(source: StoreSource) -> None:
    async with environment(source) as env:
        of_step = fragile("a step")
        wrong: list[Any] = [
            works("\ud800"),
            works(5),  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
            of_step,
            "many-runs-waits",
            None,
        ]
        for bad in wrong:
            with pytest.raises(Misuse):
                await env.engine.start_many([waits(), bad, waits()])
            assert await env.engine.runs.count() == 0
        with pytest.raises(InvalidArguments, match="deadline"):
            await env.engine.start_many([waits()], deadline=timedelta.max)
        of_step.close()
        assert await env.engine.runs.count() == 0


async def test_a_crash_while_many_are_started_leaves_whole_runs() -> None:
    async def scenario(env: Environment) -> int:
        if not await env.engine.runs.count():
            await env.engine.start_many([works(f"n-{number}") for number in range(5)])
        await env.quiet()
        runs = (await env.engine.runs.list()).runs
        assert {run.status for run in runs} == {"succeeded"}
        return len(runs)

    def check(found: int) -> None:
        assert found == 5

    FAILS.clear()
    await run_with_crashes(scenario, workflows=WORKFLOWS, check=check)


# A run by its handle.


async def test_a_handle_shows_its_run_and_sends_to_it(source: StoreSource) -> None:
    async with environment(source) as env:
        run = await env.engine.start(waits(), id="w-1", tags={"team": "a"})
        await env.quiet()
        view = await run.view()
        assert (view.id, view.status, view.tags) == ("w-1", "suspended", {"team": "a"})
        assert [wait.name for wait in await run.waits()] == ["many-runs.go"]
        await run.send(Go(), key="once")
        await env.quiet()
        assert await run.result() == "gone"
        assert (await run.view()).output == "gone"
        with pytest.raises(RunFinished):
            await run.send(Go())
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").send(Go())
        with pytest.raises(RunNotFound):
            await env.engine.handle("nobody").view()
