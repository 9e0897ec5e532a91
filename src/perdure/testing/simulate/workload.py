"""The workflows of simulated engines. They carry out plans. A plan determines its result.

A plan is a list of tasks in plain JSON: ["work", n, failures, seconds], ["nap", seconds], ["hear"], ["hear_in_time",
seconds], ["take", lane], ["meet", lane], ["notice"], ["child", workflow, plan], ["started", workflow, plan], ["await",
run id], ["both", plan, plan], ["say", label, items], ["ask", number], ["toil", n, failures], ["fragile", n, failures].
A plan may begin with ["continue_anew", times].
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from perdure import (
    ChildHandle,
    Event,
    Retry,
    RunCall,
    TimeReached,
    Workflow,
    compensate,
    continue_as,
    current_step,
    first,
    receive,
    resource,
    run_of,
    sleep,
    start,
    step,
    stream,
    timer,
    workflow,
)
from perdure import task as assigned

__all__ = [
    "ANY",
    "DESK",
    "GRAPHS",
    "LOG",
    "WORKFLOWS",
    "Failing",
    "Job",
    "Ledger",
    "Letter",
    "Notice",
    "Plan",
    "Task",
    "Word",
    "baker",
    "clerk",
    "matches",
    "outcome",
    "started",
    "traveller",
    "undo",
    "work",
]

Task = list[Any]
Plan = list[Task]

ANY = {"any": True}  # in an expected result, this means any value
LOG = "log"  # the stream to which plans append
DESK = "desk"  # the queue of the tasks that plans open
GRAPHS: dict[str, Workflow[..., Any]] = {}  # see graphs.py


class Word(Event, event_name="simulate.word"):
    """Sent to one run."""

    number: int


class Job(Event, event_name="simulate.job"):
    """Sent to the first run that takes it in its lane."""

    number: int
    lane: int


class Notice(Event, event_name="simulate.notice", consume_on_read=False, delivery="all"):
    """Sent once to every waiting run."""

    number: int


class Letter(Event, event_name="simulate.letter", on_target_terminated="dead_letter"):
    """Sent to one run, which never reads it."""

    number: int


class Failing(Exception):
    """The error that a flaky step raises."""


class Ledger:
    """Records every attempt of a step. `started` is called when the body of a step begins, with the run, the position
    and the number of the attempt. It returns a function that is called when the body ends."""

    def __init__(self, started: Callable[[str, str, int], Callable[[], object]] = lambda *_: lambda: None) -> None:
        self.started = started
        self._fragile: Counter[str] = Counter()

    def count(self, run_id: str) -> int:
        """Count a call of a fragile step of this run, and return which one it is."""
        self._fragile[run_id] += 1
        return self._fragile[run_id]


@contextmanager
def started() -> Generator[int]:
    """Record that a step has started, and that it has ended; return the number of its attempt."""
    this = current_step()
    ended = resource(Ledger).started(this.run_id, this.position, this.attempt)
    try:
        yield this.attempt
    finally:
        ended()


@step(retry=Retry(attempts=4, jitter=0))
async def work(number: int, failures: int, seconds: float) -> int:
    with started() as attempt:
        await asyncio.sleep(seconds)
        if attempt <= failures:
            raise Failing(number)
        return number * number


@step(retry=Retry(attempts=4, jitter=0))
async def undo(number: int, failures: int) -> int:
    with started() as attempt:
        if attempt <= failures:
            raise Failing(number)
        return number


@step(retry=Retry(attempts=4, initial=1.5, jitter=0))
async def toil(number: int, failures: int) -> int:
    """Fail a few times. The pauses between attempts are so long that they are stored."""
    with started() as attempt:
        if attempt <= failures:
            raise Failing(number)
        return number * number


@step(retry=Retry.never())
async def fragile(number: int, failures: int) -> int:
    """Fail when it is called for the first few times, however often the run was retried since then."""
    with started():
        if resource(Ledger).count(current_step().run_id) <= failures:
            raise Failing(number)
        return number * number


async def _do(task: Task) -> Any:
    match task:
        case ["work", number, failures, seconds]:
            return await work(number, failures, seconds)
        case ["toil", number, failures]:
            return await toil(number, failures)
        case ["fragile", number, failures]:
            return await fragile(number, failures)
        case ["nap", seconds]:
            await sleep(seconds)
            return "rested"
        case ["hear"]:
            return (await receive(Word)).number
        case ["hear_in_time", seconds]:
            found = await first(Word, timer(timedelta(seconds=seconds)))
            return (await receive(Word)).number if isinstance(found, TimeReached) else found.number
        case ["take", lane]:
            return (await receive(Job, where={"lane": lane})).number
        case ["meet", lane]:
            word, job = await asyncio.gather(receive(Word), receive(Job, where={"lane": lane}))
            return [word.number, job.number]
        case ["notice"]:
            return (await receive(Notice)).number
        case ["child", kind, plan]:
            return await _call(kind, plan)
        case ["started", kind, plan]:
            child: ChildHandle[Any] = await start(_call(kind, plan))
            return await child.result()
        case ["await", run_id]:
            ended = await first(run_of(run_id))
            return ended.status
        case ["both", one, other]:
            return list(await asyncio.gather(_do_all(one), _do_all(other)))
        case ["say", label, items]:
            for number in range(items):
                await stream(LOG).append([label, number])
                if number % 2:
                    await sleep(0.1)
            return "said"
        case ["ask", number]:
            return await assigned(queue=DESK, payload=number)
        case ["continue_anew", _]:
            return "hopped"
        case _:
            raise Failing(task)


async def _do_all(plan: Plan) -> list[Any]:
    return [await _do(task) for task in plan]


async def _hop(this: Workflow[[list[Any]], Any], plan: Plan) -> None:
    """Continue as another call, as often as the plan says. After that, the other tasks of the plan are done."""
    if plan and plan[0][0] == "continue_anew" and plan[0][1]:
        await work(plan[0][1], 0, 0.1)
        await continue_as(this([["continue_anew", plan[0][1] - 1], *plan[1:]]))


@workflow(name="simulate.clerk")
async def clerk(plan: list[Any]) -> list[Any]:
    await _hop(clerk, plan)
    return await _do_all(plan)


@workflow(name="simulate.baker")
async def baker(plan: list[Any]) -> list[Any]:
    await _hop(baker, plan)
    return await _do_all(plan)


@workflow(name="simulate.traveller")
async def traveller(stations: list[Any], end: str) -> str:
    """Visit one station after the other. At the end, undo everything, unless the journey succeeds."""
    for number, failures, seconds in stations:
        await work(number, 0, seconds)
        await compensate(undo(number, failures))
    if end == "fails":
        raise Failing("on purpose")
    if end == "waits":
        await sleep(100_000)
    return "arrived"


WORKFLOWS = {"clerk": clerk, "baker": baker}


def _call(kind: str, plan: Plan) -> RunCall[list[Any]]:
    return WORKFLOWS[kind](plan)


# ---------------------------------------------------------------------------------------------------------------------
# The expected result


def outcome(plan: Plan) -> list[Any]:
    """Return the result that a run of this plan must have. Parts that the plan does not determine may be anything."""
    numbers = iter(range(len(plan)))
    return [_outcome(task, numbers) for task in plan]


def _outcome(task: Task, numbers: Any) -> Any:
    match task:
        case ["work", number, _, _] | ["toil" | "fragile", number, _]:
            return number * number
        case ["nap", _]:
            return "rested"
        case ["hear"] | ["hear_in_time", _]:
            return next(numbers)
        case ["meet", _]:
            return [next(numbers), ANY]
        case ["child" | "started", _, plan]:
            return outcome(plan)
        case ["say", _, _]:
            return "said"
        case ["ask", number]:
            return 2 * number
        case ["continue_anew", _]:
            return "hopped"
        case ["both", one, other]:
            return [outcome(one), outcome(other)]
        case _:
            return ANY


def matches(expected: Any, found: Any) -> bool:
    """Return whether a result is as expected."""
    if expected is ANY:
        return True
    if callable(expected):
        return bool(expected(found))
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(matches(one, other) for one, other in zip(expected, found, strict=True))
        )
    return bool(expected == found)
