"""Runs with many children that are read from the store, after a crash or when somebody asks: what is done in one turn
of the event loop is bounded, and what one run costs does not depend on how many are read with it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest

from perdure import Limits
from perdure.cooperation import Failure, Operation, Scope
from perdure.errors import ScopeFailed
from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.pieces import PIECE_ITEMS_MAX
from perdure.models.cooperation import stored_hierarchy
from perdure.models.cooperation.cause_reader import CauseReader
from perdure.models.cooperation.children import Child
from perdure.models.cooperation.failures import as_stored, placed
from perdure.models.cooperation.live_run import LiveOperation
from perdure.models.cooperation.message_events import EventType, MessageEvent, in_order, state_of
from perdure.models.cooperation.progress_fold import Folding
from perdure.models.cooperation.row_codec import RowCodec
from perdure.ports import PlainCodec
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.cooperation.test_cooperation_engine import agree
from tests.cooperation.test_cost import LEAF, WIDE, Turn
from tests.cooperation.test_pieces import IN_ONE_TURN_MAX, Shop, runs_of

Message = dict[str, Any]

CHILDREN = 1_000  # with several rows each, so that there is several times as much to read as one turn may do


class Stuck:
    """A root that fails once all its children are done. In their first life the children's rollbacks never end."""

    def __init__(self) -> None:
        self.is_stuck = True
        self.undone: Counter[str] = Counter()
        self._all = asyncio.Event()
        root, leaf = Operation("wide", WIDE), Operation("leaf", LEAF)

        @root.step
        async def fan_out(scope: Scope, message: Message) -> None:
            for _ in range(message["size"]):
                await scope.emit(LEAF, message)

        @fan_out.rollback
        async def undo_all(scope: Scope, message: Message, cause: Failure) -> None:
            self.undone["wide"] += 1

        @root.step
        async def end(scope: Scope, message: Message) -> None:
            raise ValueError("the end fails")

        @leaf.step
        async def work(scope: Scope, message: Message) -> None:
            scope.return_value("one", 1)

        @work.rollback
        async def undo(scope: Scope, message: Message, cause: Failure) -> None:
            self.undone["leaf"] += 1
            if self.is_stuck:
                self._all.set()
                await asyncio.Event().wait()

        self.operations: list[Operation[Any]] = [root, leaf]

    async def until_stuck(self, env: Environment, size: int) -> Any:
        """The root, once all its children are told to roll back. Then the process dies."""
        root = await env.engine.emit(WIDE, {"size": size})
        await self._all.wait()
        while (await runs_of(env))["leaf rolling_back"] < size:
            await asyncio.sleep(0.01)
        self.is_stuck = False
        self.undone.clear()
        return root


def watched(monkeypatch: pytest.MonkeyPatch) -> Turn:
    """Counts what is read and made of it in each turn."""
    turn = Turn()
    monkeypatch.setattr(stored_hierarchy, "Child", turn.counting("child", Child))
    monkeypatch.setattr(stored_hierarchy, "state_of", turn.counting("state", state_of))
    places: list[tuple[type[Any], str]] = [
        (RowCodec, "read_event"),
        (RowCodec, "read_message"),
        (RowCodec, "read_value"),
        (Folding, "add"),
        (LiveOperation, "__init__"),
    ]
    for owner, name in places:
        monkeypatch.setattr(owner, name, turn.counting(name, getattr(owner, name)))
    return turn


async def test_a_turn_does_not_grow_with_the_children_of_a_run_that_is_recovered(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck()
    async with Environment(stuck.operations, source, limits=Limits(steps_max=CHILDREN)) as env:
        root = await stuck.until_stuck(env, CHILDREN)
        turn = watched(monkeypatch)
        watching = asyncio.create_task(turn.watch())
        await env.restart()
        with pytest.raises(ScopeFailed, match="the end fails"):
            await (await env.engine.emit(WIDE, {"size": CHILDREN}, id=root.message_id)).finished()
        watching.cancel()
        assert stuck.undone == {"wide": 1, "leaf": CHILDREN}
        await agree(env, *stuck.operations)
    assert turn.total["read_event"] > 3 * CHILDREN
    assert {what: count for what, count in turn.largest.items() if count > IN_ONE_TURN_MAX} == {}


async def test_a_turn_does_not_grow_with_the_children_of_what_is_rolled_back_or_looked_at(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop = Shop()
    async with Environment(shop.operations, source) as env:
        root = await env.engine.emit(WIDE, {"size": CHILDREN})
        await root.finished()
        turn = watched(monkeypatch)
        watching = asyncio.create_task(turn.watch())
        assert len((await env.engine.handle(root.id).tree()).children) == 1
        assert await root.returned("nothing", int) == []
        assert await root.roll_back()
        with suppress(ScopeFailed):
            await root.finished()
        watching.cancel()
        assert shop.done["undo"] == CHILDREN
    assert turn.total["read_event"] > 3 * CHILDREN
    assert {what: count for what, count in turn.largest.items() if count > IN_ONE_TURN_MAX} == {}


class Counted(list[MessageEvent]):
    """Rows that count how many of them are gone through."""

    passed = 0

    def __iter__(self) -> Iterator[MessageEvent]:
        Counted.passed += len(self)
        return super().__iter__()


async def test_who_is_read_with_a_wide_run_does_not_go_through_its_rows(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    stuck = Stuck()
    size = 2 * PIECE_ITEMS_MAX
    async with Environment(stuck.operations, source, limits=Limits(steps_max=size)) as env:
        await stuck.until_stuck(env, size)
        monkeypatch.setattr(stored_hierarchy, "in_order", lambda rows: Counted(in_order(rows)))
        monkeypatch.setattr(Counted, "passed", 0)
        await env.restart()
        live = env.engine.runtime.operations._live  # pyright: ignore[reportPrivateUsage]
        largest = 0
        while len((await env.engine.runs.list(status="rolling_back", limit=1)).runs):
            largest = max(
                [largest, *(len(one.topics) + len(one.values) for one in live.values() if one.handler == "leaf")]
            )
            await asyncio.sleep(0)
        assert stuck.undone == {"wide": 1, "leaf": size}
    assert Counted.passed < 60 * size
    assert largest <= 1  # Each knows what it has returned itself, and nothing of the others.


async def test_a_cause_that_many_have_is_read_once() -> None:
    codec = RowCodec(PlainCodec())
    failure = placed(Failure(type="ValueError", message="no cover"), "r", 7)
    row = codec.event(
        MessageEvent(
            seq=7,
            message_id="m",
            type=EventType.ROLLING_BACK,
            cooperation_lineage=("e", "r"),
            exception=failure,
        ),
        "id",
    )
    asked = list[Any]()

    class Rows:
        async def events_at(self, places: list[tuple[str, int]]) -> list[MessageEventRow]:
            asked.append(places)
            return [row]

    reader = CauseReader(Rows(), codec)  # type: ignore[arg-type]  # It asks for nothing else.
    reference = as_stored(failure, "elsewhere/1")
    for _ in range(3):
        assert (await reader.whole(reference)).message == "no cover"
    assert asked == [[("r", 7)]]
