"""Random concurrent programs, interrupted at every commit, given up at every suspension, and replayed in a process with
another hash seed.

Compared are the outcome and the journal: order, positions, values, failures, attempts and times. That this is fair,
that is, that an uninterrupted run has only one journal it can come to, is argued in programs.py.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, event, given, note, settings
from hypothesis import strategies as st

from perdure import Limits
from perdure.testing import Fault, Point
from tests.crash.ledger import Ledger
from tests.crash.program_worker import Order
from tests.crash.programs import NODES_MAX, Node, Trace, environment, execute

ROOT = Path(__file__).resolve().parents[2]
COMMITS_MAX = 12
POINTS: tuple[Point, ...] = ("before", "before_effects", "after_effects")

hours = st.integers(0, 3)
leaves: st.SearchStrategy[Node] = st.one_of(
    st.fixed_dictionaries({"op": st.just("step"), "hours": hours, "fails": st.sampled_from([False, False, True])}),
    st.fixed_dictionaries({"op": st.just("sleep"), "hours": hours}),
    st.fixed_dictionaries({"op": st.just("burst"), "hours": st.just(0), "width": st.integers(1, 4)}),
    st.fixed_dictionaries({"op": st.just("retry"), "hours": st.integers(1, 2), "attempt": st.integers(1, 4)}),
    st.fixed_dictionaries({"op": st.just("expire"), "hours": st.integers(1, 2)}),
)


def together(parts: st.SearchStrategy[Node], *ops: str) -> st.SearchStrategy[Node]:
    return st.fixed_dictionaries({"op": st.sampled_from(ops), "parts": st.lists(parts, min_size=2, max_size=4)})


def branches(part: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    one = st.lists(part, min_size=1, max_size=1)
    return st.one_of(
        together(part, "sequence", "gather", "gather all", "group", "first", "as completed"),
        st.fixed_dictionaries({"op": st.just("try"), "parts": one}),
        st.fixed_dictionaries({"op": st.just("wait for"), "hours": hours, "parts": one}),
    )


def numbered(program: Node) -> Node | None:
    """The program with a number for each node that takes time; None if there are too many for distinct times."""
    count = 0

    def visit(node: Node) -> Node:
        nonlocal count
        made = dict(node)
        if "hours" in node:
            made["n"] = count
            count += 1
        if "parts" in node:
            made["parts"] = [visit(part) for part in node["parts"]]
        return made

    made = visit(program)
    return made if count <= NODES_MAX else None


nested = st.one_of(branches(leaves), branches(leaves | branches(leaves)))
programs = together(nested, "sequence", "gather all", "group").map(numbered).filter(lambda made: made is not None)


async def run_in_peace(program: Node, **options: Any) -> tuple[Trace, int]:
    ledger = Ledger()
    async with environment(ledger, **options) as env:
        result = await execute(env, program)
        assert ledger.violations == []
        await env.check()
        return result, len(ledger.batches)


async def run_with_fault(program: Node, fault: Fault) -> Trace:
    ledger = Ledger()
    async with environment(ledger, fault=fault) as env:
        result = await env.survive(lambda env: execute(env, program))
        assert fault.struck == 1
        assert ledger.violations == []
        await env.check()
        return result


async def crash_at(program: Node, fault: Fault, url: str) -> int:
    """Run until the fault strikes, and leave it at that; when that was.

    On a file the program may take fewer commits than in memory, and come to its end before the fault does.
    """
    async with environment(Ledger(), fault=fault, store=url) as env:
        running = asyncio.ensure_future(execute(env, program))
        dying = asyncio.ensure_future(env.death())
        await asyncio.wait({running, dying}, return_when=asyncio.FIRST_COMPLETED)
        dying.cancel()
        await asyncio.wait({running, dying})
        running.exception()
        return env.clock.now()


async def interrupt_everywhere(program: Node) -> tuple[Trace, int]:
    """The trace that the program always has, and how many commits it takes in peace."""
    expected, commits = await run_in_peace(program)
    again, _ = await run_in_peace(program)
    assert again == expected, "the program itself is not deterministic"
    evicted, _ = await run_in_peace(program, limits=Limits(live_runs_max=0))
    assert evicted == expected, "giving the run up whenever it waits changes it"
    event(f"commits: {min(commits, COMMITS_MAX)}")
    for commit in range(1, min(commits, COMMITS_MAX) + 1):
        for point in POINTS:
            note(f"{point} at commit {commit} of {commits}")
            assert await run_with_fault(program, Fault(point, commit)) == expected
    return expected, commits


class Elsewhere:
    """The process with another hash seed."""

    def __init__(self) -> None:
        seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.program_worker"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": f"{ROOT}/src{os.pathsep}{ROOT}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def finish(self, url: str, now: int) -> Trace:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(msgspec.json.encode(Order(url, now)) + b"\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "the other process died; its stack is above"
        return msgspec.json.decode(answer, type=Trace)

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[Elsewhere]:
    process = Elsewhere()
    yield process
    process.close()


def interrupt_and_replay(program: Node, data: st.DataObject, elsewhere: Elsewhere, empty_file: Path) -> None:
    expected, commits = asyncio.run(interrupt_everywhere(program))
    point = data.draw(st.sampled_from(POINTS), label="point")
    # Before the first commit there is no run that the other process could go on with.
    first = 2 if point == "before" else 1
    commit = data.draw(st.integers(first, max(first, min(commits, COMMITS_MAX))), label="commit")
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{shutil.copyfile(empty_file, Path(folder, 'runs.db'))}"
        now = asyncio.run(crash_at(program, Fault(point, commit), url))
        assert elsewhere.finish(url, now) == msgspec.json.decode(msgspec.json.encode(expected), type=Trace)


random_programs = settings(
    max_examples=50,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    # Finding the smallest program that fails takes minutes: the soak does it.
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)


@random_programs
@given(program=programs, data=st.data())
def test_a_program_interrupted_anywhere_comes_to_the_same_end_and_journal(
    program: Any, data: st.DataObject, elsewhere: Elsewhere, empty_file: Path
) -> None:
    interrupt_and_replay(program, data, elsewhere, empty_file)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@settings(random_programs, max_examples=2000, phases=list(Phase))
@given(program=programs, data=st.data())
def test_many_programs_interrupted_anywhere_come_to_the_same_end_and_journal(
    program: Any, data: st.DataObject, elsewhere: Elsewhere, empty_file: Path
) -> None:
    interrupt_and_replay(program, data, elsewhere, empty_file)


def test_the_other_process_has_another_order_of_sets() -> None:
    """Or all of the above would prove nothing."""
    code = "print(list({'alpha', 'beta', 'gamma', 'delta', 'epsilon', 'zeta'}))"
    orders = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(orders) > 1
