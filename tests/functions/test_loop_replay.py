"""Live equals replay: the same completions in the same order give the same commands, whatever the program does."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.models.functions.loop import WorkflowLoop
from tests.functions.loop_driver import SECOND, START, durable_sleep, plain, step

# A program is a tree of (kind, …); see `interpret` for what each kind does.
Program = tuple[Any, ...]
Completion = tuple[str, str, int, bool]  # kind, position, time, failed

COMPLETIONS_MAX = 60


class StepBroke(Exception): ...


async def interpret(program: Program, log: list[Any]) -> Any:
    match program:
        case ("step", name):
            log.append(result := await step(name))
            return result
        case ("sleep", seconds):
            await asyncio.sleep(seconds)
            log.append(("slept", asyncio.get_running_loop().time()))
        case ("durable", seconds):
            log.append(await durable_sleep(seconds))
        case ("sequence", children):
            for child in children:
                await interpret(child, log)
        case ("gather", children, keep):
            log.append(repr(await asyncio.gather(*(interpret(one, log) for one in children), return_exceptions=keep)))
        case ("group", children):
            async with asyncio.TaskGroup() as group:
                for child in children:
                    group.create_task(interpret(child, log))
        case ("first", children):
            tasks = {asyncio.create_task(interpret(child, log)) for child in children}
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            log.append([task.get_name() for task in done])
            await asyncio.gather(*pending, return_exceptions=True)
        case ("completed", children):
            for one in asyncio.as_completed([interpret(child, log) for child in children]):
                result = await one
                log.append(("completed", repr(result)))
        case ("timeout", seconds, child):
            async with asyncio.timeout(seconds):
                await interpret(child, log)
        case ("wait_for", seconds, child):
            await asyncio.wait_for(interpret(child, log), seconds)
        case ("shield", child):
            await asyncio.shield(interpret(child, log))
        case ("cancel", victim, child):
            task = asyncio.create_task(interpret(victim, log))
            await interpret(child, log)
            task.cancel()
        case ("semaphore", children):
            semaphore = asyncio.Semaphore(2)

            async def limited(child: Program) -> None:
                async with semaphore:
                    await interpret(child, log)

            await asyncio.gather(*(limited(child) for child in children))
        case ("try", child):
            try:
                await interpret(child, log)
            except (Exception, BaseExceptionGroup) as error:  # noqa: BLE001
                log.append(type(error).__name__)
        case _:
            raise AssertionError(program)
    return program[0]


def drive(program: Program, choose: Callable[[int], tuple[int, bool, int]]) -> tuple[list[Any], list[Completion]]:
    """Run a program live: `choose` picks which outstanding request is answered next, whether it fails, and how late."""
    log: list[Any] = []
    loop = WorkflowLoop(run_id="run-1")
    commands = loop.begin(lambda: interpret(program, log), START)
    history, now = [plain(commands)], START
    journal: list[Completion] = []
    while commands.end is None and len(journal) < COMPLETIONS_MAX:
        outstanding = [("step", one.position, START) for one in loop.outstanding_steps]
        outstanding += [("timer", one.position, one.due_at) for one in loop.outstanding_timers]
        if not outstanding:
            break
        index, failed, later = choose(len(outstanding))
        kind, position, due_at = outstanding[index % len(outstanding)]
        now = max(now + later, due_at)
        journal.append((kind, position, now, failed))
        commands = hand_over(loop, journal[-1])
        history.append(plain(commands))
    loop.close()
    return [history, log], journal


def replay(program: Program, journal: list[Completion]) -> list[Any]:
    log: list[Any] = []
    loop = WorkflowLoop(run_id="run-1")
    history = [plain(loop.begin(lambda: interpret(program, log), START))]
    history.extend(plain(hand_over(loop, completion)) for completion in journal)
    loop.close()
    return [history, log]


def hand_over(loop: WorkflowLoop, completion: Completion) -> Any:
    kind, position, at, failed = completion
    if kind == "timer":
        return loop.fire_timer(position, at)
    if failed:
        return loop.complete_step(position, at, error=StepBroke(position))
    return loop.complete_step(position, at, f"result of {position}")


def chooser(draw: random.Random) -> Callable[[int], tuple[int, bool, int]]:
    return lambda count: (draw.randrange(count), draw.random() < 0.2, draw.randrange(2 * SECOND))


leaves = st.one_of(
    st.tuples(st.just("step"), st.sampled_from("abcde")),
    st.tuples(st.just("sleep"), st.sampled_from([0, 0.5, 1, 2.5])),
    st.tuples(st.just("durable"), st.sampled_from([0, 1, 3])),
)


def branches(children: st.SearchStrategy[Program]) -> st.SearchStrategy[Program]:
    several = st.lists(children, min_size=1, max_size=5)
    seconds = st.sampled_from([0, 0.5, 1.5, 4])
    return st.one_of(
        st.tuples(st.sampled_from(["sequence", "group", "first", "completed", "semaphore"]), several),
        st.tuples(st.just("gather"), several, st.booleans()),
        st.tuples(st.sampled_from(["timeout", "wait_for"]), seconds, children),
        st.tuples(st.sampled_from(["shield", "try"]), children),
        st.tuples(st.just("cancel"), children, children),
    )


programs = st.recursive(leaves, branches, max_leaves=25)


@settings(max_examples=300, deadline=None)
@given(program=programs, seed=st.integers(0, 2**32))
def test_a_replay_gives_the_same_commands_and_shows_the_workflow_the_same(program: Program, seed: int) -> None:
    draw = random.Random(seed)
    live, journal = drive(program, chooser(draw))
    clutter = [object() for _ in range(draw.randrange(500))]  # so that addresses differ
    assert replay(program, journal) == live
    del clutter


def random_program(draw: random.Random, depth: int) -> Program:
    """As above, without hypothesis: for a process of its own, with a seed that the command line can carry."""
    if depth == 0:
        return draw.choice([("step", draw.choice("abc")), ("sleep", draw.choice([0, 1, 2])), ("durable", 1)])
    several = [random_program(draw, depth - 1) for _ in range(draw.randrange(1, 6))]
    kind = draw.choice(["sequence", "group", "first", "completed", "semaphore", "gather", "timeout", "cancel", "try"])
    match kind:
        case "gather":
            return kind, several, draw.random() < 0.5
        case "timeout":
            return kind, draw.choice([1, 2]), several[0]
        case "cancel":
            return kind, several[0], several[-1]
        case "try":
            return kind, several[0]
        case _:
            return kind, several


def report(seeds: int) -> str:
    """Everything that many random programs did, as text that must not depend on the process."""
    lines = []
    for seed in range(seeds):
        draw = random.Random(seed)
        program = ("try", random_program(draw, 3))
        live, journal = drive(program, chooser(draw))
        assert replay(program, journal) == live
        lines.append(repr(live))
    return "\n".join(lines)


@pytest.mark.parametrize("hash_seed", ["0", "1", "4711"])
def test_another_process_with_another_hash_seed_does_the_same(hash_seed: str) -> None:
    program = """
