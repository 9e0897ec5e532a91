"""Hierarchies of operations: their runs as a tree, and the events of each message."""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from perdure.kernel.cooperation import MessageEventRow
from perdure.kernel.failures import Failure
from perdure.ports import Codec
from perdure.views.histories import message_event_view
from perdure.views.runs import RunTree


class HierarchyEventView(Struct, frozen=True, kw_only=True):
    """An event of one message in a hierarchy of operations.

    `scope` is the id of the run or the root that the event belongs to.
    """

    scope: str
    seq: int
    topic: str
    message_id: str
    kind: str
    name: str
    failure: Failure | None
    at: datetime


class HierarchyView(Struct, frozen=True, kw_only=True):
    """A hierarchy of operations: its runs as a tree, and the events of its messages, oldest first."""

    tree: RunTree
    events: list[HierarchyEventView]


def hierarchy_event_view(row: MessageEventRow, topic: str, codec: Codec) -> HierarchyEventView:
    """Return an event of a message of this topic."""
    entry = message_event_view(row, codec)
    return HierarchyEventView(
        scope=row.scope,
        seq=row.seq,
        topic=topic,
        message_id=row.message_id,
        kind=entry.kind,
        name=entry.name,
        failure=entry.failure,
        at=entry.at,
    )


__all__ = ["HierarchyEventView", "HierarchyView", "hierarchy_event_view"]
