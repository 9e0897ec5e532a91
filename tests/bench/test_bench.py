"""The benchmark runs and prints every row. No timing is judged: that is for `make bench` on a quiet machine."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import graphs, langgraph
from bench.figures import paired, percentile
from bench.report import ROWS

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.timeout(900)
def test_a_quick_run_prints_every_row(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    done = subprocess.run(
        [sys.executable, "-m", "bench", "--quick", "--json", results],
        capture_output=True,
        text=True,
        check=False,
        timeout=800,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert [row.label for row in ROWS if row.label not in done.stdout] == []
    measured = json.loads(results.read_text())
    assert set(measured["summary"]) == {row.label for row in ROWS}
    assert all(row["median"] > 0 for row in measured["summary"].values())


async def test_graphs_are_measured_at_every_width(tmp_path: Path) -> None:
    figures = {width: await graphs.measure(tmp_path, branches=width) for width in (5, 20)}
    assert all(value > 0 for value in graphs.beyond_linear(figures).values())


@pytest.mark.parametrize("workload", langgraph.WORKLOADS)
async def test_graphs_are_measured_as_langgraph_is(workload: str, tmp_path: Path) -> None:
    figures = await langgraph.measure(tmp_path, "perdure", workload, runs=10, in_flight=2)
    results = langgraph.BRANCHES if workload == "fan_out" else langgraph.NODES
    assert figures["runs_per_s"] > 0
    assert figures["bytes_per_run"] > results * langgraph.RESULT_BYTES


def test_percentiles_are_values_that_occurred() -> None:
    assert percentile([3.0, 1.0, 2.0, 4.0], 50) == 2.0
    assert percentile(range(1, 101), 99) == 99
    assert percentile([7.0], 99) == 7.0


def test_a_ratio_is_the_median_of_the_pairs() -> None:
    ours = [{"x": 1.0}, {"x": 6.0}, {"x": 10.0}]
    floors = [{"x": 2.0}, {"x": 4.0}, {"x": 10.0}]
    assert paired(ours, floors, "x") == 1.0
