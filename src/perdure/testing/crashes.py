"""Run a scenario many times, with a crash at each of its commits. Users can test their own workflows with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from itertools import count as count_up
from typing import Any, Generic, TypeVar
from uuid import uuid4

from msgspec import Struct

from perdure.errors import Misuse
from perdure.models.cooperation.define import Operation
from perdure.models.functions.define import Workflow
from perdure.testing.environment import Environment, StoreSource
from perdure.testing.faults import CRASH_POINTS, Fault, Point
from perdure.values.arguments import checked

T = TypeVar("T")


class CrashReport(Struct, Generic[T], frozen=True, kw_only=True):
    """The result of a scenario, and the numbers of trials and crashes."""

    result: T
    commits: int  # how many commits the scenario has without faults
    trials: int
    restarts: int


@checked
async def run_with_crashes(
    scenario: Callable[[Environment], Awaitable[T]],
    *,
    workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None = None,
    store: Callable[[], StoreSource] = lambda: None,
    points: Sequence[Point] = CRASH_POINTS,
    commits_max: int = 100,
    check: Callable[[T], object] | None = None,
    after: Callable[[StoreSource], Awaitable[object]] | None = None,
    **options: Any,
) -> CrashReport[T]:
    """Run a scenario without faults. Then run it once for each of its commits and each point at which the process can
    die.

    After each crash, the engine is restarted on the same data, and the scenario begins again (see Environment.survive).
    At the end the stored data must be consistent, and the result must equal the result without faults. If you pass
    `check`, it is called with the result instead. It must raise if the result is wrong. `store` is called once for each
    trial, to get fresh data. It returns None for a store in memory, a URL, or a function that makes stores on the same
    data. If you pass `after`, it checks these data when the engine of a trial has ended. The commit of a transactional
    step counts as a commit too.

        async def scenario(env: Environment) -> str:
            run = await env.engine.start(checkout("o-17"), id="o-17")
            return await run.result()

        await run_with_crashes(scenario, workflows=[checkout])
    """
    known = list(workflows) if workflows is not None else None

    async def trial(fault: Fault) -> tuple[T, int]:
        source = store()
        async with Environment(known, source, fault=fault, **options) as env:
            result = await env.survive(scenario)
            await env.check()
        if after is not None:
            await after(source)
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


@checked
async def assert_exactly_once(
    scenario: Callable[[Environment], Awaitable[T]],
    *,
    store: Callable[[], str],
    count: Callable[[str], int | Awaitable[int]],
    times: int = 1,
    **options: Any,
) -> CrashReport[T]:
    """Assert that the writes of transactional steps exist exactly `times` times, at whatever commit the process dies.

    This works in the same way as run_with_crashes, on a real database. At each call, `store` returns the URL of fresh
    data (see `fresh_urls`). Your tables must be in these data, or the scenario must create them. After each trial
    `count` is called with that URL, and returns how often the write happened. Raises AssertionError. All other options
    are the same as for run_with_crashes.

        def transfers(url: str) -> int:
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as database:
                return database.execute("select count(*) from transfers").fetchone()[0]

        await assert_exactly_once(scenario, store=fresh_urls(f"sqlite:///{tmp_path}/bank.db"), count=transfers)
    """

    async def look(source: StoreSource) -> None:
        assert isinstance(source, str), f"the database is named by a URL, not by {source!r}"
        counted = count(source)
        found = counted if isinstance(counted, int) else await counted
        if found != times:
            raise AssertionError(f"it happened {found} times, not {times}")

    return await run_with_crashes(scenario, store=store, after=look, **options)


@checked
def fresh_urls(url: str) -> Callable[[], str]:
    """Return a function that returns the URL of an empty store at each call. This is another file, or another schema of
    a Postgres database.

    On Postgres all these stores share your own tables. Nothing is removed afterwards.
    """
    name = uuid4().hex[:12]
    numbers = count_up(1)
    scheme, _, _ = url.partition(":")
    if scheme == "sqlite":
        stem, dot, ending = url.rpartition(".")
        if not dot or "/" in ending:
            stem, ending = url, "db"
        return lambda: f"{stem}-{name}-{next(numbers)}.{ending}"
    if scheme in ("postgresql", "postgres"):
        glue = "&" if "?" in url else "?"
        return lambda: f"{url}{glue}schema=test_{name}_{next(numbers)}"
    raise Misuse("transactional steps need a store on SQLite (sqlite:///…) or Postgres (postgresql://…)")


__all__ = ["CrashReport", "assert_exactly_once", "fresh_urls", "run_with_crashes"]
