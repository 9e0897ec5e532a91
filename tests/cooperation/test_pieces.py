"""A step with many children: what the engine does of it in one turn of the event loop is bounded, and what happens
between two turns finds the step as if it were written in one go."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from perdure.cooperation import Operation, Scope
from perdure.errors import ScopeFailed
from perdure.kernel import pieces
from perdure.kernel.lineages import extended
from perdure.kernel.pieces import PIECE_ITEMS_MAX
from perdure.models.cooperation import emissions, handler_runs, missing_handlers
from perdure.models.cooperation.drafts import Drafts
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.machine import next_move
from perdure.models.cooperation.notifications import Notifications
from perdure.models.cooperation.progress import Window
from perdure.models.cooperation.row_codec import RowCodec
from perdure.models.cooperation.turns import BEGUN_AT_ONCE_MAX
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.test_cost import LEAF, WIDE, Turn, asleep

Message = dict[str, Any]

CHILDREN = 2_500  # several times what one turn may do
BATCH_OPS_MAX = 256


class Shop:
    """A root with many children, and what its steps have done."""

    def __init__(self, *, fails: str = "") -> None:
        self.done: Counter[str] = Counter()
        root, leaf = Operation("wide", WIDE), Operation("leaf", LEAF)

        @root.step
        async def fan_out(scope: Scope, message: Message) -> None:
            self.done["fan_out"] += 1
            for number in range(message["size"]):
                await scope.emit(LEAF, {"number": number})

        @root.step
        async def end(scope: Scope, message: Message) -> None:
            self.done["end"] += 1
            if fails == "end":
                raise ValueError("the end fails")

        @leaf.step
        async def work(scope: Scope, message: Message) -> None:
            self.done["work"] += 1
            if fails == "leaf":
                raise ValueError(f"leaf {message['number']} fails")

        @work.rollback
        async def undo(scope: Scope, message: Message, cause: Any) -> None:
            self.done["undo"] += 1

        self.operations: list[Operation[Any]] = [root, leaf]


class Held:
    """Has what a step came to be drafted in part, and the rest of it only once it is released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._schedule = Drafts._schedule  # pyright: ignore[reportPrivateUsage]
        self._is_held = True
        monkeypatch.setattr(Drafts, "_schedule", lambda drafts: None if self._is_held else self._schedule(drafts))

    async def drafted_in_part(self, env: Environment) -> None:
        while not drafts_of(env).busy:
            await asyncio.sleep(0)

    def release(self, env: Environment) -> None:
        self._is_held = False
        self._schedule(drafts_of(env))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    return Held(monkeypatch)


def drafts_of(env: Environment) -> Drafts:
    return env.engine.runtime.operations._activations.drafts  # pyright: ignore[reportPrivateUsage]


async def runs_of(env: Environment) -> Counter[str]:
    """How many runs have which status."""
    found: Counter[str] = Counter()
    page = await env.engine.runs.list(limit=1000)
    while True:
        found.update(f"{run.workflow} {run.status}" for run in page.runs)
        if page.cursor is None:
            return found
        page = await env.engine.runs.list(limit=1000, cursor=page.cursor)


# ---------------------------------------------------------------------------------------------------------------------
# How much is done in one turn

# Of what is drafted: two parts, of two kinds of work. Beside it the children go on that a commit has begun, and those
# that a batch has told something, each with a few rows.
IN_ONE_TURN_MAX = 2 * PIECE_ITEMS_MAX + 5 * (BEGUN_AT_ONCE_MAX + BATCH_OPS_MAX)


def watched(monkeypatch: pytest.MonkeyPatch) -> Turn:
    """Counts the rows, messages and runs that are made in each turn."""
    turn = Turn()
    monkeypatch.setattr(emissions, "extended", turn.counting("emitted", extended))
    for owner, name in (
        (RowCodec, "event"),
        (RowCodec, "message"),
        (LiveOperation, "__init__"),
        (handler_runs.Emitter, "_new_run"),
        (Notifications, "undo"),
    ):
        monkeypatch.setattr(owner, name, turn.counting(name, getattr(owner, name)))
    return turn


