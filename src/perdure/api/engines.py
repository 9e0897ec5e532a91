"""`engine.engines`: the engines that share the store, what they have left undone, and what this one has done."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from perdure.coordinator.notices import Stats
from perdure.ports import Offer
from perdure.session import Session
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.checks import checked_limit
from perdure.views import EngineView, engine_view, shown_time


class OverdueView(Struct, frozen=True, kw_only=True):
    """A run that no engine has, and that should have gone on, or been ended by its `deadline`, at this time."""

    run_id: str
    due_at: datetime
    deadline: bool


EngineViews = list[EngineView]  # `list` means something else inside the class.
OverdueViews = list[OverdueView]


@checked(constructor=False)
class Engines:
    """The engines and clients that share the store."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(self) -> EngineViews:
        """Return the engines and clients that are alive, the oldest first."""
        self._session.check_open()
        return [engine_view(engine) for engine in await self._session.caller_store.engines(living=True)]

    async def overdue(self, *, by: Duration = 5, limit: int = 100) -> OverdueViews:
        """Return runs that no engine has and whose time came more than `by` ago, the earliest first. Only workflows
        that some engine has had are looked at. Engines that are alive and have the code would have taken these runs."""
        session = self._session
        session.check_open()
        checked_limit(limit)
        pairs = {pair for engine in await session.caller_store.engines() for pair in engine.workflows}
        # Which kind of code these are is not known; the version of an operation is its topic.
        models = ("function", "graph", "operation")
        offers = [Offer(name, version, "", model) for name, version in sorted(pairs) for model in models]
        before = max(session.clock.now() - span_of(by, "by") // timedelta(microseconds=1), 0)
        found = await session.caller_store.ripe(offers=offers, before=before, limit=limit) if offers else []
        return [OverdueView(run_id=one.run_id, due_at=shown_time(one.due_at), deadline=one.deadline) for one in found]

    async def mark_dead(self) -> int:
        """Mark engines without a sign of life as dead; return how many. Engines and clients do that regularly by
        themselves. Raises StoreError."""
        self._session.check_open()
        return len(await self._session.caller_store.mark_dead_engines())

    @property
    def stats(self) -> Stats:
        """What the coordinator of this process has done so far."""
        return self._session.coordinator.stats


__all__ = ["Engines", "OverdueView"]
