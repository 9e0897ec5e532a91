"""The first page: how much goes through, what fails, how late timers are, who is at work, what wants attention."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from perdure.client import Client
from perdure.dashboard.page import Page, Shown, Visit
from perdure.dashboard.plots import Dot, Series, Window, bars, dots
from perdure.dashboard.words import amount, duration
from perdure.kernel.status import ACTIVE, FINISHED, Status
from perdure.views import RunView

_SPANS: Final = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
}
_BUCKETS: Final = 48
_RUNS_MAX: Final = 1_000
_TIMED_RUNS_MAX: Final = 100
_COUNTED_MAX: Final = 1_000
_FAILURES: Final = 8
_BAD: Final = (Status.FAILED, Status.ROLLBACK_FAILED)


class Count(Struct, frozen=True):
    """How many there are of something, up to a bound."""

    title: str
    number: int
    target: tuple[str, str]  # the page, and what it is asked for
    is_alarming: bool = False

    @property
    def text(self) -> str:
        return f"{self.number:,}+" if self.number >= _COUNTED_MAX else f"{self.number:,}"


async def show(visit: Visit) -> Shown:
    asked = visit.asked("span")
    span = _SPANS.get(asked, _SPANS["1h"])
    # A bucket's end, not this very moment: a picture changes when there is something new in it.
    bucket = span / _BUCKETS
    now = datetime.now(UTC)
    end = datetime.fromtimestamp((now.timestamp() // bucket.total_seconds() + 1) * bucket.total_seconds(), UTC)
    window = Window(end - span, end, _BUCKETS)
    recent = (await visit.client.runs(created_from=window.begin, limit=_RUNS_MAX)).runs
    failures = (await visit.client.runs(status=_BAD, limit=_FAILURES)).runs
    found = await visit.client.get_many([run.id for run in failures])
    engines = [engine for engine in await visit.client.engines() if engine.workflows]
    overdue = await visit.client.overdue(limit=_COUNTED_MAX)
    return {
        "title": "Overview",
        "span": asked if asked in _SPANS else "1h",
        "spans": list(_SPANS),
        "counts": await _counts(visit.client, len(overdue)),
        "overdue": overdue[:5],
        "throughput": _throughput(window, recent),
        "ended": Counter(run.status for run in recent if run.status in FINISHED),
        "recent": len(recent),
        "is_cut": len(recent) == _RUNS_MAX,
        "lateness": await _lateness(visit.client, window, recent),
        "failures": [found[run.id] for run in failures if run.id in found],
        "engines": engines,
        "workflows": sorted({name for engine in engines for name, _ in engine.workflows}),
    }


async def _counts(client: Client, overdue: int) -> list[Count]:
    async def runs(**wanted: Any) -> int:
        return len((await client.runs(limit=_COUNTED_MAX, **wanted)).runs)

    running = await runs(status=[status for status in ACTIVE if status != Status.SUSPENDED])
    waiting = await runs(status=Status.SUSPENDED)
    failed = await runs(status=_BAD)
    blocked, poison = await runs(hold="blocked"), await runs(hold="poison")
    paused = await runs(hold="paused")
    tasks = len(await client.tasks(status="open", kind="human", limit=_COUNTED_MAX))
    letters = len(await client.dead_letters(limit=_COUNTED_MAX))
    return [
        Count("running", running, ("runs", "status:running,created,cancelling,rolling_back")),
        Count("waiting", waiting, ("runs", "status:suspended")),
        Count("failed", failed, ("runs", "status:failed,rollback_failed"), failed > 0),
        Count("blocked", blocked, ("runs", "hold:blocked"), blocked > 0),
        *([Count("poison", poison, ("runs", "hold:poison"), True)] if poison else []),
        Count("paused", paused, ("runs", "hold:paused")),
        Count("overdue", overdue, ("runs", "status:suspended"), overdue > 0),
        Count("open tasks", tasks, ("tasks", "")),
        Count("dead letters", letters, ("events", ""), letters > 0),
    ]


def _throughput(window: Window, runs: Sequence[RunView]) -> Any:
    good, bad, other = ([0.0] * window.buckets for _ in range(3))
    for run in runs:
        number = window.index(run.completed_at) if run.completed_at is not None else None
        if number is not None:
            values = good if run.status == Status.SUCCEEDED else bad if run.status in _BAD else other
            values[number] += 1
    series = [Series("succeeded", "good", good), Series("failed", "bad", bad), Series("other ends", "ended", other)]
    told = f"Runs that ended, by time: {sum(good):g} succeeded, {sum(bad):g} failed, {sum(other):g} otherwise"
    return bars(window, series, told)


class Lateness(Struct, frozen=True):
    """How late timers were that have fired."""

    plot: Any
    text: str


async def _lateness(client: Client, window: Window, runs: Sequence[RunView]) -> Lateness:
    fired = await client.timers([run.id for run in runs[:_TIMED_RUNS_MAX]])
    found = [
        Dot(one.fired_at, late, f"{one.name} of {one.run_id}: {duration(late)} late")
        for one in fired
        if window.begin <= one.fired_at < window.end
        for late in [(one.fired_at - one.due_at).total_seconds()]
    ]
    values = sorted(dot.value for dot in found)
    if not values:
        return Lateness(None, "no timer has fired")
    middle, worst = values[len(values) // 2], values[-1]
    text = f"{amount(len(values), 'timer')}: {duration(middle)} late in the middle, {duration(worst)} at worst"
    return Lateness(dots(window, found, f"How late timers fired: {text}", "late"), text)


page = Page(name="overview", path="", title="Overview", show=show)
