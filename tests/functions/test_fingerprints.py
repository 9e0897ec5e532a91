"""A workflow's fingerprint: the same for the same code in every process, another one for other code."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from typing import Any

from perdure import step, workflow

MODULE = """
from perdure import step, workflow

@workflow
async def flow(order: str) -> str:
    if order in {"a", "b", "c", "d"}:
        return await work(order)
    return helper(order)

@step
async def work(order: str) -> str:
    return order

def helper(order: str) -> str:
    return deeper(order)

def deeper(order: str) -> str:
    return order + "one"

print(flow.fingerprint)
"""


def fingerprint(source: str, seed: str = "0") -> str:
    environment = {"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed}
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(source)], env=environment, capture_output=True, text=True, check=True
    )
    return process.stdout.strip()


def test_it_is_the_same_in_every_process() -> None:
    assert len({fingerprint(MODULE, seed) for seed in ("0", "1", "2")}) == 1


def test_it_changes_with_what_the_workflow_calls_even_further_down() -> None:
    before = fingerprint(MODULE)
    assert fingerprint(MODULE.replace('"one"', '"two"')) != before
    assert fingerprint(MODULE.replace('"d"', '"e"')) != before
    assert fingerprint(MODULE.replace("return order\n\ndef helper", "return order * 2\n\ndef helper")) != before


def test_it_does_not_change_with_lines_that_mean_nothing() -> None:
    assert fingerprint("\n\n# A comment.\n" + MODULE) == fingerprint(MODULE)


def made(suffix: str) -> Any:
    """The same code around another constant."""

    def helper(text: str) -> str:
        return text + "one" if suffix == "one" else text

    def other(text: str) -> str:
        return text + "two"

    chosen = helper if suffix == "one" else other

    @step
    async def work(text: str) -> str:
        return text

    @workflow
    async def flow(text: str) -> str:
        return chosen(await work(text))

    return flow


def test_functions_defined_inside_others_count_too() -> None:
    assert made("one").fingerprint == made("one").fingerprint
    assert made("one").fingerprint != made("two").fingerprint


def test_a_workflow_that_calls_itself_has_one() -> None:
    @workflow
    async def flow(n: int) -> int:
        return n if n == 0 else len(repr(flow))

    assert flow.fingerprint
