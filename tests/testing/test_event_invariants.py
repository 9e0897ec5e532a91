"""check_store finds events and waits that do not fit each other."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from perdure import Event, receive, run_of, workflow
from perdure.errors import InvariantViolated
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.storage.memory.tables.events import EventTables
from perdure.testing import Environment


class Ping(Event):
    number: int


@workflow
async def listens() -> int:
    return (await receive(Ping)).number


@workflow
async def follows() -> int:
    value: int = await run_of("r").result()
    return value


def _event_of_a_finished_run(tables: EventTables) -> None:
    event = tables.events["paused"]["e"]
    tables.events["over"] = {"e": replace(event, run_id="over", position=None)}


def _change_waits(tables: EventTables, run_id: str, **changed: object) -> None:
    tables.waits[run_id] = {
        position: {option: replace(wait, **changed) for option, wait in options.items()}
        for position, options in tables.waits[run_id].items()
    }


def _position_not_marked(tables: EventTables) -> None:
    _change_waits(tables, "paused", due_at=None)


def _winner_gone(tables: EventTables) -> None:
    tables.events["paused"].clear()


def _end_overlooked(tables: EventTables) -> None:
    _change_waits(tables, "follows", target="over")


def _event_overlooked(tables: EventTables) -> None:
    event = tables.events["paused"]["e"]
    tables.events[""] = {"e-2": replace(event, id="e-2", run_id=None, position=None)}


@pytest.mark.parametrize(
    ("breaks", "problem"),
    [
        (_event_of_a_finished_run, "has finished, but has the events"),
        (_position_not_marked, "which won position 1"),
        (_winner_gone, "has won at 1, but nothing is there"),
        (_end_overlooked, "the end of .'over'., which has come"),
        (_event_overlooked, "e-2 is there"),
    ],
)
async def test_what_does_not_fit_is_found(breaks: Callable[[EventTables], None], problem: str) -> None:
    database = MemoryDatabase()
    async with Environment([listens, follows], lambda: MemoryStore(database), autojump_s=None) as env:
        for name in ("r", "over", "paused"):
            await env.engine.start(listens(), id=name)
        await env.engine.start(follows(), id="follows")
        await env.quiet()
        await env.engine.handle("over").cancel()
        await env.engine.handle("paused").pause()
        await env.engine.send(Ping(number=1), to="paused")
        assert await env.check() == 4
        tables = database.tables
        (event,) = tables.events["paused"].values()
        tables.events["paused"] = {"e": replace(event, id="e")}
        assert await env.check() == 4
        breaks(tables)
        with pytest.raises(InvariantViolated, match=problem):
            await env.check()
