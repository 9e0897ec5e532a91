"""The rules: `decide(run, op, me) -> Decision`. They are pure. The coordinator commits the whole decision or nothing of
it.

If the op is misuse, the rule raises. An op that has become pointless, such as a late result or a second cancel, changes
nothing. Its reply says so. Each kind of op has one rule. The rules are in modules of `rules/`, which are named after
what the op changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from perdure.kernel import ops
from perdure.kernel.decision import NO_INPUT, Decision, DecisionInput
from perdure.kernel.rules import (
    access,
    advances,
    artifacts,
    cancellation,
    deadlines,
    delivery,
    handler_registry,
    holds,
    manual_retry,
    operations,
    ownership,
    records,
    starts,
    streams,
    tasks,
    updates,
)
from perdure.kernel.runs import Run


def decide(run: Run | None, op: ops.Op, me: str, inputs: DecisionInput = NO_INPUT) -> Decision:
    """Return the decision of engine `me` about `op` for `run`. `run` is None if the run does not exist. Raises a
    PerdureError if the op is refused.
    """
    return RULES[type(op)](run, op, me, inputs)


RULES: dict[type, Callable[[Run | None, Any, str, DecisionInput], Decision]] = {
    ops.Start: starts.start,
    ops.Advance: advances.advance,
    ops.Append: streams.append,
    ops.Deposit: artifacts.deposit,
    ops.Answer: tasks.answer,
    ops.ReleaseTask: tasks.release,
    ops.PutRecord: records.put,
    ops.PutToken: access.put_token,
    ops.PutSession: access.put_session,
    ops.EndSession: access.end_session,
    ops.RegisterHandlers: handler_registry.register,
    ops.RetireHandlers: handler_registry.retire,
    ops.Take: ownership.take,
    ops.Count: ownership.count,
    ops.Release: ownership.release,
    ops.Cancel: cancellation.cancel,
    ops.Expire: deadlines.expire,
    ops.Retry: manual_retry.retry,
    ops.Update: updates.update,
    ops.SetHold: holds.set_hold,
    ops.Resume: holds.resume,
    ops.Send: delivery.send,
    ops.Spread: delivery.spread,
    ops.Forget: delivery.forget,
    ops.Due: delivery.due,
    ops.Wake: delivery.wake,
    ops.CheckFence: delivery.check_fence,
    ops.Emit: operations.emit,
    ops.Cooperate: operations.cooperate,
    ops.Notify: cancellation.notify,
    ops.Settle: operations.settle,
    ops.CancelScope: operations.cancel_scope,
    ops.NotifyMembers: operations.notify_members,
    ops.UndoScope: operations.undo_scope,
}
