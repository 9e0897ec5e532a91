"""Machines whose clocks are wrong. Engines on a store with a clock agree on the time. No engine counts as dead because
its machine's clock is wrong.
"""

from __future__ import annotations

import time

import pytest

from perdure.ports import clock
from perdure.testing.conformance.base import Rules, a_run, insert

_HOUR_S = 3600
_HALF_HOUR_US = 1_800_000_000


class ClockRules(Rules):
    @pytest.mark.parametrize("skew_s", [_HOUR_S, -_HOUR_S])
    async def test_stores_that_have_a_clock_agree_though_machines_do_not(
        self, skew_s: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.opened() as right:
            before = None if right.clock is None else right.clock.now()
            set_machine(monkeypatch, skew_s)
            async with self.opened() as wrong:
                if before is None or right.clock is None:
                    # Engines on a store without a clock are on one machine and share its clock.
                    assert wrong.clock is None
                else:
                    assert wrong.clock is not None
                    for now in (right.clock.now(), wrong.clock.now()):
                        assert abs(now - before) < _HALF_HOUR_US

    @pytest.mark.parametrize("skew_s", [_HOUR_S, -_HOUR_S])
    async def test_no_engine_is_dead_because_a_machine_is_wrong(
        self, skew_s: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with self.author("right") as right:
            set_machine(monkeypatch, skew_s)
            async with self.author("wrong") as wrong:
                for author in (right, wrong):
                    assert author.store.is_surely_alive()
                    assert await author.store.mark_dead_engines() == []
                    await author.commit(insert(a_run(author.id, owner=author.id)))
                loaded = await wrong.store.load(["right", "wrong"])
                assert not any(one.forsaken for one in loaded.values())


def set_machine(monkeypatch: pytest.MonkeyPatch, skew_s: int) -> None:
    """Set the time of day of this machine for this process."""
    right, right_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: right() + skew_s)
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + skew_s * 10**9)
    monkeypatch.setattr(clock, "time_ns", lambda: right_ns() + skew_s * 10**9)
