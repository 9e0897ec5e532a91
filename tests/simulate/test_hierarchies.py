"""Hierarchies of operations on a simulated fleet: new seeds in every run of the tests."""

from __future__ import annotations

import os
import secrets

import pytest

from perdure.models.common.fence_check import FenceCheck
from perdure.models.cooperation import host
from perdure.testing.simulate.hierarchies import simulate_hierarchies
from perdure.testing.simulate.mix import Mix
from perdure.testing.simulate.network import Weather

FIRST = int(os.environ.get("PERDURE_SIMULATE_FROM") or secrets.randbelow(2**31))
SEEDS = int(os.environ.get("PERDURE_SIMULATE_HIERARCHIES") or 30)
TAIL = 60


@pytest.mark.timeout(900)
def test_every_hierarchy_ends_as_a_whole() -> None:
    print(f"PERDURE_SIMULATE_FROM={FIRST}")  # noqa: T201 - shown if it fails
    for seed in range(FIRST, FIRST + SEEDS):
        report = simulate_hierarchies(seed)
        if report.problem:
            tail = "\n".join(report.trace[-TAIL:])
            pytest.fail(f"{tail}\n\nseed {seed}: {report.problem}")


def test_a_seed_gives_the_same_trace() -> None:
    assert simulate_hierarchies(7).trace == simulate_hierarchies(7).trace


# Many emit with the same few tokens while these are cancelled, and the store is slow.
TOKENS = Mix(
    engines=(2, 3),
    runs=(6, 10),
    tokens=(3, 3),
    pauses=(0, 0),
    kills=(0, 0),
    within_s=4.0,
    live_runs_max=(1000,),
    weather=lambda _: Weather(latency_s=0.3),
)


@pytest.mark.timeout(300)
def test_a_token_that_misses_what_is_emitted_meanwhile_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deliberate bug: a run that is new does not look whether the tokens that it was given are cancelled."""
    monkeypatch.setattr(host, "token_tags", lambda _tags: ())
    seed = next((seed for seed in range(100) if simulate_hierarchies(seed, mix=TOKENS).problem), None)
    assert seed is not None
    monkeypatch.undo()
    assert simulate_hierarchies(seed, mix=TOKENS).problem == ""  # It is this bug, and no other.


# Engines stand still for longer than their lease while tokens are cancelled.
PAUSES = Mix(
    runs=(6, 10),
    tokens=(3, 3),
    pauses=(4, 6),
    pauses_s=((12.0, 15.0),),
    kills=(0, 0),
    live_runs_max=(1000,),
    weather=lambda _: Weather(latency_s=0.1),
)


@pytest.mark.timeout(300)
def test_an_engine_that_was_taken_for_dead_and_begins_steps_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """A deliberate bug: an engine that stood still does not ask whether its runs are still its own."""

    def is_sure_of(self: FenceCheck, run_id: str, *, is_alive: bool = False) -> bool:
        return run_id not in self._stopping  # pyright: ignore[reportPrivateUsage]

    monkeypatch.setattr(FenceCheck, "is_sure_of", is_sure_of)
    reports = ((seed, simulate_hierarchies(seed, mix=PAUSES)) for seed in range(100))
    seed = next((seed for seed, report in reports if "had been cancelled" in report.problem), None)
    assert seed is not None
    monkeypatch.undo()
    assert simulate_hierarchies(seed, mix=PAUSES).problem == ""  # It is this bug, and no other.
