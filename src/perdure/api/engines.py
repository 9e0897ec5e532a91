"""`engine.engines`: the engines that share the store, the runs that are overdue, and the counts of this process."""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from perdure.coordinator.call_spans import whole_calls
from perdure.coordinator.notices import Stats
from perdure.ports import Offer
from perdure.session import Session
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.checks import checked_limit
from perdure.views import EngineView, engine_view, shown_time


class OverdueView(Struct, frozen=True, kw_only=True):
    """A run that has been due since `due_at`, and that no engine has. The run is due to continue. If `deadline` is
    true, it is due to fail.
    """

    run_id: str
    due_at: datetime
    deadline: bool


EngineViews = list[EngineView]  # inside the class, the name `list` means the method
OverdueViews = list[OverdueView]


@whole_calls()
@checked(constructor=False)
class Engines:
    """The engines and clients that share the store."""

    def __init__(self, session: Session) -> None:
        self._session = session

    async def list(self) -> EngineViews:
        """Return the engines and clients that are alive, oldest first."""
        self._session.check_open()
        return [engine_view(engine) for engine in await self._session.caller_store.engines(living=True)]

    async def overdue(self, *, by: Duration = 5, limit: int = 100) -> OverdueViews:
        """Return runs that no engine has and that were due more than `by` ago, the earliest first.

        These runs are stuck: a live engine with their code would have taken them. Only workflows that some engine has
        registered are checked.
        """
        session = self._session
        session.check_open()
        checked_limit(limit)
        pairs = {pair for engine in await session.caller_store.engines() for pair in engine.workflows}
        # The store does not say which model a workflow has, so all models are queried. The version of an operation is
        # its topic.
        models = ("function", "graph", "operation")
        offers = [Offer(name, version, "", model) for name, version in sorted(pairs) for model in models]
        before = max(session.clock.now() - span_of(by, "by") // timedelta(microseconds=1), 0)
        found = await session.caller_store.due_runs(offers=offers, before=before, limit=limit) if offers else []
        return [OverdueView(run_id=one.run_id, due_at=shown_time(one.due_at), deadline=one.deadline) for one in found]

    async def mark_dead(self) -> int:
        """Mark engines without a recent sign of life as dead, and return how many were marked.

        Engines and clients do this regularly by themselves. Raises StoreError.
        """
        self._session.check_open()
        return len(await self._session.caller_store.mark_dead_engines())

    @property
    def stats(self) -> Stats:
        """Return counts of the work that the coordinator of this process has done since it started."""
        return self._session.coordinator.stats


__all__ = ["Engines", "OverdueView"]
