"""Many runs that go on do not block the event loop: a bounded number goes on in each of its turns."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import pytest

from perdure.models.cooperation.turns import BEGUN_AT_ONCE_MAX, Turns


async def test_a_bounded_number_of_runs_goes_on_in_one_turn() -> None:
    turns, gone_on, per_turn = Turns(), list[int](), list[int]()
    live: Any = None
    for number in range(3 * BEGUN_AT_ONCE_MAX):
        turns.soon(live, partial(gone_on.append, number))
    while turns.waiting:
        per_turn.append(len(gone_on) - sum(per_turn))
        await asyncio.sleep(0)
    assert per_turn == [BEGUN_AT_ONCE_MAX] * 2
    assert gone_on == list(range(3 * BEGUN_AT_ONCE_MAX))


async def test_a_run_that_cannot_go_on_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Live:
        id = "r"

    def fails() -> None:
        raise LookupError("no")

    turns, gone_on = Turns(), list[int]()
    live: Any = Live()
    for number in range(BEGUN_AT_ONCE_MAX):
        turns.soon(live, partial(gone_on.append, number))
    turns.soon(live, fails)
    turns.soon(live, partial(gone_on.append, BEGUN_AT_ONCE_MAX))
    while turns.waiting:
        await asyncio.sleep(0)
    assert gone_on[-1] == BEGUN_AT_ONCE_MAX
    assert "run r could not go on" in caplog.text