@pytest.mark.parametrize("fails", ["nothing", "leaf", "end"])
async def test_a_turn_does_not_grow_with_the_children_of_a_step(
    fails: str, source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = watched(monkeypatch)
    shop = Shop(fails=fails)
    async with Environment(shop.operations, source) as env:
        watching = asyncio.create_task(turn.watch())
        with suppress(ScopeFailed):
            await (await env.engine.emit(WIDE, {"size": CHILDREN})).finished()
        watching.cancel()
        assert sum((await runs_of(env)).values()) == 1 + CHILDREN
    assert turn.total["event"] > 3 * CHILDREN
    assert {what: count for what, count in turn.largest.items() if count > IN_ONE_TURN_MAX} == {}


async def test_a_turn_does_not_grow_with_the_children_of_a_root_that_is_cancelled(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = watched(monkeypatch)
    operations, cancelling = asleep(WIDE)
    async with Environment(operations, source) as env:
        watching = asyncio.create_task(turn.watch())
        await cancelling(env, CHILDREN)
        watching.cancel()
    assert {what: count for what, count in turn.largest.items() if count > IN_ONE_TURN_MAX} == {}


async def test_many_large_steps_that_end_at_once_share_a_turn(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    turn = watched(monkeypatch)
    shop = Shop()
    async with Environment(shop.operations, source) as env:
        watching = asyncio.create_task(turn.watch())
        roots = await asyncio.gather(*(env.engine.emit(WIDE, {"size": PIECE_ITEMS_MAX + 1}) for _ in range(20)))
        await asyncio.gather(*(root.finished() for root in roots))
        watching.cancel()
    assert shop.done["end"] == 20
    assert {what: count for what, count in turn.largest.items() if count > IN_ONE_TURN_MAX} == {}


async def test_a_run_that_waits_does_not_go_through_its_messages_with_every_news(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = 0

    def messages(window: Window) -> tuple[str, ...]:
        nonlocal copied
        copied += len(window.emitted) + len(window.undone)
        return (*window.emitted, *window.undone)

    monkeypatch.setattr(Window, "messages", property(messages))
    async with Environment(Shop(fails="end").operations, source) as env:
        with suppress(ScopeFailed):
            await (await env.engine.emit(WIDE, {"size": 400})).finished()
    assert copied <= 20 * 400


async def test_those_who_join_late_are_not_looked_at_one_by_one(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    def counting(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return next_move(*args)

    monkeypatch.setattr(missing_handlers, "next_move", counting)
    shop = Shop()
    async with Environment(shop.operations[:1], source, autojump_s=None) as env:
        await env.engine.topics.register(LEAF, "absent")
        await env.engine.emit(WIDE, {"size": 300})
        await env.settle()
        await env.engine.topics.register(LEAF, "late")
        await env.settle()
        assert await runs_of(env) == {"wide suspended": 1, "absent created": 300, "late created": 300}
    assert asked <= 10


# ---------------------------------------------------------------------------------------------------------------------
# What happens between two pieces


async def test_a_root_that_is_cancelled_while_its_step_is_drafted_begins_no_step(
    held: Held, source: StoreSource
) -> None:
    shop = Shop()
    async with Environment(shop.operations, source) as env:
        root = await env.engine.emit(WIDE, {"size": CHILDREN})
        await held.drafted_in_part(env)
        assert await root.cancel("no longer wanted")
        held.release(env)
        with pytest.raises(ScopeFailed, match="no longer wanted"):
            await root.finished()
        await env.settle()
        assert shop.done == {"fan_out": 1}
        assert await runs_of(env) == {"wide rolled_back": 1, "leaf rolled_back": CHILDREN}


async def test_nothing_is_left_of_a_step_whose_engine_dies_while_it_is_drafted(held: Held, source: StoreSource) -> None:
    shop = Shop()
    async with Environment(shop.operations, source) as env:
        await env.engine.emit(WIDE, {"size": CHILDREN}, id="m-1")
        await held.drafted_in_part(env)
        env.kill()
        held.release(env)
        await env.restart()
        assert sum((await runs_of(env)).values()) == 1
        await (await env.engine.emit(WIDE, {"size": CHILDREN}, id="m-1")).finished()
        assert shop.done == {"fan_out": 2, "work": CHILDREN, "end": 1}


async def test_an_engine_that_shuts_down_writes_what_is_drafted(held: Held, source: StoreSource) -> None:
    shop = Shop()
    async with Environment(shop.operations, source) as env:
        await (await env.engine.emit(WIDE, {"size": 0})).finished()  # Then all handlers are known.
        await (await env.engine.emit(WIDE, {"size": 1})).finished()
        shop.done.clear()
        await env.engine.emit(WIDE, {"size": CHILDREN}, id="m-1")
        await held.drafted_in_part(env)
        stopping = asyncio.create_task(env.engine.shutdown())
        await asyncio.sleep(0)
        held.release(env)
        await stopping
        await env.restart()
        await (await env.engine.emit(WIDE, {"size": CHILDREN}, id="m-1")).finished()
        assert shop.done == {"fan_out": 1, "work": CHILDREN, "end": 1}


async def test_a_handler_that_registers_while_a_step_is_drafted_gets_all_messages(
    held: Held, source: StoreSource
) -> None:
    shop = Shop()
    async with Environment(shop.operations[:1], source, autojump_s=None) as env:
        await env.engine.topics.register(LEAF, "first")
        await env.engine.emit(WIDE, {"size": CHILDREN})
        await held.drafted_in_part(env)
        await env.engine.topics.register(LEAF, "second")
        held.release(env)
        await env.settle()
        assert await runs_of(env) == {"wide suspended": 1, "first created": CHILDREN, "second created": CHILDREN}


async def test_a_run_that_is_taken_away_while_it_is_drafted_writes_nothing(held: Held, source: StoreSource) -> None:
    shop = Shop()
    async with Environment(shop.operations, source) as env:
        await env.engine.emit(WIDE, {"size": CHILDREN}, id="m-1")
        await held.drafted_in_part(env)
        (run,) = (await env.engine.runs.list()).runs
        assert await env.engine.handle(run.id).pause()
        held.release(env)
        await env.settle()
        assert not drafts_of(env).busy
        assert await runs_of(env) == {"wide running": 1}
        assert await env.engine.handle(run.id).resume()
        await (await env.engine.emit(WIDE, {"size": CHILDREN}, id="m-1")).finished()
        assert shop.done == {"fan_out": 2, "work": CHILDREN, "end": 1}


@pytest.mark.parametrize(("fails", "status"), [("", "succeeded"), ("leaf", "rolled_back"), ("end", "rolled_back")])
async def test_every_draft_may_take_many_turns(
    fails: str, status: str, source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With pieces of one item, also what a run is told in the middle of a draft reaches it."""
    monkeypatch.setattr(pieces, "PIECE_ITEMS_MAX", 1)
    async with Environment(Shop(fails=fails).operations, source) as env:
        with suppress(ScopeFailed):
            await (await env.engine.emit(WIDE, {"size": 40})).finished()
        assert await runs_of(env) == {f"wide {status}": 1, f"leaf {status}": 40}


def test_parts_and_pieces_have_the_same_result_however_they_are_done() -> None:
    def work() -> pieces.Pieces[list[int]]:
        found: list[int] = []
        for start, part in pieces.parts(range(1_000)):
            assert len(part) <= PIECE_ITEMS_MAX
            if start:
                yield
            assert len(found) == start
            found += part
        return found

    assert pieces.at_once(work()) == [*range(1_000)]
    assert len([*work()]) == 3
    assert [*pieces.parts(())] == []
