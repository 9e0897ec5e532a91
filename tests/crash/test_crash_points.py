"""The process dies around the commit of every kind of op; then it is restarted, and all must be as if nothing had been.

A scenario is a program that may be started again: after each death it begins anew, on a new engine with the same data.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from perdure import Limits, Retry, Workflow, current_step, resource, sleep, step, workflow
from perdure.errors import CommitRefused, DeadlineExceeded, RunCancelled, RunFailed, RunFinished
from perdure.kernel import ops
from perdure.kernel.batch import Batch
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import CRASH_POINTS, Environment, Fault, Point, VirtualClock, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger, step_started

DAY = timedelta(days=1)


class Lives:
    """How often a step's body began, and who wants to know."""

    def __init__(self) -> None:
        self.count = 0
        self.begun = asyncio.Event()
        self.is_mended = False


@step(retry=Retry.never())
async def work(name: str) -> str:
    step_started()
    return name.upper()


@step(retry=Retry.never())
async def hang_once() -> str:
    """Its process dies in its first life."""
    step_started()
    lives = resource(Lives)
    lives.count += 1
    lives.begun.set()
    if lives.count == 1:
        await asyncio.Event().wait()
    return "done in another life"


@step(retry=Retry(attempts=3, initial=timedelta(hours=1), multiplier=2, jitter=0))
async def shaky() -> str:
    step_started()
    if (attempt := current_step().attempt) < 3:
        raise OSError(f"not in attempt {attempt}")
    return f"in attempt {attempt}"


@step(retry=Retry.never())
async def fail_until_mended() -> str:
    step_started()
    if not resource(Lives).is_mended:
        raise ValueError("not mended yet")
    return " mended"


@workflow
async def two_steps() -> str:
    return await work("a") + await work("b")


@workflow
async def sleeper() -> str:
    before = await work("a")
    await sleep(30 * DAY)
    return before + await work("b")


@workflow
async def backing_off() -> str:
    return await shaky()


@workflow
async def orphan() -> str:
    return await work("a") + await hang_once()


@workflow
async def failing_at_first() -> str:
    return await work("a") + await fail_until_mended()


@workflow
async def many_steps() -> int:
    return len([await work(str(number)) for number in range(12)])


@step(retry=Retry.never())
async def kill_its_process() -> None:
    step_started()
    resource(Lives).begun.set()
    await asyncio.Event().wait()


@workflow
async def killer() -> None:
    await kill_its_process()


WORKFLOWS: list[Workflow[Any, Any]] = [two_steps, sleeper, backing_off, orphan, failing_at_first, many_steps, killer]


async def finishes(env: Environment) -> Any:
    return await (await env.engine.start(two_steps(), id="r")).result()


async def sleeps(env: Environment) -> Any:
    return await (await env.engine.start(sleeper(), id="r")).result()


async def backs_off(env: Environment) -> Any:
    result = await (await env.engine.start(backing_off(), id="r")).result()
    (entry,) = (await env.engine.handle("r").history()).journal
    return result, entry.attempts


async def is_orphaned(env: Environment) -> Any:
    run = await env.engine.start(orphan(), id="r")
    lives = env.engine.runtime.resources.get(Lives)
    if lives.count == 0:
        await lives.begun.wait()
        await env.restart()
        run = env.engine.handle("r")
    return await run.result()


async def is_released(env: Environment) -> Any:
    run = await env.engine.start(sleeper(), id="r")
    await env.quiet()
    coordinator = env.engine.session.coordinator
    if (mine := coordinator.loaded("r")) is not None:
        await coordinator.submit(ops.Release(run_id="r", at=env.clock.now(), claim=mine.claim))
        assert coordinator.loaded("r") is None
    await env.engine.recover()
    return await run.result()


async def is_cancelled(env: Environment) -> Any:
    run = await env.engine.start(sleeper(), id="r")
    await env.engine.handle("r").cancel(reason="no longer wanted")
    with pytest.raises(RunCancelled, match="no longer wanted"):
        await run.result()
    return await run.status()


async def expires(env: Environment) -> Any:
    run = await env.engine.start(sleeper(), id="r", deadline=DAY)
    with pytest.raises(RunFailed) as failed:
        await run.result()
    return type(failed.value.__cause__), await run.status()


async def is_retried(env: Environment) -> Any:
    if await env.engine.runs.get("r") is None:
        env.engine.runtime.resources.get(Lives).is_mended = False
    run = await env.engine.start(failing_at_first(), id="r")
    try:
        return await run.result()
    except RunFailed:
        env.engine.runtime.resources.get(Lives).is_mended = True
        return await (await env.engine.handle("r").retry()).result()