import logging, sys
from tests.functions.test_loop_replay import report
logging.disable()  # Tasks that fail unseen are logged; nothing else may show.
sys.stdout.write(report(60))
"""
    environment = os.environ | {"PYTHONHASHSEED": hash_seed}
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", program], env=environment, check=True, capture_output=True, text=True
    )
    assert run.stdout == report(60)
    assert run.stderr == ""


def test_a_handwritten_program_gives_exactly_this() -> None:
    """What is fixed here is written into users' journals: a change would block their runs."""
    tree: Program = (
        "sequence",
        [
            ("step", "a"),
            ("try", ("timeout", 5, ("gather", [("step", "b"), ("sequence", [("sleep", 1), ("step", "c")])], False))),
            ("first", [("step", "d"), ("durable", 60)]),
            ("try", ("wait_for", 3, ("step", "e"))),
            ("completed", [("step", "f"), ("step", "g")]),
        ],
    )

    live, journal = drive(tree, lambda _count: (0, False, 0))
    assert [position for _, position, _, _ in journal] == ["1", "3.1", "2", "5.1", "8", "9.1", "10.1"]
    steps, cancelled, timers, dropped = ([commands[part] for commands in live[0]] for part in range(4))
    assert [[position for position, *_ in some] for some in steps] == [
        ["1"],
        ["3.1"],
        [],
        ["5.1"],
        ["8"],
        ["9.1", "10.1"],
        [],
        [],
    ]
    assert [[position for position, *_ in some] for some in timers] == [
        [],
        ["2", "4.1"],
        [],
        ["6.1"],
        ["7"],
        [],
        [],
        [],
    ]
    assert cancelled == [[]] * 8
    assert dropped == [[], [], [], ["4.1"], ["6.1"], ["7"], [], []]
