"""A step that blocks the event loop is named, with how long it did."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest

from perdure import Engine, Limits, step, workflow
from perdure.cooperation import Operation, Scope, Topic


class Heard(logging.Handler):
    """Lets go of who blocks once a warning has come."""

    def __init__(self) -> None:
        super().__init__()
        self.first = threading.Event()
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.messages.append(record.getMessage())
        self.first.set()


@pytest.fixture
def heard() -> Heard:
    return Heard()


@pytest.mark.parametrize("has_waited", [False, True])
async def test_a_step_that_blocks_the_loop_is_named(tmp_path: Path, heard: Heard, has_waited: bool) -> None:
    @step
    async def stubborn() -> str:
        if has_waited:
            await asyncio.sleep(0)
        heard.first.wait(60)
        return "done"

    @workflow
    async def flow() -> str:
        return await stubborn()

    logger = logging.getLogger("perdure")
    logger.addHandler(heard)
    try:
        async with Engine(
            f"sqlite:///{tmp_path}/runs.db", workflows=[flow], limits=Limits(blocked_warn_s=0.2)
        ) as engine:
            run = await engine.start(flow(), id="r")
            assert await run.result() == "done"
            while len(heard.messages) < 2:
                await asyncio.sleep(0.01)
    finally:
        logger.removeHandler(heard)
    name = stubborn.name
    assert heard.messages[0].startswith(f"step {name!r} of run 'r' (")
    assert "so far; make it a plain function" in heard.messages[0]
    assert heard.messages[1].startswith(f"step {name!r} of run 'r' (")
    assert "blocked the event loop for " in heard.messages[1]


async def test_a_step_of_an_operation_that_blocks_the_loop_is_named(tmp_path: Path, heard: Heard) -> None:
    orders = Topic("orders", int)
    place = Operation("place", orders)

    @place.step
    async def stubborn(scope: Scope, message: int) -> None:
        heard.first.wait(60)

    logger = logging.getLogger("perdure")
    logger.addHandler(heard)
    try:
        async with Engine(
            f"sqlite:///{tmp_path}/runs.db", workflows=[place], limits=Limits(blocked_warn_s=0.2)
        ) as engine:
            root = await engine.emit(orders, 1)
            await root.finished()
    finally:
        logger.removeHandler(heard)
    assert heard.messages[0].startswith(f"step 'stubborn' of run {root.run_ids[0]!r} (")