async def is_updated(env: Environment) -> Any:
    run = await env.engine.start(sleeper(), id="r", tags={"colour": "red"})
    await env.engine.handle("r").update(tags={"colour": "blue"})
    await run.result()
    view = await env.engine.runs.get("r")
    assert view is not None
    return view.tags


async def is_paused(env: Environment) -> Any:
    run = await env.engine.start(sleeper(), id="r")
    await env.quiet()
    with suppress(RunFinished):  # Another life of this program came further.
        await env.engine.handle("r").pause(reason="let us see")
    await env.engine.handle("r").resume()
    return await run.result()


class Case(Struct, frozen=True):
    scenario: Callable[[Environment], Awaitable[Any]]
    is_its_commit: Callable[[Batch], bool]
    result: Any


def audits(became: str, cause: str | None = None) -> Callable[[Batch], bool]:
    return lambda batch: any(row.became == became and cause in (None, row.cause) for row in batch.audit)


CASES = {
    "Start": Case(finishes, lambda batch: any(w.expected_version is None for w in batch.runs.values()), "AB"),
    "Advance with a step's result": Case(finishes, lambda b: any(e.kind == "step" for e in b.journal), "AB"),
    "Advance to the end": Case(finishes, audits("succeeded"), "AB"),
    "Advance with a timer": Case(sleeps, lambda batch: any(e.kind == "timer" for e in batch.journal), "AB"),
    "suspend": Case(sleeps, audits("suspended"), "AB"),
    "durable backoff": Case(
        backs_off, lambda batch: any(w.kind == "retry" for w in batch.waits.values()), ("in attempt 3", 3)
    ),
    "backoff over": Case(backs_off, audits("running", "retry due"), ("in attempt 3", 3)),
    "Take": Case(
        is_orphaned, lambda batch: any(w.run.recoveries for w in batch.runs.values()), "Adone in another life"
    ),
    "Release": Case(
        is_released,
        lambda batch: any(w.run.owner is None and w.run.status == "suspended" for w in batch.runs.values()),
        "AB",
    ),
    "Cancel": Case(is_cancelled, audits("cancelled"), "cancelled"),
    "Expire": Case(expires, audits("failed", "deadline passed"), (DeadlineExceeded, "failed")),
    "Retry": Case(is_retried, audits("running", "retried"), "A mended"),
    "Update": Case(is_updated, audits("updated"), {"colour": "blue"}),
    "SetHold": Case(is_paused, audits("paused"), "AB"),
    "Resume": Case(is_paused, audits("resumed"), "AB"),
}


@pytest.mark.parametrize("point", CRASH_POINTS)
@pytest.mark.parametrize("name", CASES)
async def test_a_crash_around_a_commit_changes_nothing(name: str, point: Point, source: StoreSource) -> None:
    await survive(CASES[name], point, source)


@pytest.mark.parametrize("point", ["before_effects", "unknown"])
@pytest.mark.parametrize("name", CASES)
async def test_nor_does_it_in_postgres(name: str, point: Point, empty_schema: Callable[[], str]) -> None:
    await survive(CASES[name], point, empty_schema())


async def survive(case: Case, point: Point, source: StoreSource) -> None:
    ledger, lives = Ledger(), Lives()
    fault = Fault(point, when=case.is_its_commit)
    resources = {Ledger: lambda: ledger, Lives: lambda: lives}
    async with Environment(WORKFLOWS, source, fault=fault, watch=ledger.watch, resources=resources) as env:
        result = await env.survive(case.scenario)

        assert fault.struck == 1
        assert result == case.result
        assert ledger.violations == []
        assert await env.check() == 1
        history = await env.engine.handle("r").history()
        assert len({entry.position for entry in history.journal}) == len(history.journal)


@pytest.mark.parametrize("scenario", [finishes, sleeps, backs_off, is_cancelled, is_retried, is_paused])
async def test_a_scenario_survives_a_crash_at_each_of_its_commits(
    scenario: Callable[[Environment], Awaitable[Any]], tmp_path: Path
) -> None:
    ledger, lives = Ledger(), Lives()
    report = await run_with_crashes(
        scenario, workflows=WORKFLOWS, resources={Ledger: lambda: ledger, Lives: lambda: lives}
    )
    assert report.commits >= 2
    assert report.trials == report.commits * len(CRASH_POINTS)
    assert report.restarts == report.commits * 3


