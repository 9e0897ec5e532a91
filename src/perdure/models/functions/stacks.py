"""Stacks of suspended tasks, as texts for people. Each task has one stack, which begins with the outermost call."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Iterator
from types import FrameType
from typing import Any

from perdure.models.functions.loop_tasks import StepFuture, TimerFuture, WorkflowTask


def format_stacks(tasks: Iterable[WorkflowTask]) -> str:
    return "\n".join(_format_stack(task) for task in tasks)


def _format_stack(task: WorkflowTask) -> str:
    lines = [f"task {task.get_name()}{_waiting_for(task)}:\n"]
    for _, frame in suspended(task.get_coro()):
        code = frame.f_code
        lines += traceback.format_list([traceback.FrameSummary(code.co_filename, frame.f_lineno, code.co_name)])
    return "".join(lines)


def _waiting_for(task: WorkflowTask) -> str:
    waiter = getattr(task, "_fut_waiter", None)
    if isinstance(waiter, StepFuture):
        return f", waits for step {waiter.request.name} at {waiter.request.position}"
    if isinstance(waiter, TimerFuture):
        return f", waits for {waiter.request.name} at {waiter.request.position}"
    if isinstance(waiter, WorkflowTask):
        return f", waits for task {waiter.get_name()}"
    return ""


def suspended(awaited: Any) -> Iterator[tuple[Any, FrameType]]:
    """Yield the coroutines, async generators and generators in a chain of awaits, with their frames."""
    while awaited is not None:
        for frame_name, next_name in (("cr_frame", "cr_await"), ("ag_frame", "ag_await"), ("gi_frame", "gi_yieldfrom")):
            if (frame := getattr(awaited, frame_name, None)) is not None:
                yield awaited, frame
                awaited = getattr(awaited, next_name)
                break
        else:
            return
