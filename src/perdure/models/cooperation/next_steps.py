"""The next step of a run: how a step names it, and how it is found.

A step can go on, repeat itself, or go to another step. The iteration of a step counts how often it has run in a row.
The SUSPENDED row of a step stores the name of the next step (see progress_fold.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.progress import Instance
from perdure.models.cooperation.scope import NextStep
from perdure.values.arguments import checked


def go_on() -> NextStep:
    """Go on with the following step. A step that returns nothing does the same."""
    return NextStep("go_on")


def repeat() -> NextStep:
    """Run this step again. `scope.iteration` is then one higher."""
    return NextStep("repeat")


@checked
def go_to(step: int | str) -> NextStep:
    """Go on with another step. Name it by its number (0 is the first step) or by its name."""
    return NextStep("go_to", step)


def iteration_of(plan: Plan, before: Sequence[Instance], index: int) -> int:
    """Return how many times in a row a step has run before. A finally function between two runs of the step does not
    break the sequence.
    """
    is_finally = plan.nodes[index].kind == "finally"
    passes_finally = not is_finally  # only the first finally function counts
    for one in reversed(before):
        if one.call is not None:
            continue
        if passes_finally and plan.nodes[one.index].kind == "finally":
            passes_finally = False
            continue
        if one.index == index:
            return one.iteration + 1
        return one.iteration if is_finally else 0
    return 0


def following(plan: Plan, instances: Sequence[Instance]) -> int:
    """Return the index of the next step in the plan. Return the plan's length if there is no next step.

    A finally function comes right after its step. After the finally function, the run goes to the step that its step
    has named.
    """
    if not instances:
        return 0
    last = instances[-1]
    node = plan.nodes[last.index]
    if node.cleanup is not None:
        return last.index + 1
    if node.kind == "finally":
        own = next(one for one in reversed(instances) if one.index == last.index - 1)
        return last.index + 1 if own.next_step is None else own.next_step
    return last.index + 1 if last.next_step is None else last.next_step
