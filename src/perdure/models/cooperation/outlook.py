"""Which waiting runs can go on with the news of one batch: asked while the batch is decided, changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from perdure.coordinator.decisions import Outlook
from perdure.kernel.ops import Tell
from perdure.kernel.rules.operations import NEWS
from perdure.models.cooperation.children import Foreseen
from perdure.models.cooperation.drafter import Drafting
from perdure.models.cooperation.live import Code, LiveOperation
from perdure.models.cooperation.moves import Wait
from perdure.models.cooperation.rules import next_move
from perdure.ports import Clock


class HostOutlook(Outlook):
    """Adds up the news of a batch, run by run: each piece of news is read once, however many there are."""

    def __init__(self, live: Mapping[str, LiveOperation], drafting: Drafting, clock: Clock) -> None:
        self._live = live
        self._drafting = drafting
        self._clock = clock
        self._children: dict[str, Foreseen] = {}
        self._ready: set[str] = set()

    def is_ready(self, tell: Tell) -> bool:
        run_id = tell.run_id
        if run_id not in self._ready and self._goes_on(run_id, tell):
            self._ready.add(run_id)
        return run_id in self._ready

    def _goes_on(self, run_id: str, tell: Tell) -> bool:
        """Whether the run can go on, or would wait for another time."""
        live = self._live.get(run_id)
        if live is None or live.is_busy or live.is_stale or tell.kind != NEWS or not tell.about:
            return True
        children = self._children.get(run_id)
        if children is None:
            children = self._children[run_id] = Foreseen(live.children)
        news = self._drafting.read_news(tell.about)
        child = children.get(news.run_id)
        if child is not None:
            children.put(child.become(news.state, news.failure))
        now = self._clock.now()
        move = next_move(live.plan, live.view(now, children), live.progress)
        if isinstance(move, Code):
            return not live.is_pausing(move, now)
        return not isinstance(move, Wait) or move.until != live.until
