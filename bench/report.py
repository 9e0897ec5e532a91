"""The table: what was measured, beside the floor, with the targets."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

from msgspec import Struct

from bench.figures import Figures, medians, paired

Rounds = dict[str, list[Figures]]  # workload -> its figures, a set per round


class Target(Struct, frozen=True):
    """A bound, and whether it is the least or the most that is allowed."""

    bound: float
    least: bool = False

    def met(self, value: float) -> bool:
        return value >= self.bound if self.least else value <= self.bound


class Row(Struct, frozen=True):
    """One figure. Where there is a `floor`, the ratio to the same figure of that is judged, else the figure itself."""

    label: str
    workload: str
    figure: str
    form: str
    floor: str = ""
    target: Target | None = None


# Two engines share the cores with their server.
TWO = Target(1.5 if (os.cpu_count() or 1) >= 4 else 0.9, least=True)

ROWS = [
    Row("W1 steps/s, 100 in flight", "steps", "steps_per_s", "{:,.0f}", "floor", Target(0.4, least=True)),
    Row("W2 one-step run, p50", "steps", "latency_p50_ms", "{:.2f} ms", "floor", Target(2.5)),
    Row("W2 one-step run, p99", "steps", "latency_p99_ms", "{:.2f} ms", "floor"),
    Row("W3 events/s, 1,000 waiting", "events", "events_per_s", "{:,.0f}", "events_floor"),
    Row(
        "W3 events/s, 10,000 waiting",
        "many_events",
        "events_per_s",
        "{:,.0f}",
        "many_events_floor",
        Target(0.3, least=True),
    ),
    Row("W4 one-second timers, p50 late", "timers", "late_p50_ms", "{:.1f} ms"),
    Row("W4 one-second timers, p99 late", "timers", "late_p99_ms", "{:.1f} ms", target=Target(60)),
    Row(
        "W5 children/s, 1,000 of one parent",
        "fanout",
        "children_per_s",
        "{:,.0f}",
        "fanout_floor",
        Target(0.3, least=True),
    ),
    Row("W6 killed, launched again, open", "recovery", "open_s", "{:.2f} s"),
    Row("W6 and 1,000 waiting runs ended", "recovery", "all_done_s", "{:.2f} s", target=Target(0.5)),
    Row("W8 idle, 1,000 waiting, of a core", "idle", "cpu_percent", "{:.2f} %", target=Target(0.5)),
    Row("W9 launch to first result", "startup", "first_result_s", "{:.2f} s"),
    Row("W9 import perdure", "startup", "import_s", "{:.2f} s"),
    Row("W10 event to another process, p50", "between", "late_p50_ms", "{:.1f} ms", target=Target(60)),
    Row("W10 event to another process, p99", "between", "late_p99_ms", "{:.1f} ms"),
    Row(
        "W11 hierarchies/s, two children each",
        "hierarchies",
        "hierarchies_per_s",
        "{:,.0f}",
        "hierarchies_floor",
        Target(0.3, least=True),
    ),
    Row("Postgres: W1 steps/s", "postgres_steps", "steps_per_s", "{:,.0f}", "postgres_floor", Target(0.4, least=True)),
    Row("Postgres: W2 one step, p50", "postgres_steps", "latency_p50_ms", "{:.2f} ms", "postgres_floor", Target(2.5)),
    Row("Postgres: W2 one step, p99", "postgres_steps", "latency_p99_ms", "{:.2f} ms", "postgres_floor"),
    Row("Postgres: two engines, beside one", "postgres_two", "steps_per_s", "{:,.0f}", "postgres_steps", TWO),
    Row("Postgres: three idle, queries/s", "postgres_idle", "queries_per_s", "{:.1f}", target=Target(5)),
    Row("Postgres: W10 event, p50", "postgres_between", "late_p50_ms", "{:.1f} ms", target=Target(15)),
    Row("Postgres: W10 event, p99", "postgres_between", "late_p99_ms", "{:.1f} ms"),
]


def summary(rounds: Rounds, rows: Sequence[Row] = ROWS) -> dict[str, dict[str, float | bool]]:
    """Per row its median, the floor's, the median of the ratios, and whether the target was met."""
    summaries: dict[str, dict[str, float | bool]] = {}
    for row in rows:
        found: dict[str, float | bool] = {"median": medians(rounds[row.workload])[row.figure]}
        judged = found["median"]
        if row.floor:
            found["floor"] = medians(rounds[row.floor])[row.figure]
            found["ratio"] = judged = paired(rounds[row.workload], rounds[row.floor], row.figure)
        if row.target is not None:
            found["met"] = row.target.met(judged)
        summaries[row.label] = found
    return summaries


def table(rounds: Rounds, rows: Sequence[Row] = ROWS, *, judged: bool) -> str:
    """All rows as text; without `judged` the targets stand there, but not whether they were met."""
    found = summary(rounds, rows)
    cells = [["", "perdure", "floor", "ratio", "target", ""]]
    for row in rows:
        figures = found[row.label]
        cells.append(
            [
                row.label,
                row.form.format(figures["median"]),
                row.form.format(figures["floor"]) if row.floor else "",
                f"{figures['ratio']:.2f}" if row.floor else "",
                _target(row),
                "" if row.target is None or not judged else "✓" if figures["met"] else "✗ missed",
            ]
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    return "\n".join(_line(line, widths) for line in cells)


def _target(row: Row) -> str:
    if row.target is None:
        return ""
    bound = f"{row.target.bound:g}" if row.floor else row.form.format(row.target.bound)
    return f"{'≥' if row.target.least else '≤'} {bound}"


def _line(line: Sequence[str], widths: Sequence[int]) -> str:
    sides: list[Callable[[str, int], str]] = [str.ljust, str.rjust, str.rjust, str.rjust, str.rjust, str.ljust]
    return "  ".join(side(cell, width) for side, cell, width in zip(sides, line, widths, strict=True)).rstrip()
