"""The first page: throughput, failures, late timers, engines, and counts of things that need attention."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, Final

from msgspec import Struct

from perdure.dashboard.page import Page, Shown, Visit
from perdure.dashboard.plots import Dot, Series, Window, bars, dots
from perdure.dashboard.words import amount, duration
from perdure.engine import AnyClient
from perdure.kernel.status import ACTIVE, Status

_SPANS: Final = {
    "5m": timedelta(minutes=5),
    "15m": timedelta(minutes=15),
    "1h": timedelta(hours=1),
    "24h": timedelta(days=1),
}
_BUCKETS: Final = 48
# How many runs of a status are counted at most: for each bar, and in total. With a million runs, counting took 15 ms of
# CPU in SQLite. In Postgres on a busy machine it took 30 to 100 ms. Before the table was vacuumed, it took up to 250
# ms, because Postgres then reads the row of each run.
_BAR_MAX: Final = 1_000
_STATUS_MAX: Final = 5_000
_TIMED_RUNS_MAX: Final = 100
_COUNTED_MAX: Final = 1_000
_FAILURES: Final = 8
_BAD: Final = (Status.FAILED, Status.ROLLBACK_FAILED)
_GONE: Final = (Status.CANCELLED, Status.ROLLED_BACK)
_KINDS: Final = (
    ("succeeded", "good", (Status.SUCCEEDED,)),
    ("failed", "bad", _BAD),
    ("cancelled or undone", "ended", _GONE),
    ("not ended", "running", tuple(ACTIVE)),
)
_BUSY: Final = (Status.CREATED, Status.RUNNING, Status.CANCELLING, Status.ROLLING_BACK)


class Count(Struct, frozen=True):
    """A number of things. Counting stops at a bound."""

    title: str
    number: int
    target: tuple[str, str]  # the page to which it links, and the filter there
    is_alarming: bool = False
    bound: int = _COUNTED_MAX

    @property
    def text(self) -> str:
        """The number as text."""
        return counted(min(self.number, self.bound), self.number >= self.bound)


def counted(number: float, is_bounded: bool) -> str:
    """Return a number as text. If counting stopped at the bound, it has a plus sign."""
    return f"{number:,.0f}+" if is_bounded else f"{number:,.0f}"


async def show(visit: Visit) -> Shown:
    asked = visit.asked("span")
    span = _SPANS.get(asked, _SPANS["1h"])
    # The plot ends at the end of a bucket and not at this moment. So it changes only when there is something new to
    # show.
    bucket = span / _BUCKETS
    now = datetime.now(UTC)
    end = datetime.fromtimestamp((now.timestamp() // bucket.total_seconds() + 1) * bucket.total_seconds(), UTC)
    window = Window(end - span, end, _BUCKETS)
    failures = (await visit.client.runs.list(status=_BAD, limit=_FAILURES)).runs
    found = await visit.client.runs.get_many([run.id for run in failures])
    engines = [engine for engine in await visit.client.engines.list() if engine.workflows]
    overdue = await visit.client.engines.overdue(limit=_COUNTED_MAX)
    return {
        "title": "Overview",
        "span": asked if asked in _SPANS else "1h",
        "spans": list(_SPANS),
        "counts": await counts(visit.client, len(overdue)),
        "overdue": overdue[:5],
        "throughput": await throughput(visit.client, window),
        "bar_max": _BAR_MAX,
        "lateness": await lateness(visit.client, window),
        "failures": [found[run.id] for run in failures if run.id in found],
        "engines": engines,
        "workflows": sorted({name for engine in engines for name, _ in engine.workflows}),
    }


async def counts(client: AnyClient, overdue: int) -> list[Count]:
    """Return the counts at the top of the page."""

    async def runs(**wanted: Any) -> int:
        return len((await client.runs.list(limit=_COUNTED_MAX, **wanted)).runs)

    [by_status] = await client.runs.tally(statuses=[*ACTIVE, *_BAD], limit=_STATUS_MAX)
    running, waiting, failed = (sum(by_status[one] for one in some) for some in (_BUSY, (Status.SUSPENDED,), _BAD))
    blocked, poison = await runs(hold="blocked"), await runs(hold="poison")
    paused = await runs(hold="paused")
    tasks = len(await client.tasks.list(status="open", kind="human", limit=_COUNTED_MAX))
    letters = len(await client.dead_letters.list(limit=_COUNTED_MAX))
    return [
        Count("running", running, ("runs", "status:running,created,cancelling,rolling_back"), False, _STATUS_MAX),
        Count("waiting", waiting, ("runs", "status:suspended"), False, _STATUS_MAX),
        Count("failed", failed, ("runs", "status:failed,rollback_failed"), failed > 0, _STATUS_MAX),
        Count("blocked", blocked, ("runs", "hold:blocked"), blocked > 0),
        *([Count("poison", poison, ("runs", "hold:poison"), True)] if poison else []),
        Count("paused", paused, ("runs", "hold:paused")),
        Count("overdue", overdue, ("runs", "status:suspended"), overdue > 0),
        Count("open tasks", tasks, ("tasks", "")),
        Count("dead letters", letters, ("dead-letters", ""), letters > 0),
    ]


class Throughput(Struct, frozen=True):
    """How many runs were started, by time and by their current status. `counts` has a text for each kind of status."""

    plot: Any
    counts: list[tuple[str, str]]
    is_bounded: bool


async def throughput(client: AnyClient, window: Window) -> Throughput:
    """Return how many runs were started in each bucket of a window."""
    times = [window.at(number) for number in range(window.buckets + 1)]
    found = await client.runs.tally(times, limit=_BAR_MAX)
    series = [
        Series(title, look, [float(sum(one[status] for status in kind)) for one in found])
        for title, look, kind in _KINDS
    ]
    bounded = [any(one[status] >= _BAR_MAX for one in found for status in kind) for _, _, kind in _KINDS]
    counts = [
        (one.look, f"{counted(sum(one.values), is_bounded)} {one.title}")
        for one, is_bounded in zip(series, bounded, strict=True)
    ]
    title = f"Runs that were started, by time: {', '.join(text for _, text in counts)}"
    return Throughput(bars(window, series, title), counts, any(bounded))


class Lateness(Struct, frozen=True):
    """How late timers have fired."""

    plot: Any
    text: str


async def lateness(client: AnyClient, window: Window) -> Lateness:
    """Return how late the timers of the newest runs have fired. This reads the journals of these runs, so their number
    is limited."""
    runs = (await client.runs.list(created_from=window.begin, limit=_TIMED_RUNS_MAX)).runs
    fired = await client.runs.timers([run.id for run in runs])
    found = [
        Dot(one.fired_at, late, f"{one.name} of {one.run_id}: {duration(late)} late")
        for one in fired
        if window.begin <= one.fired_at < window.end
        for late in [(one.fired_at - one.due_at).total_seconds()]
    ]
    is_sample = len(runs) == _TIMED_RUNS_MAX
    sample, rest = (f" of the newest {_TIMED_RUNS_MAX} runs", "; others are not read") if is_sample else ("", "")
    values = sorted(dot.value for dot in found)
    if not values:
        return Lateness(None, f"no timer{sample} has fired{rest}")
    middle, worst = values[len(values) // 2], values[-1]
    timers = f"{amount(len(values), 'timer')}{sample}"
    text = f"{timers}: {duration(middle)} late in the middle, {duration(worst)} at worst{rest}"
    return Lateness(dots(window, found, f"How late timers fired: {text}", "late"), text)


page = Page(name="overview", path="", title="Overview", show=show)
