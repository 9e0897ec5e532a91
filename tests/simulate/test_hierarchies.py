"""Hierarchies of operations on a simulated fleet: new seeds in every run of the tests."""

from __future__ import annotations

import os
import secrets

import pytest

from perdure.testing.simulate.hierarchies import simulate_hierarchies

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
