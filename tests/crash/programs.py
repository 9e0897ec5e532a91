"""Concurrent workflow programs as data, and the one workflow that interprets them.

A program is a tree of nodes, plain JSON, so that it is its run's own input and any process can replay it. What it does
depends on nothing but virtual time, and no two things in it happen at the same instant:

- A step takes until an absolute time, which the workflow computes when it asks for it: a step that is run again after a
  crash ends when it would have ended without one (at once, if that is past).
- Every node has a number n and adds 4**n microseconds to what it takes, at most three times. The time of an event is a
  sum over the nodes that led to it, so different events have different times: their numbers' digits differ.

So the order of completions is the program's own and a run that was interrupted must come to the very same journal. Only
what ends in the same turn of an idle loop is ordered by the engine instead ("burst"): by the order it was asked for.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from perdure import Retry, current_run, current_step, resource, sleep, step, workflow
from perdure.engine import Engine
from perdure.errors import RunFailed
from perdure.kernel.failures import Failure
from perdure.testing import Environment, VirtualClock
from tests.crash.ledger import Ledger, step_started

RUN_ID = "program"
NODES_MAX = 15

Node = dict[str, Any]


class Broken(Exception):
    """What a failing step raises."""


@step(retry=Retry.never())
async def act(number: int, until: datetime, fails: bool) -> int:
    step_started()
    await resource(VirtualClock).sleep_until(until)
    if fails:
        raise Broken(number)
    return number


@step(retry=Retry.never())
async def act_at_once(number: int, index: int) -> int:
    step_started()
    return 100 * number + index


@step
async def act_in_attempt(number: int, attempt: int) -> int:
    step_started()
    if current_step().attempt < attempt:
        raise Broken(number)
    return number


@step(retry=Retry.never())
async def never_end(number: int) -> int:
    step_started()
    await resource(VirtualClock).sleep_until(datetime(9000, 1, 1, tzinfo=UTC))
    return number


@workflow
async def interpret(program: Node) -> Any:
    return await perform(program)


def took(node: Node) -> timedelta:
    return timedelta(hours=node["hours"], microseconds=4 ** node["n"])


async def perform(node: Node) -> Any:
    match node["op"]:
        case "step":
            return await act(node["n"], current_run().now() + took(node), node["fails"])
        case "burst":
            return await asyncio.gather(*[act_at_once(node["n"], index) for index in range(node["width"])])
        case "retry":
            retry = Retry(attempts=3, initial=took(node), maximum=timedelta(days=1), multiplier=1, jitter=0)
            return await act_in_attempt.options(retry=retry)(node["n"], node["attempt"])
        case "expire":
            return await never_end.options(total_timeout=took(node))(node["n"])
        case "sleep":
            await sleep(took(node))
            return "slept"
        case "wait for":
            try:
                return await asyncio.wait_for(perform(node["parts"][0]), took(node).total_seconds())
            except TimeoutError:
                return "timed out"
        case "try":
            try:
                return await perform(node["parts"][0])
            except* Exception as group:  # noqa: BLE001 - whatever the program raised
                caught = sorted(type(error).__name__ for error in group.exceptions)
            return ["caught", caught]
        case _:
            return await perform_together(node["op"], [perform(part) for part in node["parts"]])


async def perform_together(op: str, parts: list[Any]) -> Any:
    match op:
        case "sequence":
            try:
                return [await part for part in parts]
            finally:
                for part in parts:
                    part.close()
        case "gather":
            return await asyncio.gather(*parts)
        case "gather all":
            results = await asyncio.gather(*parts, return_exceptions=True)
            return [repr(one) if isinstance(one, BaseException) else one for one in results]
        case "group":
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(part) for part in parts]
            return [task.result() for task in tasks]
        case "first":
            tasks = [asyncio.create_task(part) for part in parts]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
            return [repr(task.exception()) if task.exception() else task.result() for task in done]
        case "as completed":
            return [await one for one in asyncio.as_completed(parts)]
        case _:
            raise AssertionError(op)


# ---------------------------------------------------------------------------------------------------------------------
# What a run came to


class Trace(msgspec.Struct, frozen=True):
    """All that must be the same: the outcome, and the journal without what a second start of a step changes.

    That is the time of its start, and the stack of its exception, which ends where the body was entered from.
    """

    outcome: Any
    journal: list[Any]


async def trace(engine: Engine) -> Trace:
    """Wait for the program's run to end, and read what it did."""
    try:
        outcome: Any = ["succeeded", await engine.handle(RUN_ID).result()]
    except RunFailed as failed:
        outcome = ["failed", plain(failed.failure)]
    _, entries = await engine.session.store.journal(RUN_ID)
    journal: list[Any] = []
    for entry in entries:
        failure = None if entry.failure is None else plain(msgspec.json.decode(entry.failure, type=Failure))
        journal.append(
            [entry.seq, entry.position, entry.kind, entry.name, entry.value, failure, entry.attempts, entry.at]
        )
    return Trace(outcome, journal)


def plain(failure: Failure) -> Any:
    """A failure without stacks, in it or in those it came from."""
    found = msgspec.to_builtins(failure)
    inner: Any = found
    while inner is not None:
        inner.pop("stack", None)
        inner = inner.get("cause")
    return found


async def execute(env: Environment, program: Node) -> Trace:
    """The scenario: may be begun again after a crash."""
    await env.engine.start(interpret(program), id=RUN_ID)
    return await trace(env.engine)


def environment(ledger: Ledger, **options: Any) -> Environment:
    return Environment([interpret], watch=ledger.watch, resources={Ledger: lambda: ledger}, **options)
