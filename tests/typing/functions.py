"""Durable functions: calls keep the parameters and results of what they call, and a step is not a run."""

import asyncio
from datetime import timedelta
from typing import Any, assert_type

from perdure import (
    Engine,
    Retry,
    StreamItemView,
    current_run,
    current_step,
    publish,
    resource,
    step,
    stream,
    workflow,
)


class Pool:
    size: int


@step(retry=Retry(attempts=5), timeout=timedelta(seconds=10))
async def reserve(order: str) -> str:
    assert_type(resource(Pool), Pool)
    assert_type(current_step().attempt, int)
    return f"{order}: {current_step().idempotency_key}"


@step(process=True, heartbeat_timeout=30)
def crunch(numbers: list[int]) -> int:
    current_step().heartbeat({"done": len(numbers)})
    return sum(numbers)


@step
def count(order: str, *, at_least: int = 0) -> int:
    return max(len(order), at_least)


@workflow
async def ship(order: str) -> int:
    return len(order)


@workflow
async def checkout(order: str) -> str:
    assert_type(current_run().id, str)

    assert_type(await reserve(order), str)
    assert_type(await count(order, at_least=2), int)
    assert_type(await ship(order), int)
    assert_type(await crunch([1, 2]), int)
    assert_type(await asyncio.gather(reserve(order), count(order)), tuple[str, int])
    async with asyncio.TaskGroup() as group:
        task = group.create_task(reserve(order))
    assert_type(await task, str)

    await reserve(17)  # E: incompatible type "int"; expected "str"
    await reserve()  # E: Missing positional argument "order"
    await reserve(order, order)  # E: Too many arguments
    await count(order, at_most=2)  # E: Unexpected keyword argument "at_most"
    number: int = await reserve(order)  # E: Incompatible types in assignment

    return await reserve(order)


@workflow
async def options(order: str) -> None:
    patient = reserve.options(timeout=timedelta(minutes=5))
    assert_type(await patient(order), str)
    await patient(17)  # E: incompatible type "int"; expected "str"
    assert_type(await count.options(process=True)(order), int)
    await crunch.options(heartbeat_timeout=5)("12")  # E: incompatible type "str"; expected "list[int]"
    count.options(process="yes")  # E: incompatible type "str"; expected "bool | None"
    reserve.options(no_such_option=1)  # E: Unexpected keyword argument "no_such_option"


@step
def speak(order: str) -> None:
    current_step().append("log", order)
    current_step().append(1, order)  # E: incompatible type "int"; expected "str"


@workflow
async def say(order: str) -> None:
    await publish("progress", 0.5)
    await stream("log").append(order)
    await publish(1, 0.5)  # E: incompatible type "int"; expected "str"
    await stream(1).append(order)  # E: incompatible type "int"; expected "str"


async def read(engine: Engine) -> None:
    run = engine.handle("o-17")
    assert_type(await run.published(), dict[str, Any])
    async for item in run.stream("log", after=3):
        assert_type(item, StreamItemView)
        assert_type(item.offset, int)
    run.stream()  # E: Missing positional argument "name"
    run.stream("log", after="3")  # E: incompatible type "str"; expected "int"


async def outside(engine: Engine) -> None:
    run = await engine.start(checkout("o-17"), id="o-17", tags={"tenant": "acme"})
    assert_type(run.id, str)
    assert_type(await run.result(), str)
    assert_type(await engine.run(ship("o-17")), int)

    await engine.start(reserve("o-17"))  # E: "StepCall[str]"
    await engine.start(checkout(17))  # E: incompatible type "int"; expected "str"
    await engine.start(checkout)  # E: matches argument type
    number: int = await run.result()  # E: Incompatible types in assignment


Retry(attempts="3")  # E: incompatible type "str"; expected "int"
