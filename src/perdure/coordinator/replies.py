"""Replies to callers that depend on the outcome of the commit."""

from __future__ import annotations

from typing import Any

from perdure.coordinator.queued_ops import Item
from perdure.errors import QueueFull, RunNotWaiting
from perdure.kernel.batch import Committed
from perdure.kernel.ops import Send
from perdure.kernel.rules.delivery import Delivered, FromCommit, Queued


def answer(item: Item, reply: Any, committed: Committed) -> None:
    """Give a caller the reply that was decided. For a broadcast, only the commit knows which runs got the event, and
    whether the event's queue had room.
    """
    if not isinstance(reply, (FromCommit, Queued)):
        item.answer(reply)
        return
    # A second event with the same key gets the reply of the first event.
    pending = committed.refused.get(reply.event_id)
    if pending is not None and isinstance(reply, FromCommit) and reply.strict:
        message = f"nobody waits for {reply.name!r} now; leave out strict=True to have it queued"
        item.refuse(RunNotWaiting(message, event=reply.name, run_id=""))
    elif pending is not None:
        name = item.op.event.name if isinstance(item.op, Send) else ""
        item.refuse(
            QueueFull(
                f"{pending} events {name!r} already wait to be read, and that is the limit: "
                "send fewer, let them expire sooner, or read them",
                event=name,
                pending=pending,
            )
        )
    elif isinstance(reply, FromCommit):
        run_ids = committed.sent.get(reply.event_id, ())
        item.answer(Delivered(run_ids) if run_ids else Queued(reply.event_id))
    else:
        item.answer(reply)


__all__ = ["answer"]
