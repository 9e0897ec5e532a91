"""What hierarchies cost, wide and deep ones: in proportion to their size, on every store."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import pytest

from perdure import Engine, Limits
from perdure.cooperation import CancellationToken, Failure, NextStep, Operation, Scope, Topic, repeat
from perdure.coordinator import batch_decisions
from perdure.coordinator.batch_decisions import DECIDED_AT_ONCE_MAX
from perdure.errors import InvalidArguments, ScopeFailed
from perdure.kernel.decide import decide
from perdure.models.cooperation.activations import Activations
from perdure.models.cooperation.turns import BEGUN_AT_ONCE_MAX
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.cost import assert_linear, costs_of
from tests.cooperation.shop import topic

WIDE, LEAF, DEEP = topic("wide"), topic("leaf"), topic("deep")
Message = dict[str, Any]


def wide(*, leaf_fails: bool = False, end_fails: bool = False) -> list[Operation[Any]]:
    """A step with as many children as its message says."""
    root, leaf = Operation("wide", WIDE), Operation("leaf", LEAF)

    @root.step
    async def fan_out(scope: Scope, message: Message) -> None:
        for number in range(message["size"]):
            await scope.emit(LEAF, {"number": number})

    @root.step
    async def end(scope: Scope, message: Message) -> None:
        if end_fails:
            raise ValueError("the end fails")

    @leaf.step
    async def work(scope: Scope, message: Message) -> None:
        if leaf_fails:
            raise ValueError(f"leaf {message['number']} fails")
        scope.return_value("number", message["number"])

    return [root, leaf]


async def fan_out(env: Environment, size: int) -> None:
    with suppress(ScopeFailed):
        await (await env.engine.emit(WIDE, {"size": size})).finished()


@pytest.mark.parametrize("fails", ["nothing", "leaf", "end"])
async def test_a_step_with_four_times_the_children_costs_four_times_as_much(fails: str, source: StoreSource) -> None:
    operations = wide(leaf_fails=fails == "leaf", end_fails=fails == "end")
    small, large = await costs_of(operations, source, fan_out, (60, 240))
    assert_linear(small, large, times=4)


async def test_a_parent_is_not_given_up_and_read_again_for_each_of_its_children(source: StoreSource) -> None:
    small, large = await costs_of(wide(), source, fan_out, (240, 960), limits=Limits(live_runs_max=20, steps_max=10))
    assert_linear(small, large, times=4)


def deep(*, root_fails: bool = False, leaf_keeps: bool = False) -> list[Operation[Any]]:
    """An operation that emits to itself, as many levels down as its message says."""
    made = Operation("deep", DEEP)

    @made.step
    async def go_down(scope: Scope, message: Message) -> None:
        if message["left"] > 1:
            await scope.emit(DEEP, {**message, "left": message["left"] - 1})

    @go_down.rollback
    async def come_up(scope: Scope, message: Message, cause: Failure) -> None:
        if leaf_keeps and message["left"] == 1:
            raise ValueError("the leaf cannot be undone")

    @made.step
    async def end(scope: Scope, message: Message) -> None:
        if (root_fails or leaf_keeps) and message["left"] == message["size"]:
            raise ValueError("the root fails")

    return [made]


async def descend(env: Environment, size: int) -> None:
    with suppress(ScopeFailed):
        await (await env.engine.emit(DEEP, {"size": size, "left": size})).finished()


@pytest.mark.parametrize("fails", ["nothing", "root", "leaf"])
async def test_a_hierarchy_of_three_times_the_depth_costs_three_times_as_much(fails: str, source: StoreSource) -> None:
    operations = deep(root_fails=fails == "root", leaf_keeps=fails == "leaf")
    small, large = await costs_of(operations, source, descend, (100, 300))
    assert_linear(small, large, times=3)


async def test_cancelling_three_times_the_depth_costs_three_times_as_much(source: StoreSource) -> None:
    operations, cancelling = asleep(DEEP)
    small, large = await costs_of(operations, source, cancelling, (100, 300))
    assert_linear(small, large, times=3)


async def test_cancelling_four_times_the_children_costs_four_times_as_much(source: StoreSource) -> None:
    operations, cancelling = asleep(WIDE)
    small, large = await costs_of(operations, source, cancelling, (60, 240))
    assert_linear(small, large, times=4)


@pytest.mark.parametrize(("shape", "sizes"), [(DEEP, (100, 300)), (WIDE, (60, 240))], ids=["deep", "wide"])
async def test_cancelling_a_token_that_all_runs_of_a_hierarchy_inherit(
    source: StoreSource, shape: Topic[Message], sizes: tuple[int, int]
) -> None:
    """Each run is told once."""
    operations, cancelling = asleep(shape, by_token=True)
    small, large = await costs_of(operations, source, cancelling, sizes)
    assert_linear(small, large, times=sizes[1] // sizes[0])


async def test_cancelling_a_token_of_four_times_the_hierarchies_costs_four_times_as_much(source: StoreSource) -> None:
    leaf = Operation("leaf", LEAF)
    leaf.sleep(timedelta(days=30))

    @leaf.step
    async def never(scope: Scope, message: Message) -> None:
        raise AssertionError("nobody slept so long")

    async def cancelling(env: Environment, size: int) -> None:
        token = CancellationToken(f"token {size}")
        roots = await asyncio.gather(*(env.engine.emit(LEAF, {}, tokens=[token]) for _ in range(size)))
        await env.settle()  # All of them sleep, however slow the machine is.
        assert await env.engine.topics.cancel_token(token)
        for root in roots:
            with suppress(ScopeFailed):
                await root.finished()

    small, large = await costs_of([leaf], source, cancelling, (250, 1000), autojump_s=None)
    assert_linear(small, large, times=4)


def asleep(
    shape: Topic[Message], *, by_token: bool = False
) -> tuple[list[Operation[Any]], Callable[[Environment, int], Awaitable[None]]]:
    """A hierarchy whose leaves sleep, and what emits and cancels it once they do."""
    made, leaf = Operation("made", shape), Operation("leaf", LEAF)
    begun = Begun()

    @made.step
    async def begin(scope: Scope, message: Message) -> None:
        size, left = message["size"], int(message.get("left") or message["size"])
        if shape is WIDE:
            for _ in range(size):
                await scope.emit(LEAF, message)
        elif left > 1:
            await scope.emit(DEEP, {**message, "left": left - 1})
        else:
            await scope.emit(LEAF, {**message, "size": 1})

    @leaf.step
    async def rest(scope: Scope, message: Message) -> None:
        scope.sleep(timedelta(days=30))
        begun.another(message["size"])

    @leaf.step
    async def never(scope: Scope, message: Message) -> None:
        raise AssertionError("nobody slept so long")

    async def cancel(env: Environment, size: int) -> None:
        begun.all.clear()
        token = CancellationToken(f"token {size}")
        root = await env.engine.emit(shape, {"size": size}, tokens=[token] if by_token else ())
        await begun.all.wait()
        if by_token:
            assert await env.engine.topics.cancel_token(token, reason="no longer wanted")
        else:
            assert await root.cancel("no longer wanted")
        with pytest.raises(ScopeFailed, match="no longer wanted"):
            await root.finished()

    return [made, leaf], cancel


class Begun:
    """Says when so many have begun."""

    def __init__(self) -> None:
        self.all = asyncio.Event()
        self._count = 0

    def another(self, size: int) -> None:
        self._count += 1
        if self._count >= size:
            self._count = 0
            self.all.set()


async def test_what_is_done_in_one_turn_of_the_loop_does_not_grow_with_the_children(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = Turn()
    monkeypatch.setattr(batch_decisions, "decide", turn.counting("decided", decide))
    monkeypatch.setattr(Activations, "go_on", turn.counting("went on", Activations.go_on))
    async with Environment(wide(), source) as env:
        watching = asyncio.create_task(turn.watch())
        await fan_out(env, 2_000)
        watching.cancel()
    assert turn.total["decided"] > 2_000
    assert turn.total["went on"] > 2_000
    assert turn.largest["decided"] <= DECIDED_AT_ONCE_MAX
    # Those that a commit has begun, and in the same turn those whose children have ended: a batch of news.
    assert turn.largest["went on"] <= BEGUN_AT_ONCE_MAX + 256


class Turn:
    """Counts what is done in each turn of the loop."""

    def __init__(self) -> None:
        self.total: Counter[str] = Counter()
        self.largest: Counter[str] = Counter()
        self._now: Counter[str] = Counter()

    def counting(self, what: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **options: Any) -> Any:
            self.total[what] += 1
            self._now[what] += 1
            return function(*args, **options)

        return count

    async def watch(self) -> None:
        while True:
            await asyncio.sleep(0)
            self.largest |= self._now
            self._now.clear()


# ---------------------------------------------------------------------------------------------------------------------
# How deep a hierarchy may be


async def test_an_emission_fails_that_goes_too_deep(source: StoreSource) -> None:
    async with Environment(deep(), source, limits=Limits(hierarchy_levels_max=5)) as env:
        root = await env.engine.emit(DEEP, {"size": 5, "left": 5})
        await root.finished()
        root = await env.engine.emit(DEEP, {"size": 6, "left": 6})
        with pytest.raises(ScopeFailed) as caught:
            await root.finished()
        failure = caught.value.failure
        assert isinstance(failure, Failure)
        assert failure.root_cause.type.endswith("HierarchyTooDeep")
        assert "'go_down' of 'deep' emits on topic 'deep', 6 levels below the root" in failure.root_cause.message
        assert "Limits(hierarchy_levels_max=…)" in failure.root_cause.message
        assert failure.root_cause.stack_trace[-1].function_name == "_check_level"
        assert (await env.engine.handle(root.id).tree()).run.status == "rolled_back"
        assert len([*failure.walk()]) == 5


async def test_handlers_that_emit_to_each_other_without_end_come_to_an_end(source: StoreSource) -> None:
    ping, pong = Operation("ping", WIDE), Operation("pong", LEAF)

    @ping.step
    async def to_pong(scope: Scope, message: Message) -> None:
        await scope.emit(LEAF, {})

    @pong.step
    async def to_ping(scope: Scope, message: Message) -> None:
        await scope.emit(WIDE, {})

    async with Environment([ping, pong], source, limits=Limits(hierarchy_levels_max=120)) as env:
        root = await env.engine.emit(WIDE, {})
        with pytest.raises(ScopeFailed, match="121 levels below the root of its hierarchy, which may have 120"):
            await root.finished()
        await env.settle()
        assert {run.status async for run in runs_of(env)} == {"rolled_back"}


async def runs_of(env: Environment) -> AsyncIterator[Any]:
    page = await env.engine.runs.list(limit=1000)
    for run in page.runs:
        yield run


async def test_what_the_last_level_did_can_be_undone_with_an_emission(source: StoreSource) -> None:
    undone: list[int] = []
    made, undoing = Operation("deep", DEEP), Operation("undoing", LEAF)

    @made.step
    async def go_down(scope: Scope, message: Message) -> None:
        if message["left"] > 1:
            await scope.emit(DEEP, {"left": message["left"] - 1})

    @go_down.rollback
    async def come_up(scope: Scope, message: Message, cause: Failure) -> None:
        await scope.emit(LEAF, message)

    @made.step
    async def end(scope: Scope, message: Message) -> None:
        if message["left"] == 3:
            raise ValueError("the root fails")

    @undoing.step
    async def undo(scope: Scope, message: Message) -> None:
        undone.append(message["left"])

    async with Environment([made, undoing], source, limits=Limits(hierarchy_levels_max=3)) as env:
        root = await env.engine.emit(DEEP, {"left": 3})
        with pytest.raises(ScopeFailed, match="the root fails"):
            await root.finished()
        assert undone == [1, 2, 3]


async def test_a_hierarchy_has_at_least_one_level() -> None:
    with pytest.raises(InvalidArguments, match="hierarchy_levels_max must be at least 1"):
        Engine("memory://", workflows=[], limits=Limits(hierarchy_levels_max=0))


@pytest.mark.parametrize("asked", ["before", "after"])
async def test_a_deep_hierarchy_goes_on_after_a_crash(asked: str, source: StoreSource) -> None:
    """Its runs are read again, with what is asked of those far above them."""
    operations, _ = asleep(DEEP)
    async with Environment(operations, source, autojump_s=None) as env:
        message_id = (await env.engine.emit(DEEP, {"size": 100}, id="m-1")).message_id
        await env.quiet()
        root = await env.engine.emit(DEEP, {"size": 100}, id=message_id)
        if asked == "before":
            assert await root.cancel("no longer wanted")
        await env.restart()
        root = await env.engine.emit(DEEP, {"size": 100}, id=message_id)
        if asked == "after":
            assert await root.cancel("no longer wanted")
        with pytest.raises(ScopeFailed, match="no longer wanted"):
            await root.finished()
        await env.settle()
        assert {run.status async for run in runs_of(env)} == {"rolled_back"}


async def test_a_step_that_repeats_does_not_gather_what_earlier_children_returned(source: StoreSource) -> None:
    """Each lap has a child that returns a value. Only a step that asks for the values goes through them."""
    root, leaf = Operation("wide", WIDE), Operation("leaf", LEAF)

    @root.step
    async def lap(scope: Scope, message: Message) -> NextStep | None:
        await scope.emit(LEAF, {"number": scope.iteration})
        scope.return_value(f"lap {scope.iteration}", scope.iteration)
        return repeat() if scope.iteration + 1 < message["size"] else None

    @root.step
    async def end(scope: Scope, message: Message) -> None:
        assert scope.returned("number", int) == [*range(message["size"])]
        assert scope.returned("number", int, topic="elsewhere") == []

    @leaf.step
    async def work(scope: Scope, message: Message) -> None:
        scope.return_value("number", message["number"])

    small, large = await costs_of([root, leaf], source, fan_out, (40, 160))
    assert_linear(small, large, times=4)


async def test_a_step_that_returns_many_values(source: StoreSource) -> None:
    root = Operation("wide", WIDE)

    @root.step
    async def returns(scope: Scope, message: Message) -> None:
        for number in range(message["size"]):
            scope.return_value(f"value {number}", number)

    small, large = await costs_of([root], source, fan_out, (200, 800))
    assert_linear(small, large, times=4)
