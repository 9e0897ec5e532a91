"""Transactional steps of operations: their own writes and all that they ask for are there together, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from perdure import Retry, current_step, resource
from perdure.cooperation import Failure, Operation, Scope, Topic, go_to
from perdure.errors import InvalidDefinition, ScopeFailed
from perdure.kernel.batch import Batch
from perdure.storage.memory import MemoryStore
from perdure.testing import CRASH_POINTS, Environment, Fault, run_with_crashes
from tests.transactions.notes import Script, World

SOAK = bool(os.environ.get("PERDURE_SOAK"))
PAY, SHIP = Topic("pay", int), Topic("ship", int)

Act = Callable[[Scope, int], Any]


class StepFault(Fault):
    """A fault that counts only transactions of steps: how many batches come before them depends on what meets."""

    def strikes(self, batch: Batch) -> bool:
        return False


def nothing(_scope: Scope, _number: int) -> None:
    """What a step does beyond its notes."""


def add(kind: str, operation: Operation[int], name: str, act: Act = nothing, retry: Retry | None = None) -> None:
    """A step that takes its message down, and takes it back with the opposite number."""
    if kind == "sqlite":

        def note(number: int) -> None:
            current_step().connection.execute(f"insert into {resource(Script).table} (number) values (?)", (number,))

        @operation.step(name=name, transactional=True, retry=retry)
        def plain(scope: Scope, number: int) -> Any:
            note(number)
            return act(scope, number)

        @plain.rollback
        def undo_plain(scope: Scope, number: int, cause: Failure) -> None:
            note(-number)

        return

    async def note_it(number: int) -> None:
        await current_step().connection.execute(f"insert into {resource(Script).table} (number) values ($1)", number)

    @operation.step(name=name, transactional=True, retry=retry)
    async def awaited(scope: Scope, number: int) -> Any:
        await note_it(number)
        return act(scope, number)

    @awaited.rollback
    async def undo_awaited(scope: Scope, number: int, cause: Failure) -> None:
        await note_it(-number)


def emits(scope: Scope, number: int) -> None:
    _ = scope.emit(SHIP, number + 1)
    scope.return_value("paid", number)


def fails(_scope: Scope, _number: int) -> None:
    raise LookupError("no such address")


def shop(kind: str, *, last: Act = nothing, shipping: Act = nothing) -> list[Operation[int]]:
    pay, ship = Operation("pay", PAY), Operation("ship", SHIP)
    add(kind, pay, "take", emits)
    add(kind, pay, "confirm", last)
    add(kind, ship, "send", shipping)
    return [pay, ship]


async def outcome(env: Environment, id: str) -> str:
    root = await env.engine.emit(PAY, 1, id=id)
    try:
        await root.finished()
    except ScopeFailed as failed:
        return str(failed.failure.type)
    finally:
        await env.settle()
    return "done"


async def happens_once(world: World, operations: list[Operation[int]], expected: str, numbers: list[int]) -> None:
    url = await world.fresh()
    trials = 0

    def store() -> str:
        nonlocal trials
        trials += 1
        return url

    async def scenario(env: Environment) -> str:
        return await outcome(env, f"m-{trials}")

    async def after(_: object) -> None:
        assert await world.numbers(url) == numbers
        assert await world.staged(url) == 0
        await world.ask(url, f"delete from {world.script.table}")

    def check(found: str) -> None:
        assert found == expected

    points = CRASH_POINTS if world.kind == "sqlite" or SOAK else ("before_effects",)
    report = await run_with_crashes(
        scenario, workflows=operations, store=store, after=after, check=check, points=points, **world.options
    )
    assert report.restarts > 0


async def test_steps_and_what_they_emit_happen_once_and_are_undone_once(world: World) -> None:
    """The last step raises: its own writes vanish, the others' are undone, the child's among them."""
    await happens_once(world, shop(world.kind, last=fails), "LookupError", [-2, -1, 1, 2])


def fails_twice(scope: Scope, number: int) -> None:
    emits(scope, number)
    if current_step().attempt < 3:
        raise LookupError("not yet")


async def test_what_a_failed_attempt_wrote_vanishes_with_it_and_the_last_one_counts(world: World) -> None:
    pay, ship = Operation("pay", PAY), Operation("ship", SHIP)
    add(world.kind, pay, "take", fails_twice, retry=Retry(initial=timedelta(seconds=5), jitter=0))
    add(world.kind, ship, "send")
    await happens_once(world, [pay, ship], "done", [1, 2])


async def test_steps_and_what_they_emit_are_committed_together(world: World) -> None:
    url = await world.fresh()
    async with Environment(shop(world.kind), url, **world.options) as env:
        assert await outcome(env, "m") == "done"
        await env.check()
    assert await world.numbers(url) == [1, 1, 2]


async def test_a_child_that_fails_leaves_nothing(world: World) -> None:
    url = await world.fresh()
    async with Environment(shop(world.kind, shipping=fails), url, **world.options) as env:
        assert "ChildRolledBack" in await outcome(env, "m")
        await env.check()
    assert await world.numbers(url) == [-1, 1]


async def test_what_cannot_be_asked_for_takes_the_writes_with_it(world: World) -> None:
    """It is found out before the commit, not after it."""
    operations = shop(world.kind, last=lambda _scope, _number: go_to("nowhere"))
    url = await world.fresh()
    async with Environment(operations, url, **world.options) as env:
        assert "InvalidArguments" in await outcome(env, "m")
        await env.check()
    assert await world.numbers(url) == [-2, -1, 1, 2]


async def test_what_a_step_has_written_is_undone_if_it_was_cancelled_before_its_rows_were_there(world: World) -> None:
    """The process dies when the writes are committed and what the step asked for is only staged; then the run is
    cancelled. Whoever takes it begins with what is staged, and so knows that there is something to undo."""
    operations = shop(world.kind)
    url = await world.fresh()
    async with Environment(operations, url, fault=StepFault("before_effects"), **world.options) as env:
        await env.engine.emit(PAY, 1, id="m")
        await env.death()
        assert await world.numbers(url) == [1]
        assert await world.staged(url) == 1
    async with Environment([], url, **world.options) as env:
        root = await env.engine.emit(PAY, 1, id="m")
        assert await root.cancel("no longer wanted")
    async with Environment(operations, url, **world.options) as env:
        assert await outcome(env, "m") == "GaveUp"
        await env.check()
    assert await world.numbers(url) == [-1, 1]
    assert await world.staged(url) == 0


async def test_what_a_step_has_written_is_undone_though_its_run_is_held_before_its_rows_are_there(world: World) -> None:
    """As above, but the run is paused first. By its rows it has done nothing."""
    operations = shop(world.kind)
    url = await world.fresh()
    async with Environment(operations, url, fault=StepFault("before_effects"), **world.options) as env:
        await env.engine.emit(PAY, 1, id="m")
        await env.death()
        assert await world.staged(url) == 1
    async with Environment([], url, **world.options) as env:
        root = await env.engine.emit(PAY, 1, id="m")
        (run_id,) = root.run_ids
        assert await env.engine.handle(run_id).pause("not today")
        await env.settle()
        assert await root.cancel("no longer wanted")
        view = await env.engine.runs.get(run_id)
        assert view is not None
        assert view.hold is not None
        assert "it has something to undo" in view.hold.details
    async with Environment(operations, url, **world.options) as env:
        assert await env.engine.handle(run_id).resume()
        assert await outcome(env, "m") == "GaveUp"
        await env.check()
    assert await world.numbers(url) == [-1, 1]
    assert await world.staged(url) == 0


async def test_a_store_without_transactions_refuses() -> None:
    async with Environment(shop("sqlite"), MemoryStore) as env:
        root = await env.engine.emit(PAY, 1)
        with pytest.raises(ScopeFailed, match="no transactions for steps"):
            await root.finished()


def test_what_belongs_to_a_transactional_step_has_its_form() -> None:
    operation = Operation("odd", PAY)

    @operation.step(transactional=True)
    def plain(scope: Scope, number: int) -> None: ...

    with pytest.raises(InvalidDefinition, match="must be a plain `def` as well"):

        @plain.rollback
        async def undo(scope: Scope, number: int, cause: Failure) -> None: ...
