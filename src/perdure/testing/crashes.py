"""A scenario, killed at every commit in turn: what users run over their own workflows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Generic, TypeVar

from msgspec import Struct

from perdure.models.functions.define import Workflow
from perdure.testing.environment import Environment, StoreSource
from perdure.testing.faults import CRASH_POINTS, Fault, Point

T = TypeVar("T")


class CrashReport(Struct, Generic[T], frozen=True, kw_only=True):
    """What came out of a scenario, whatever was done to it."""

    result: T
    commits: int  # of the scenario when nothing goes wrong
    trials: int
    restarts: int


async def run_with_crashes(
    scenario: Callable[[Environment], Awaitable[T]],
    *,
    workflows: Iterable[Workflow[Any, Any]] | None = None,
    store: Callable[[], StoreSource] = lambda: None,
    points: Sequence[Point] = CRASH_POINTS,
    commits_max: int = 100,
    check: Callable[[T], object] | None = None,
    **options: Any,
) -> CrashReport[T]:
    """Run a scenario in peace, then once for each of its commits and each point at which the process can die there.

    After each death the engine is restarted on the same data and the scenario begins anew (see Environment.survive). At
    the end what is stored must be sound and the result must be the one of the run in peace; `check`, if given, looks at
    the result instead, and raises if it is wrong. `store` is called once per trial for fresh data: None for a store in
    memory, a URL, or a function that makes stores on the same data.

        async def scenario(env: Environment) -> str:
            run = await env.engine.start(checkout("o-17"), id="o-17")
            return await run.result()

        await run_with_crashes(scenario, workflows=[checkout])
    """
    known = list(workflows) if workflows is not None else None

    async def trial(fault: Fault) -> tuple[T, int]:
        async with Environment(known, store(), fault=fault, **options) as env:
            result = await env.survive(scenario)
            await env.check()
            return result, env.restarts

    peace = Fault("busy", times=0)
    expected, _ = await trial(peace)
    if check is not None:
        check(expected)
    trials = restarts = 0
    for commit in range(1, min(peace.commits, commits_max) + 1):
        for point in points:
            try:
                result, deaths = await trial(Fault(point, commit))
                if check is not None:
                    check(result)
                elif result != expected:
                    raise AssertionError(f"the result is {result!r} instead of {expected!r}")
            except Exception as error:
                error.add_note(f"with a fault {point!r} at commit {commit} of {peace.commits}")
                raise
            trials += 1
            restarts += deaths
    return CrashReport(result=expected, commits=peace.commits, trials=trials, restarts=restarts)


__all__ = ["CrashReport", "run_with_crashes"]
