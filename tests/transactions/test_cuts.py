"""The way to the server is cut at every message of a transactional step, in every model: no attempt, no rollback, no
error that a caller sees, and what is written is written once."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import urlsplit

import pytest

from perdure import Engine, Limits, Retry, current_step, step, workflow
from perdure.cooperation import Failure, Operation, Scope, Topic
from perdure.errors import StoreBusy
from perdure.graph import Graph
from tests.storage.postgres.proxy import Moment, proxy_to
from tests.transactions.notes import PostgresWorld

NUMBERS = Topic("numbers", int)
MESSAGES_MAX = 60  # more than a step's transaction takes

Start = Callable[[Engine, int], Awaitable[None]]


class Models:
    """The same in all of them: a number is noted, and noted again in a savepoint. A number below zero is a rollback."""

    def __init__(self, table: str) -> None:
        async def note(number: int) -> int:
            connection = current_step().connection
            await connection.execute(f"insert into {table} (number) values ($1)", number)
            async with connection.transaction():
                await connection.execute(f"insert into {table} (number) values ($1)", number)
            return number

        once = step(transactional=True, name="note", retry=Retry.never())(note)

        @workflow(name="function")
        async def function(number: int) -> int:
            return await once(number)

        graph = Graph("graph", input=dict[str, int])
        graph.node("note", once, input={"number": "input.number"})

        operation = Operation("operation", NUMBERS)

        @operation.step(transactional=True, name="first")
        async def first(scope: Scope, number: int) -> None:
            await note(number)

        @first.rollback
        async def undo(scope: Scope, number: int, cause: Failure) -> None:
            await note(-number)

        @operation.step(transactional=True, name="second")
        async def second(scope: Scope, number: int) -> None:
            await note(number)

        async def run_function(engine: Engine, number: int) -> None:
            run = await engine.start(function(number), id=f"function-{number}")
            assert await run.result() == number
            assert [entry.attempts for entry in (await engine.handle(run.id).history()).journal] == [1]

        async def run_graph(engine: Engine, number: int) -> None:
            run = await engine.start(graph({"number": number}), id=f"graph-{number}")
            await run.result()
            assert {entry.attempts for entry in (await engine.handle(run.id).history()).journal} == {1}

        async def run_operation(engine: Engine, number: int) -> None:
            await (await engine.emit(NUMBERS, number, id=f"operation-{number}")).finished()

        self.all: list[Any] = [function, graph, operation]
        self.ways: dict[str, tuple[Start, int]] = {
            "function": (run_function, 2),
            "graph": (run_graph, 2),
            "operation": (run_operation, 4),
        }


async def asked_until_answered(start: Start, engine: Engine, number: int) -> None:
    """What a caller reads may say that the store is busy; then it is asked for again."""
    while True:
        try:
            return await start(engine, number)
        except StoreBusy:
            pass


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("model", ["function", "graph", "operation"])
async def test_a_cut_at_any_message_of_a_step_is_nobodys_failure(
    postgres_world: PostgresWorld, model: str, moment: Moment, caplog: pytest.LogCaptureFixture
) -> None:
    world, url = postgres_world, await postgres_world.fresh()
    models = Models(world.script.table)
    start, times = models.ways[model]
    caplog.set_level(logging.ERROR)
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, workflows=models.all, poll_s=0.5, limits=Limits(grace_s=0)) as engine,
    ):
        for number in range(1, MESSAGES_MAX):
            cuts = proxy.cuts
            proxy.cut("step", "", moment, skip=number - 1)
            await start(engine, number)
            if proxy.cuts == cuts:
                break  # All messages have had their turn.
        else:
            pytest.fail(f"a step's transaction takes more than {MESSAGES_MAX} messages")
    assert number > 8
    assert await world.numbers(url) == sorted([*range(1, number + 1)] * times)
    assert await world.staged(url) == 0
    assert caplog.records == []


async def test_a_cut_of_any_other_connection_is_nobodys_failure(postgres_world: PostgresWorld) -> None:
    """Of those for commits, for reading and for hints, at every message."""
    world, url = postgres_world, await postgres_world.fresh()
    models = Models(world.script.table)
    count = 0
    async with (
        proxy_to(url, urlsplit(url).port or 0) as (proxy, detour),
        Engine(detour, workflows=models.all, poll_s=0.5, limits=Limits(grace_s=0)) as engine,
    ):
        for moment in ("before", "after"):
            for purpose in ("writer", "reader", "notifier"):
                for skip in range(6):
                    count += 1
                    proxy.cut(purpose, "", moment, skip=skip)
                    for start, _ in models.ways.values():
                        await asked_until_answered(start, engine, count)
    assert await world.numbers(url) == sorted([*range(1, count + 1)] * sum(times for _, times in models.ways.values()))
