"""Views: stored rows as plain values for people, with decoded payloads. One noun per module.

A view never fails because a stored value is damaged. In the place of that value, it shows what is damaged.
"""

from __future__ import annotations

from perdure.views.dead_letters import DeadLetterView, dead_letter_view
from perdure.views.engines import EngineView, engine_view
from perdure.views.events import EventView, event_view
from perdure.views.hierarchies import HierarchyEventView, HierarchyView, hierarchy_event_view
from perdure.views.histories import AuditView, EntryView, History, audit_view, entry_view, message_event_view
from perdure.views.runs import Page, RunTree, RunView, from_cursor, run_view, to_cursor
from perdure.views.streams import StreamItemView, stream_item_view
from perdure.views.values import Unreadable, plain_value, shown_failure, shown_time, shown_value, unreadable

__all__ = [
    "AuditView",
    "DeadLetterView",
    "EngineView",
    "EntryView",
    "EventView",
    "HierarchyEventView",
    "HierarchyView",
    "History",
    "Page",
    "RunTree",
    "RunView",
    "StreamItemView",
    "Unreadable",
    "audit_view",
    "dead_letter_view",
    "engine_view",
    "entry_view",
    "event_view",
    "from_cursor",
    "hierarchy_event_view",
    "message_event_view",
    "plain_value",
    "run_view",
    "shown_failure",
    "shown_time",
    "shown_value",
    "stream_item_view",
    "to_cursor",
    "unreadable",
]
