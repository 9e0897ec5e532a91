"""The next step of a run: how a step names it, and which step it is.

A step says to go on, to repeat, or to go to another step. The iteration of a step counts how often it has run in a row.
The name of the next step is stored with the step's SUSPENDED row (see progress_fold.py).
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.progress import Instance
from perdure.models.cooperation.scope import NextStep
from perdure.values.arguments import checked


def go_on() -> NextStep:
    """Go on with the following step, as a step that returns nothing does."""
    return NextStep("go_on")


def repeat() -> NextStep:
    """Run this step again, with `scope.iteration` one higher."""
    return NextStep("repeat")


@checked
def go_to(step: int | str) -> NextStep:
    """Go on with another step, by its number (0 for the first) or its name."""
    return NextStep("go_to", step)


def iteration_of(plan: Plan, before: Sequence[Instance], index: int) -> int:
    """Return how often in a row a step has run before. Its finally between two runs does not break the sequence."""
    is_finally = plan.nodes[index].kind == "finally"
    passes_finally = not is_finally  # only the first finally that is met
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
    """Return the place in the plan of the step that comes next, or the plan's length if there is none.

    A finally comes right after its step. After the finally the run goes to the step that the step named.
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
