"""A small chaos run, with each fault once. `make chaos` has the long one."""

from __future__ import annotations

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.chaos.storm import squall, tell


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_fault_once_leaves_nothing_wrong(kind: str, tmp_path: Path) -> None:
    seed = int(os.environ.get("PERDURE_SEED", random.randrange(2**32)))
    tell(f"PERDURE_SEED={seed}")  # pytest shows it when the test fails
    report = asyncio.run(squall(kind, tmp_path, seed, numbers=70))
    tell(report)
    assert report.violations == []
    assert report.numbers == 70
