"""Timelines: to scale where something ran, and without the time in which nothing did."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta

from perdure.api.waits import WaitView
from perdure.dashboard.timeline import LANES_MAX, timeline
from perdure.dashboard.words import duration
from perdure.views import EntryView

BEGAN = datetime(2026, 11, 16, tzinfo=UTC)


def entry(seq: int, begin: float, end: float, kind: str = "step") -> EntryView:
    return EntryView(
        seq=seq, position=str(seq), kind=kind, name=f"n{seq}", value=None, failure=None, attempts=1,
        started_at=BEGAN + timedelta(seconds=begin), at=BEGAN + timedelta(seconds=end),
    )  # fmt: skip


def bars(drawing: str) -> list[tuple[float, float]]:
    found = re.findall(r'class="(?:good|wait|now)" x="([\d.]+)" y="\d+" width="([\d.]+)"', drawing)
    return [(float(x), float(x) + float(width)) for x, width in found]


def test_steps_are_drawn_to_scale() -> None:
    drawn = timeline([entry(1, 0, 1), entry(2, 1, 4)], [], 1)
    assert drawn is not None
    (a, b), (c, d) = bars(drawn.drawing)
    assert abs((d - c) / (b - a) - 3) < 0.1
    assert "nothing ran" not in drawn.drawing


def test_idle_time_is_collapsed_and_told() -> None:
    drawn = timeline([entry(1, 0, 1), entry(2, 1, 86_401, "timer"), entry(3, 86_401, 86_402)], [], 1)
    assert drawn is not None
    assert "1 d in which nothing ran" in drawn.drawing
    first, wait, last = bars(drawn.drawing)
    assert wait[1] - wait[0] < first[1] - first[0]
    assert abs((last[1] - last[0]) / (first[1] - first[0]) - 1) < 0.1


def test_zooming_makes_it_wider() -> None:
    widths = []
    for zoom in (1, 8):
        drawn = timeline([entry(1, 0, 1)], [], zoom)
        assert drawn is not None
        [(begin, end)] = bars(drawn.drawing)
        widths.append(end - begin)
    assert widths[1] > 7 * widths[0]


def test_what_is_open_is_shown_and_very_long_runs_are_cut() -> None:
    wait = WaitView(
        position="9", kind="event", name="paid", where={}, target=None, due_at=None, attempts=0, since=BEGAN
    )  # fmt: skip
    drawn = timeline([entry(number, number, number + 1) for number in range(LANES_MAX + 9)], [wait], 1)
    assert drawn is not None
    assert (len(drawn.lanes), drawn.left_out) == (LANES_MAX, 10)
    assert drawn.lanes[-1].name == "paid"
    assert timeline([], [], 1) is None


def test_lengths_of_time_in_words() -> None:
    spans = [0.000_05, 0.004_2, 0.25, 1.5, 42, 61, 3_600, 5_400, 90_000]
    assert [duration(span) for span in spans] == [
        "50 µs", "4.2 ms", "250 ms", "1.5 s", "42 s", "1 min 1 s", "1 h", "1 h 30 min", "1 d 1 h"
    ]  # fmt: skip
