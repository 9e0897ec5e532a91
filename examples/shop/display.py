"""What the demo shows: a table that moves in a terminal, plain lines in a pipe."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from importlib.util import find_spec
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from evidence import Seen

if TYPE_CHECKING:
    from rich.console import RenderableType
    from shop import Order

STAGES = ["reserve", "charge", "sleep", "pack", "ship"]


class Display(Protocol):
    def __enter__(self) -> Display: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def say(self, text: str) -> None:
        """Something happened."""

    def show(self, seen: Seen) -> None:
        """The shop as it is now."""


def display(orders: Sequence[Order]) -> Display:
    is_rich = sys.stdout.isatty() and find_spec("rich") is not None
    return Table(orders) if is_rich else Lines(orders)


class Lines:
    """A line per event, and one per half second."""

    def __init__(self, orders: Sequence[Order]) -> None:
        self._orders = len(orders)
        self._began = self._shown = time.monotonic()

    def __enter__(self) -> Lines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began:5.1f} s  {text}", flush=True)

    def show(self, seen: Seen) -> None:
        if time.monotonic() - self._shown >= 0.5:
            self._shown = time.monotonic()
            counts = f"{len(seen.committed)} entries committed, {len(seen.running)} steps running"
            self.say(f"  {seen.completed} of {self._orders} orders completed, {counts}")


class Table:
    """A row per order and a mark per entry, redrawn in place."""

    def __init__(self, orders: Sequence[Order]) -> None:
        from rich.console import Console
        from rich.live import Live

        self._orders = orders
        self._live = Live(console=Console(highlight=False), refresh_per_second=12)

    def __enter__(self) -> Table:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._live.console.print(text)

    def show(self, seen: Seen) -> None:
        self._live.update(self._drawn(seen))

    def _drawn(self, seen: Seen) -> RenderableType:
        from rich.console import Group
        from rich.table import Table as Grid
        from rich.text import Text

        grid = Grid.grid(padding=(0, 3))
        rows = [Text.from_markup(self._row(order, seen)) for order in self._orders]
        third = -(-len(rows) // 3)
        for line in range(third):
            grid.add_row(*rows[line::third])
        legend = "[green]●[/] committed  [yellow]◐[/] running  [dim]·[/] to come     " + " → ".join(STAGES)
        return Group(Text(), grid, Text(), Text.from_markup(legend))

    def _row(self, order: Order, seen: Seen) -> str:
        done = Counter(name for (run_id, _), name in seen.committed.items() if run_id == order.id)
        running = Counter(name for (run_id, _), name in seen.running.items() if run_id == order.id)
        marks = []
        for stage in STAGES:
            total = len(order.items) if stage == "reserve" else 1
            rest = total - done[stage] - running[stage]
            marks.append(f"[green]{'●' * done[stage]}[/][yellow]{'◐' * running[stage]}[/][dim]{'·' * rest}[/]")
            if stage == "reserve":
                marks.append(" " * (3 - total))
        finished = seen.statuses.get(order.id) == "succeeded"
        return f"[{'green' if finished else 'default'}]{order.id}[/]  {''.join(marks)}"
