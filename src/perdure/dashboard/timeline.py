"""The timeline of a run. It has a lane for each entry of the journal, and leaves out idle time.

A long time in which nothing ran is not drawn to scale. It is drawn as a break, with its length as a text.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from markupsafe import Markup
from msgspec import Struct

from perdure.api.waits import WaitView
from perdure.dashboard.words import duration
from perdure.views import EntryView

LANES_MAX: Final = 200
LANE: Final = 24
_WIDTH: Final = 900.0
_BREAK: Final = 64.0
_BAR: Final = 12
_AXIS: Final = 22
_WORKING: Final = ("step", "compensate")


class Lane(Struct, frozen=True, kw_only=True):
    """An entry of the journal, or a wait of the run."""

    key: str
    name: str
    kind: str
    begin: datetime
    end: datetime
    look: str
    text: str


class Timeline(Struct, frozen=True, kw_only=True):
    """A timeline in the form that a page shows. `left_out` is the number of earlier lanes that are not drawn."""

    lanes: list[Lane]
    drawing: Markup
    left_out: int
    took: str


class _Scale:
    """Maps times to positions. Stretches are drawn to scale, with breaks between them."""

    def __init__(self, busy: Sequence[tuple[datetime, datetime]], width: float) -> None:
        first, last = busy[0][0], busy[-1][1]
        worked = sum(((end - begin) for begin, end in busy), timedelta())
        idle_min = max(timedelta(milliseconds=5), worked, (last - first) / 20)
        stretches: list[tuple[datetime, datetime]] = []
        for begin, end in busy:
            if stretches and begin - stretches[-1][1] < idle_min:
                stretches[-1] = (stretches[-1][0], end)
            else:
                stretches.append((begin, end))
        self.breaks: list[tuple[float, timedelta]] = []
        total = sum(((end - begin) for begin, end in stretches), timedelta()).total_seconds()
        # Even a very short stretch is a few pixels wide.
        room = max(width * 0.2, width - _BREAK * (len(stretches) - 1) - 6 * len(stretches))
        self._parts: list[tuple[datetime, datetime, float, float]] = []
        x = 0.0
        for number, (begin, end) in enumerate(stretches):
            if number:
                self.breaks.append((x, begin - stretches[number - 1][1]))
                x += _BREAK
            share = (end - begin).total_seconds() / total if total else 1 / len(stretches)
            self._parts.append((begin, end, x, 6 + share * room))
            x += 6 + share * room
        self.width = x

    def x(self, when: datetime) -> float:
        """Return the position of a time."""
        at = 0.0
        for begin, end, left, width in self._parts:
            if when < begin:
                return at
            if when <= end:
                span = (end - begin).total_seconds()
                return left + (width * (when - begin).total_seconds() / span if span else width / 2)
            at = left + width
        return at


def timeline(entries: Sequence[EntryView], waits: Sequence[WaitView], zoom: float) -> Timeline | None:
    """Return the timeline of a run. Return None if the run has done nothing yet."""
    lanes = [_lane(entry) for entry in entries] + [_open(wait) for wait in waits if wait.since is not None]
    left_out = max(0, len(lanes) - LANES_MAX)
    lanes = lanes[left_out:]
    if not lanes:
        return None
    scale = _Scale(_busy(lanes), _WIDTH * zoom)
    height = _AXIS + LANE * len(lanes)
    begin, end = min(lane.begin for lane in lanes), max(lane.end for lane in lanes)
    took = duration(end - begin) if end > begin else ""
    parts = [
        Markup('<svg class="timeline" role="img" aria-label="{}" width="{}" height="{}">').format(
            f"{len(lanes)} entries {took}", f"{scale.width + 14:.0f}", height
        )
    ]
    for x, idle in scale.breaks:
        parts.append(
            Markup(
                '<g><title>{} in which nothing ran</title><rect class="break" x="{}" y="0" width="{}" height="{}"/>'
                '<path class="break-edge" d="M{} 0V{}"/><path class="break-edge" d="M{} 0V{}"/>'
                '<text class="idle" x="{}" y="14" text-anchor="middle">{}</text></g>'
            ).format(
                duration(idle), f"{x:.1f}", _BREAK, height, f"{x:.1f}", height, f"{x + _BREAK:.1f}", height,
                f"{x + _BREAK / 2:.1f}", duration(idle),
            )
        )  # fmt: skip
    for number, lane in enumerate(lanes):
        parts.append(_bar(lane, scale, _AXIS + number * LANE))
    parts.append(Markup("</svg>"))
    return Timeline(lanes=lanes, drawing=Markup("").join(parts), left_out=left_out, took=took)


def _bar(lane: Lane, scale: _Scale, y: int) -> Markup:
    left, right = scale.x(lane.begin), scale.x(lane.end)
    width = max(12.0 if lane.look == "now" else 3.0, right - left)
    return Markup(
        '<g><title>{}</title><rect class="lane" x="0" y="{}" width="{}" height="{}"/>'
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="2"/></g>'
    ).format(
        lane.text, y, f"{scale.width:.0f}", LANE,
        lane.look, f"{left + 1:.1f}", y + (LANE - _BAR) // 2, f"{width:.1f}", _BAR,
    )  # fmt: skip


def _lane(entry: EntryView) -> Lane:
    if entry.failure is not None:
        look = "failed"
    elif entry.kind == "compensate" or entry.kind.startswith("roll"):
        look = "undo"
    elif entry.kind in ("timer", "wait", "task", "child"):
        look = "wait"
    else:
        look = "good"
    took = duration(entry.at - entry.started_at)
    again = f", {entry.attempts} attempts" if entry.attempts > 1 else ""
    return Lane(
        key=f"{entry.archived_attempt or 0}.{entry.seq}",
        name=entry.name or entry.kind,
        kind=entry.kind.replace("_", " "),
        begin=min(entry.started_at, entry.at),
        end=entry.at,
        look=look,
        text=f"{entry.kind} {entry.name}: {took}{again}",
    )


def _open(wait: WaitView) -> Lane:
    assert wait.since is not None
    is_task = wait.name.startswith("perdure.task")
    # The wait has not ended yet, so the bar shows only its beginning.
    return Lane(
        key=f"open.{wait.position}.{wait.name}",
        name="answer to a task" if is_task else wait.name or wait.kind,
        kind="open",
        begin=wait.since,
        end=wait.since,
        look="now",
        text=f"waits: {wait.kind} {wait.name}",
    )


def _busy(lanes: Sequence[Lane]) -> list[tuple[datetime, datetime]]:
    """Return the spans of time in which something ran or happened, in order and without overlaps."""
    spans: list[tuple[datetime, datetime]] = []
    for lane in lanes:
        if lane.kind in _WORKING:
            spans.append((lane.begin, lane.end))
        else:
            spans += [(lane.begin, lane.begin), (lane.end, lane.end)]
    merged: list[tuple[datetime, datetime]] = []
    for begin, end in sorted(spans):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((begin, end))
    return merged


__all__ = ["LANES_MAX", "Timeline", "timeline"]
