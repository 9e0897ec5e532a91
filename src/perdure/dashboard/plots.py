"""Plots as SVG. The server draws them, because the pages load no library for plots. The stylesheet has the colours."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final

from markupsafe import Markup
from msgspec import Struct

from perdure.dashboard.words import duration

_WIDTH: Final = 720
_HEIGHT: Final = 150
_LEFT: Final = 44
_BOTTOM: Final = 20
_TOP: Final = 8


class Series(Struct, frozen=True):
    """Values of one kind, one for each bucket. `look` is a class of the stylesheet."""

    title: str
    look: str
    values: Sequence[float]


class Dot(Struct, frozen=True):
    """A single value at a time."""

    at: datetime
    value: float
    title: str


class Window(Struct, frozen=True):
    """The time that a plot shows, in equal buckets."""

    begin: datetime
    end: datetime
    buckets: int

    @property
    def bucket(self) -> timedelta:
        """The length of a bucket."""
        return (self.end - self.begin) / self.buckets

    def index(self, when: datetime) -> int | None:
        """Return the number of the bucket that contains a time. Return None if the time is outside of the window."""
        if not self.begin <= when < self.end:
            return None
        return min(self.buckets - 1, int((when - self.begin) / self.bucket))

    def at(self, number: int) -> datetime:
        """Return the time at which a bucket begins."""
        return self.begin + number * self.bucket


def bars(window: Window, series: Sequence[Series], title: str) -> Markup:
    """Draw stacked bars, one for each bucket."""
    totals = [sum(one.values[number] for one in series) for number in range(window.buckets)]
    top = _round_up(max([*totals, 1]))
    step = (_WIDTH - _LEFT) / window.buckets
    parts = [*_frame(window, top, f"{top:g}", title)]
    for number in range(window.buckets):
        floor = 0.0
        text = ", ".join(f"{one.title} {one.values[number]:g}" for one in series if one.values[number])
        if not text:
            continue
        parts.append(Markup("<g><title>{}: {}</title>").format(_clock(window.at(number), window), text))
        for one in series:
            value = one.values[number]
            if value:
                y0, y1 = _y(floor, top), _y(floor + value, top)
                parts.append(
                    Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}" rx="1"/>').format(
                        one.look, f"{_LEFT + number * step + 0.75:.1f}", f"{y1:.1f}", f"{max(1.0, step - 1.5):.1f}",
                        f"{max(1.0, y0 - y1 - 0.5):.1f}",
                    )
                )  # fmt: skip
                floor += value
        parts.append(Markup("</g>"))
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def dots(window: Window, found: Sequence[Dot], title: str, look: str) -> Markup:
    """Draw a dot for each value. Values are lengths of time in seconds."""
    top = _nice_span(max([one.value for one in found] or [0.0]))
    parts = [*_frame(window, top, duration(top), title)]
    span = (window.end - window.begin).total_seconds()
    for one in found:
        x = _LEFT + (_WIDTH - _LEFT) * (one.at - window.begin).total_seconds() / span
        parts.append(
            Markup('<circle class="{}" cx="{}" cy="{}" r="2.5"><title>{}</title></circle>').format(
                look, f"{x:.1f}", f"{_y(max(0.0, one.value), top):.1f}", one.title
            )
        )
    parts.append(Markup("</svg>"))
    return Markup("").join(parts)


def _frame(window: Window, top: float, top_text: str, title: str) -> list[Markup]:
    parts = [
        Markup('<svg class="plot" role="img" aria-label="{}" viewBox="0 0 {} {}">').format(title, _WIDTH, _HEIGHT),
        Markup('<text class="axis" x="{}" y="{}" text-anchor="end">{}</text>').format(_LEFT - 6, _TOP + 4, top_text),
        Markup('<text class="axis" x="{}" y="{}" text-anchor="end">0</text>').format(_LEFT - 6, _HEIGHT - _BOTTOM),
    ]
    for share in (0.0, 0.5, 1.0):
        y = _y(share * top, top)
        parts.append(Markup('<path class="grid" d="M{} {}H{}"/>').format(_LEFT, f"{y:.1f}", _WIDTH))
    for share, anchor in ((0.0, "start"), (0.5, "middle"), (1.0, "end")):
        when = window.begin + share * (window.end - window.begin)
        x = _LEFT + share * (_WIDTH - _LEFT)
        parts.append(
            Markup('<text class="axis" x="{}" y="{}" text-anchor="{}" data-clock="{}">{}</text>').format(
                f"{x:.0f}", _HEIGHT - 4, anchor, when.isoformat(), _clock(when, window)
            )
        )
    return parts


def _y(value: float, top: float) -> float:
    room = _HEIGHT - _BOTTOM - _TOP
    return _TOP + room * (1 - min(1.0, value / top))


def _round_up(value: float) -> float:
    size = 1
    while True:
        for factor in (1, 2, 4, 5, 8):
            if factor * size >= value:
                return factor * size
        size *= 10


def _nice_span(value: float) -> float:
    spans = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300, 600, 3_600, 21_600, 86_400)
    return next((span for span in spans if span >= value), value)


def _clock(when: datetime, window: Window) -> str:
    is_long = window.end - window.begin > timedelta(hours=26)
    return when.strftime("%m-%d %H:%M" if is_long else "%H:%M")


__all__ = ["Dot", "Series", "Window", "bars", "dots"]
