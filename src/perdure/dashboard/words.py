"""Data as words: durations, statuses, the waits of a run, and the reasons why a run does not continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

from msgspec import Struct

from perdure.api.waits import WaitView
from perdure.kernel.status import FINISHED, Status
from perdure.views import RunView

_UNITS: Final = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


class Look(Struct, frozen=True):
    """The look of a status. It has a class of the stylesheet, and a sign for people who cannot tell the colours
    apart.
    """

    kind: str
    sign: str


_LOOKS: Final[Mapping[str, Look]] = {
    Status.CREATED: Look("new", "○"),
    Status.RUNNING: Look("running", "●"),
    Status.SUSPENDED: Look("waiting", "◐"),
    Status.CANCELLING: Look("undoing", "↺"),
    Status.ROLLING_BACK: Look("undoing", "↺"),
    Status.SUCCEEDED: Look("good", "✓"),
    Status.FAILED: Look("bad", "✗"),
    Status.CANCELLED: Look("ended", "–"),
    Status.ROLLED_BACK: Look("undone", "↩"),
    Status.ROLLBACK_FAILED: Look("bad", "!"),
    "open": Look("waiting", "◐"),
    "claimed": Look("running", "●"),
    "answered": Look("good", "✓"),
}
_OTHER: Final = Look("ended", "·")


def status_of(status: str) -> Look:
    """Return the look of a run's or a task's status."""
    return _LOOKS.get(status, _OTHER)


def words_of(status: str) -> str:
    """Return a status as words."""
    return status.replace("_", " ")


def duration(span: timedelta | float) -> str:
    """Return a length of time in one or two units."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else span
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 0.000_95:
        return f"{seconds * 1_000_000:.0f} µs"
    if seconds < 0.999_5:
        return f"{seconds * 1_000:.0f} ms" if seconds >= 0.009_5 else f"{seconds * 1_000:.1f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s" if seconds < 9.95 else f"{seconds:.0f} s"
    whole = round(seconds)
    for number, (size, unit) in enumerate(_UNITS):
        if whole >= size:
            count, rest = divmod(whole, size)
            smaller, small_unit = _UNITS[number + 1]
            more = rest // smaller
            return f"{count} {unit} {more} {small_unit}" if more else f"{count} {unit}"
    return "0 s"


def amount(number: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: 1 run, 2 runs."""
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"


def bytes_of(size: int) -> str:
    """Return a number of bytes in the unit that fits its size."""
    value = float(size)
    for unit in ("B", "kB", "MB"):
        if value < 1_000:
            return f"{value:.0f} {unit}" if unit == "B" or value >= 100 else f"{value:.1f} {unit}"
        value /= 1_000
    return f"{value:.1f} GB"


# ---------------------------------------------------------------------------------------------------------------------
# Why a run waits


class Reason(Struct, frozen=True, kw_only=True):
    """A reason why a run waits, in words. `run` or `event` names the run or the event that the run waits for. `due_at`
    is the time at which the wait ends by itself.
    """

    text: str
    since: datetime | None = None
    due_at: datetime | None = None
    run: str | None = None
    event: str | None = None
    is_awaited: bool = False
    is_alarming: bool = False


def reasons(run: RunView, waits: Sequence[WaitView], now: datetime) -> list[list[Reason]]:
    """Return the reasons why a run does not continue. The run waits for all inner lists of the result. From each inner
    list, one item is enough.
    """
    if run.status in FINISHED:
        return []
    found: list[list[Reason]] = []
    if run.hold is not None:
        found.append([Reason(text=_held(run.hold.kind, run.hold.reason), is_alarming=run.hold.kind != "paused")])
    if run.stranded is not None:
        found.append([_stranded(run, run.stranded)])
    by_position: dict[str, list[Reason]] = {}
    for wait in waits:
        by_position.setdefault(wait.position, []).append(_reason(wait, now))
    found += by_position.values()
    if not found:
        found.append([Reason(text=_busy(run), since=run.updated_at)])
    return found


def _held(kind: str, reason: str) -> str:
    if kind == "paused":
        return f"it is paused: {reason}" if reason != "paused" else "it is paused until somebody resumes it"
    if kind == "poison":
        return f"it is held, because it kept killing its process: {reason}"
    return f"its code does not fit its journal: {reason}"


def _stranded(run: RunView, why: str) -> Reason:
    if run.model == "operation" and run.status in (Status.CREATED, Status.ROLLING_BACK):
        # Perhaps this handler is not meant to be the code of an engine.
        does = "does" if run.status == Status.CREATED else "undoes"
        return Reason(text=f"{why}: somebody outside {does} it and says so here, or you start a worker that has it")
    return Reason(text=f"{why}: start a worker that has this workflow, and the run continues", is_alarming=True)


def _busy(run: RunView) -> str:
    match run.status:
        case "created":
            return "no engine has begun it yet"
        case "suspended":
            return "what it waited for has come: it continues as soon as an engine takes it"
        case "rolling_back":
            return "it is being rolled back"
        case "cancelling":
            return "it was cancelled, and stops at its next step"
        case _ if run.owner is None:
            return "it continues as soon as an engine takes it"
        case _:
            return "its code, or a step, is running"


def _reason(wait: WaitView, now: datetime) -> Reason:
    match wait.kind:
        case "event" if wait.name.startswith("perdure.task"):
            return Reason(text="the answer to a task", since=wait.since, is_awaited=True)
        case "event":
            where = ", ".join(f"{name} = {value!r}" for name, value in wait.where.items())
            text = f"the event {wait.name}" + (f" with {where}" if where else "")
            return Reason(text=text, since=wait.since, event=wait.name, is_awaited=True)
        case "standstill":
            return Reason(text=wait.name, is_alarming=True)
        case "run":
            return Reason(text="the end of run", run=wait.target, since=wait.since, is_awaited=True)
        case "retry":
            text = f"the next attempt of step {wait.name}, after {amount(wait.attempts, 'failure')}"
        case "beat":
            text = f"step {wait.name}, which is running"
            return Reason(text=text, since=wait.since, is_awaited=True)
        case _:
            text = "a timer" if wait.name in ("timer", "sleep", "") else f"the timer {wait.name}"
    is_late = wait.due_at is not None and now - wait.due_at > timedelta(seconds=5)
    return Reason(text=text, since=wait.since, due_at=wait.due_at, is_awaited=True, is_alarming=is_late)


__all__ = ["Reason", "amount", "bytes_of", "duration", "reasons", "status_of", "words_of"]
