"""A cache of events, for readers that read the events of a run page by page. With the cache, a new page does not need
another replay of the journal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from perdure.kernel.runs import Run
from perdure.kernel.status import FINISHED
from perdure.models.graphs.token_views import GraphEvent, GraphEvents

_RUNS_MAX: Final = 4

Key = tuple[object, ...]


class _Kept(Struct, frozen=True, gc=False):
    """The events of a run, with the run's version and the number of its journal entries when the events were
    computed.
    """

    events: Sequence[GraphEvent]
    version: int
    entries: int


def key_of(run: Run, digest: str) -> Key:
    """Return the key of a run's events. It has everything that the events depend on, except the run's progress.
    `digest` is the digest of the graph, if the reader has passed a graph.
    """
    return run.id, run.attempt, run.origin, run.workflow, run.workflow_version, digest


class EventPages:
    """The events of the runs that were read last. Events are numbered and never change. So every page except the last
    page stays valid while the run goes on. The events of a run that has ended are kept until the last page is read.
    """

    def __init__(self) -> None:
        self._kept: dict[Key, _Kept] = {}

    def page(self, key: Key, run: Run, after: int, limit: int, entries: int | None = None) -> GraphEvents | None:
        """Return a page, or None if a replay is needed. `entries` is the number of journal entries, or None if it is
        not known.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        has_more = after + limit < len(kept.events)
        is_over = run.status in FINISHED
        if not has_more and (kept.version != run.version or (not is_over and kept.entries != entries)):
            self._kept[key] = kept  # The reader may still ask for another page.
            return None
        if has_more or not is_over:
            self._kept[key] = kept
        return page_of(run.id, kept.events, after, limit)

    def keep(self, key: Key, run: Run, events: Sequence[GraphEvent], entries: int) -> None:
        """Keep the events of a run, and forget the events of the run that was read longest ago."""
        self._kept.pop(key, None)
        self._kept[key] = _Kept(events, run.version, entries)
        while len(self._kept) > _RUNS_MAX:
            del self._kept[next(iter(self._kept))]


def page_of(run_id: str, events: Sequence[GraphEvent], after: int, limit: int) -> GraphEvents:
    """Return the events after number `after`."""
    found = events[after : after + limit]
    has_more = after + limit < len(events)
    return GraphEvents(run_id=run_id, events=found, cursor=found[-1].seq if found and has_more else None)


__all__ = ["EventPages", "key_of", "page_of"]