async def test_a_run_that_gets_on_is_never_taken_for_one_that_kills_its_process(source: StoreSource) -> None:
    """Each engine lives for two commits: one to take the run up, and one in which the run gets on."""
    ledger = Ledger()
    resources = {Ledger: lambda: ledger}

    async def scenario(env: Environment) -> int:
        env.fault = Fault("before_effects", 2)  # for the next life
        return await (await env.engine.start(many_steps(), id="r")).result()

    first = Fault("before_effects", 2)
    async with Environment(WORKFLOWS, source, fault=first, watch=ledger.watch, resources=resources) as env:
        assert await env.survive(scenario) == 12
        assert env.restarts > 10
        assert ledger.violations == []
        await env.check()


async def test_a_run_that_kills_its_process_is_held_and_the_others_go_on(source: StoreSource) -> None:
    ledger, lives = Ledger(), Lives()
    resources = {Ledger: lambda: ledger, Lives: lambda: lives}
    async with Environment(WORKFLOWS, source, resources=resources, limits=Limits(recoveries_max=3)) as env:
        await env.engine.start(killer(), id="killer")
        await env.engine.start(sleeper(), id="innocent")
        for _ in range(4):
            await lives.begun.wait()
            lives.begun.clear()
            await env.restart()
        view = await env.engine.runs.get("killer")
        assert view is not None
        assert view.hold is not None
        assert view.hold.kind == "poison"
        assert not lives.begun.is_set()
        assert await env.engine.handle("innocent").result() == "AB"
        await env.check()


async def test_a_run_whose_row_somebody_changed_goes_on_from_what_is_stored() -> None:
    """Only its owner should; but if so, what ran ahead is dropped, and no step runs after its entry was committed."""
    database, ledger = MemoryDatabase(), Ledger()
    resources = {Ledger: lambda: ledger}
    source = partial(MemoryStore, database)
    async with Environment(WORKFLOWS, source, watch=ledger.watch, resources=resources) as env:
        run = await env.engine.start(sleeper(), id="r")
        await env.quiet()
        stored = database.runs["r"]
        changed = replace(stored.run, tags={"by": "hand"}, version=stored.run.version + 1, revision=99)
        database.runs["r"] = replace(stored, run=changed)
        assert await run.result() == "AB"
        assert ledger.violations == []
        assert [entry.seq for entry in (await env.engine.handle("r").history()).journal] == [1, 2, 3]


# ---------------------------------------------------------------------------------------------------------------------
# One bad op fails alone


@step(retry=Retry.never())
async def at_once(number: int) -> int:
    """All of them end in the same turn of the loop."""
    step_started()
    await resource(VirtualClock).sleep(1)
    return number


@workflow
async def numbered(number: int) -> int:
    return 10 * await at_once(number)


async def test_one_start_that_the_store_refuses_leaves_499_others_of_its_batch_unaffected(source: StoreSource) -> None:
    ledger = Ledger()
    fault = Fault("refuse", when=lambda batch: "run-250" in batch.runs)
    resources = {Ledger: lambda: ledger}
    async with Environment([numbered], source, fault=fault, watch=ledger.watch, resources=resources) as env:

        async def run(number: int) -> int:
            return await (await env.engine.start(numbered(number), id=f"run-{number}")).result()

        results = await asyncio.gather(*[run(number) for number in range(500)], return_exceptions=True)

        refused = results.pop(250)
        assert isinstance(refused, CommitRefused)
        assert results == [10 * number for number in range(500) if number != 250]
        assert await env.engine.runs.get("run-250") is None
        assert len(ledger.starts) == len(set(ledger.starts)) == 499
        assert await env.check() == 499


async def test_one_step_result_that_the_store_refuses_leaves_499_others_of_its_batch_unaffected(
    source: StoreSource,
) -> None:
    ledger = Ledger()
    fault = Fault("refuse", when=lambda batch: any(entry.run_id == "run-250" for entry in batch.journal))
    resources = {Ledger: lambda: ledger}
    async with Environment([numbered], source, fault=fault, watch=ledger.watch, resources=resources) as env:
        runs = [await env.engine.start(numbered(number), id=f"run-{number}") for number in range(500)]

        assert await asyncio.gather(*[run.result() for run in runs if run.id != "run-250"]) == [
            10 * number for number in range(500) if number != 250
        ]
        await env.quiet()
        bad = await env.engine.runs.get("run-250")
        assert bad is not None
        assert bad.status == "running"
        assert bad.hold is not None
        assert bad.hold.kind == "blocked"
        assert "the store refused" in bad.hold.reason
        assert len(ledger.starts) == len(set(ledger.starts)) == 500
        assert await env.check() == 500

        fault.when = lambda _: False
        await env.engine.handle("run-250").resume()
        assert await runs[250].result() == 2500
