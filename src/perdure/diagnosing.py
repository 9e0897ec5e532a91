"""The engine's and the client's verbs for finding out why something does not go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

import msgspec
from msgspec import Struct

from perdure.arguments import Duration, checked, span_of
from perdure.errors import RunNotFound
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.checks import checked_limit, checked_text, checked_texts, checked_times
from perdure.models.functions.runner import Fired
from perdure.ports import Clock, Offer, Store
from perdure.views import RunView, run_view, shown_time

_NEVER: Final = 2**62
_TALLY_MAX: Final = 10_000_000


class WaitView(Struct, frozen=True, kw_only=True):
    """Something that a run waits for: a time (`timer`), the next attempt of a step (`retry`), a step that runs and has
    sent a heartbeat (`beat`), an `event`, the end of a `run`, or an engine that has its `code`. Those at one position
    are an OR. The `name` of a wait for code says what is missing: no living engine has it."""

    position: str
    kind: str
    name: str
    where: Mapping[str, Any]
    target: str | None
    due_at: datetime | None
    attempts: int
    since: datetime | None


class OverdueView(Struct, frozen=True, kw_only=True):
    """A run that nobody has, and that should have gone on, or been ended by its `deadline`, at this time."""

    run_id: str
    due_at: datetime
    deadline: bool


class TimerView(Struct, frozen=True, kw_only=True):
    """A timer that has fired: when it was due, and when its run went on."""

    run_id: str
    name: str
    due_at: datetime
    fired_at: datetime


@checked
class Diagnosing:
    """What whoever has these parts can find out."""

    _patient_store: Store
    _clock: Clock

    def _check_open(self, *, to_start: bool = False) -> None:
        raise NotImplementedError

    async def _with_stranded(self, views: list[RunView]) -> list[RunView]:
        raise NotImplementedError

    async def waits(self, id: str) -> list[WaitView]:
        """What a run waits for; nothing while its code or a step runs. Raises RunNotFound."""
        self._check_open()
        found = (await self._patient_store.journals([checked_text(id, "a run's id")])).get(id)
        if found is None:
            raise RunNotFound(id)
        code: list[WaitView] = []
        run = (await self._patient_store.load([id]))[id].run
        if run.status not in (Status.CREATED, *FINISHED):
            (view,) = await self._with_stranded([run_view(run)])
            code = [
                WaitView(
                    position="", kind="code", name=stranded, where={}, target=None, due_at=None, attempts=0, since=None
                )
                for stranded in (view.stranded,)
                if stranded is not None
            ]
        return code + [
            WaitView(
                position=wait.position,
                kind=wait.kind,
                name=wait.name,
                where={name: msgspec.json.decode(value) for name, value in wait.where},
                target=wait.target,
                due_at=shown_time(wait.due_at) if wait.due_at else None,
                attempts=wait.attempts,
                since=shown_time(wait.since) if wait.since else None,
            )
            for wait in found.waits
        ]

    async def timers(self, ids: Sequence[str]) -> list[TimerView]:
        """The timers of these runs that have fired, in no order; of runs that are not there none. Reads the journals:
        ask for some hundred runs at most."""
        self._check_open()
        wanted = checked_texts(ids, "ids")
        found = await self._patient_store.journals(wanted) if wanted else {}
        return [
            TimerView(run_id=run_id, name=entry.name, due_at=shown_time(fired.due), fired_at=shown_time(fired.fired))
            for run_id, journal in found.items()
            for entry in journal.entries
            if entry.kind == "timer" and entry.value is not None
            for fired in [msgspec.json.decode(entry.value, type=Fired)]
        ]

    async def tally(
        self, times: Sequence[datetime] = (), *, statuses: Sequence[str] = tuple(Status), limit: int = 1_000
    ) -> list[dict[str, int]]:
        """How many runs there are by how they stand now, of those that were started between each two of these times, or
        of all if there are none. Of each status up to `limit` are counted, each time."""
        self._check_open()
        at = checked_times(times, "times") or [0, _NEVER]
        statuses = checked_texts(statuses, "statuses")
        checked_limit(limit, _TALLY_MAX)
        spans = [*pairwise(at)]
        cells = [(str(status), begin, end) for begin, end in spans for status in statuses]
        counts = iter(await self._patient_store.tally(cells, limit))
        return [{str(status): next(counts) for status in statuses} for _ in spans]

    async def overdue(self, *, by: Duration = 5, limit: int = 100) -> list[OverdueView]:
        """Runs of workflows that some engine has had, that nobody has, and whose time came more than `by` ago; the
        earliest first. Engines that are alive and have their code would have taken them."""
        self._check_open()
        checked_limit(limit)
        pairs = {pair for engine in await self._patient_store.engines() for pair in engine.workflows}
        # Which kind of code these are is not known; the version of an operation is its topic.
        models = ("function", "graph", "operation")
        offers = [Offer(name, version, "", model) for name, version in sorted(pairs) for model in models]
        before = max(self._clock.now() - span_of(by, "by") // timedelta(microseconds=1), 0)
        found = await self._patient_store.ripe(offers=offers, before=before, limit=limit) if offers else []
        return [OverdueView(run_id=one.run_id, due_at=shown_time(one.due_at), deadline=one.deadline) for one in found]


__all__ = ["Diagnosing", "OverdueView", "TimerView", "WaitView"]
