"""What simulated engines do: workflows that interpret plans, whose results their plans determine.

A plan is a list of tasks, plain JSON: ["work", n, failures, seconds], ["nap", seconds], ["hear"], ["hear_in_time",
seconds], ["take", lane], ["meet", lane], ["news"], ["child", workflow, plan], ["started", workflow, plan], ["await",
run id], ["both", plan, plan].
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from perdure import (
    ChildHandle,
    Event,
    Retry,
    RunCall,
    TimeReached,
    current_step,
    first,
    receive,
    resource,
    run_of,
    sleep,
    start,
    step,
    timer,
    workflow,
)

__all__ = [
    "WORKFLOWS",
    "Failing",
    "Job",
    "Ledger",
    "News",
    "Plan",
    "Task",
    "Told",
    "baker",
    "clerk",
    "matches",
    "outcome",
]

Task = list[Any]
Plan = list[Task]

ANY = {"any": True}  # in an expected result: whatever it is


class Told(Event, event_name="simulate.told"):
    """Sent to one run."""

    number: int


class Job(Event, event_name="simulate.job"):
    """For whoever takes it, in its lane."""

    number: int
    lane: int


class News(Event, event_name="simulate.news", consume_on_read=False, delivery="all"):
    """For everybody, once."""

    number: int


class Failing(Exception):
    """What a flaky step raises."""


class Ledger:
    """Is told of every attempt of a step when it starts."""

    def __init__(self, started: Callable[[str, str, int], None]) -> None:
        self.started = started


def _start() -> int:
    this = current_step()
    resource(Ledger).started(this.run_id, this.position, this.attempt)
    return this.attempt


@step(retry=Retry(attempts=4, jitter=0))
async def work(number: int, failures: int, seconds: float) -> int:
    attempt = _start()
    await asyncio.sleep(seconds)
    if attempt <= failures:
        raise Failing(number)
    return number * number


async def _do(task: Task) -> Any:
    match task:
        case ["work", number, failures, seconds]:
            return await work(number, failures, seconds)
        case ["nap", seconds]:
            await sleep(seconds)
            return "rested"
        case ["hear"]:
            return (await receive(Told)).number
        case ["hear_in_time", seconds]:
            told = await first(Told, timer(timedelta(seconds=seconds)))
            return (await receive(Told)).number if isinstance(told, TimeReached) else told.number
        case ["take", lane]:
            return (await receive(Job, where={"lane": lane})).number
        case ["meet", lane]:
            word, job = await asyncio.gather(receive(Told), receive(Job, where={"lane": lane}))
            return [word.number, job.number]
        case ["news"]:
            return (await receive(News)).number
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
        case _:
            raise Failing(task)


async def _do_all(plan: Plan) -> list[Any]:
    return [await _do(task) for task in plan]


@workflow(name="simulate.clerk")
async def clerk(plan: list[Any]) -> list[Any]:
    return await _do_all(plan)


@workflow(name="simulate.baker")
async def baker(plan: list[Any]) -> list[Any]:
    return await _do_all(plan)


WORKFLOWS = {"clerk": clerk, "baker": baker}


def _call(kind: str, plan: Plan) -> RunCall[list[Any]]:
    return WORKFLOWS[kind](plan)


# ---------------------------------------------------------------------------------------------------------------------
# What must come of it


def outcome(plan: Plan) -> list[Any]:
    """What a run of this plan must return, where that is determined."""
    heard = iter(range(len(plan)))
    return [_outcome(task, heard) for task in plan]


def _outcome(task: Task, heard: Any) -> Any:
    match task:
        case ["work", number, _, _]:
            return number * number
        case ["nap", _]:
            return "rested"
        case ["hear"] | ["hear_in_time", _]:
            return next(heard)
        case ["meet", _]:
            return [next(heard), ANY]
        case ["child" | "started", _, plan]:
            return outcome(plan)
        case ["both", one, other]:
            return [outcome(one), outcome(other)]
        case _:
            return ANY


def matches(expected: Any, found: Any) -> bool:
    """Whether a result is as expected."""
    if expected is ANY:
        return True
    if isinstance(expected, list):
        return (
            isinstance(found, list)
            and len(found) == len(expected)
            and all(matches(one, other) for one, other in zip(expected, found, strict=True))
        )
    return bool(expected == found)
