"""Failures of children, and how a run reacts to them once all its children have ended.

The step that emitted the message may have a handler of child failures. If the handler returns, the failures are
handled. Then the run waits for the messages that the handler has emitted. If their handlers fail, it calls the handler
of child failures again. Without a handler, or if the handler raises, the run rolls back (rollback.py). If the run
already rolls back, its rollback fails. executor.py calls the handler.
"""

from __future__ import annotations

from collections.abc import Sequence

from perdure.models.cooperation.children import Child
from perdure.models.cooperation.define import Plan
from perdure.models.cooperation.failures import CHILD_ROLLBACK_FAILED, CHILD_ROLLED_BACK, Failure
from perdure.models.cooperation.message_events import State
from perdure.models.cooperation.moves import Handle, OperationRun
from perdure.models.cooperation.progress import Instance, Progress, Window


def failures_of_children(run: OperationRun, window: Window) -> list[tuple[Failure, bool]]:
    """Return the failures of the window's children, in the order of emission. Each failure has a flag, which is True if
    the child could not roll back.
    """
    found: list[tuple[Failure, bool]] = []
    if not (window.emitted or window.undone):
        return found
    undone = frozenset(window.undone)
    for child in run.children.of(window.messages):
        left_undone = child.state is State.ROLLBACK_FAILED
        if left_undone or (child.state is State.ROLLED_BACK and child.message_id not in undone):
            found.append((child.failure or _unknown(child), left_undone))
    return found


def _unknown(child: Child) -> Failure:
    return Failure(type=CHILD_ROLLED_BACK, message=f"{child.handler!r} gave no reason")


def child_failure(step: str, source: str, failed: Sequence[tuple[Failure, bool]]) -> Failure:
    """Return a parent's failure, made from the failures of its children. A flag says whether the child could not roll
    back.

    The failures of children that could not roll back come first, because the work of these children is not undone.
    Apart from that, the failures are in the order of the children.
    """
    worst = [failure for failure, is_left_undone in failed if is_left_undone]
    rest = [failure for failure, is_left_undone in failed if not is_left_undone]
    what = f"{len(worst)} could not roll back" if worst else "all of them rolled back"
    return Failure(
        type=CHILD_ROLLBACK_FAILED if worst else CHILD_ROLLED_BACK,
        message=f"{len(failed)} handler{'s' * (len(failed) > 1)} of messages from step {step!r} failed: {what}",
        source=source,
        causes=(*worst, *rest),
    )


def handler_call(
    plan: Plan, progress: Progress, instance: Instance, window: Window, failure: Failure, *, rolling_back: bool = False
) -> Handle | None:
    """Return the call of the failure handler of the step whose children failed. Return None if the step has no
    handler.
    """
    if plan.nodes[instance.index].handler is None:
        return None
    return Handle(
        index=instance.index,
        name=instance.name,
        iteration=instance.iteration,
        attempt=window.calls + 1,
        failure=failure,
        context=progress.context,
        rolling_back=rolling_back,
        text=window.step if rolling_back else "",
        next_step=None if rolling_back else instance.next_step,
    )
