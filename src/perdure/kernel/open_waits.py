"""An index of the positions at which a run waits and that nothing has won yet. Pure.

A mailbox makes one when its run waits at many positions (wait_matches.py). With the index, the time that it takes to
find the position that an event wins does not depend on the number of positions.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from perdure.kernel.event_queue import Shape
from perdure.kernel.events import Event
from perdure.kernel.persistent_maps import Line, Pages
from perdure.kernel.rows import Wait

Where = tuple[tuple[str, str], ...]
Group = tuple[Wait, ...]  # the options of a position
Opened = tuple[int, int]  # an option: the place of its position in the order of waiting, and its number there


class OpenWaits(Struct, frozen=True, gc=False):
    """Where a run waits, by event name and filter.

    `orders` are the places of all positions in the order of waiting, also of positions that something has won. `lines`
    has the open positions: by the event name and filter of their options, in the order of waiting. `shapes` are the
    fields by which options for a name choose, each with the number of different choices.
    """

    orders: Pages[str, int]
    lines: Pages[tuple[str, Where], Line[Opened, str]]
    shapes: Pages[str, dict[Shape, int]]
    begun: int = 0  # how many positions were opened so far: the place of the next one


EMPTY = OpenWaits(Pages(), Pages(), Pages())


def added(index: OpenWaits, groups: Mapping[str, Group], won: Container[str]) -> OpenWaits:
    """Add these positions, which are open unless they are in `won`. A known position keeps its place; its options must
    have been taken out before (`shut`)."""
    orders: dict[str, int] = {}
    begun = index.begun
    for position in groups:
        place = index.orders.get(position)
        if place is None:
            place, begun = begun, begun + 1
        orders[position] = place
    lines: dict[tuple[str, Where], Line[Opened, str]] = {}
    shapes: dict[str, dict[Shape, int]] = {}
    for position, group in groups.items():
        if position in won:
            continue
        for wait in group:
            if wait.kind == "event":
                key = wait.name, wait.where
                line: Line[Opened, str] | None = lines.get(key) or index.lines.get(key)
                if line is None:
                    _count_shape(index, shapes, key, 1)
                lines[key] = (line or Line()).added((orders[position], wait.option), position)
    return OpenWaits(index.orders.changed(orders), index.lines.changed(lines), _with_shapes(index, shapes), begun)


def shut(index: OpenWaits, options: Iterable[tuple[str, Wait]]) -> OpenWaits:
    """Take the options of positions out of the open ones. The positions keep their places."""
    lines: dict[tuple[str, Where], Line[Opened, str]] = {}
    for position, wait in options:
        key = wait.name, wait.where
        line: Line[Opened, str] | None = lines[key] if key in lines else index.lines.get(key)
        if line is not None:
            lines[key] = line.without((index.orders[position], wait.option))
    if not lines:
        return index
    gone = [key for key, line in lines.items() if not line]
    shapes: dict[str, dict[Shape, int]] = {}
    for key in gone:
        _count_shape(index, shapes, key, -1)
    left = index.lines.changed({key: line for key, line in lines.items() if line}, gone)
    return replace(index, lines=left, shapes=_with_shapes(index, shapes))


def without(index: OpenWaits, positions: Collection[str]) -> OpenWaits:
    """Forget the places of positions that were closed."""
    return replace(index, orders=index.orders.changed({}, positions))


def first(index: OpenWaits, event: Event, before: int | None = None) -> tuple[str, int] | None:
    """Return the position that an event wins, and the option. With `before`, only positions opened before that place
    count."""
    shapes: Iterable[Shape] = index.shapes.get(event.name, ())
    best: tuple[Opened, str] | None = None
    for shape in shapes:
        if all(name in event.fields for name in shape):
            line = index.lines.get((event.name, tuple([(name, event.fields[name]) for name in shape])))
            if line is not None and (best is None or line.first < best):
                best = line.first
    if best is None or (before is not None and best[0][0] >= before):
        return None
    (_, option), position = best
    return position, option


def _count_shape(index: OpenWaits, shapes: dict[str, dict[Shape, int]], key: tuple[str, Where], change: int) -> None:
    """Count one choice more or less of a shape. `shapes` has only the names whose counts change."""
    name, where = key
    if name not in shapes:
        shapes[name] = dict(index.shapes.get(name, {}))
    shape = tuple([field for field, _ in where])
    count = shapes[name].get(shape, 0) + change
    if count:
        shapes[name][shape] = count
    else:
        del shapes[name][shape]


def _with_shapes(index: OpenWaits, shapes: dict[str, dict[Shape, int]]) -> Pages[str, dict[Shape, int]]:
    if not shapes:
        return index.shapes
    gone = [name for name, counts in shapes.items() if not counts]
    return index.shapes.changed({name: counts for name, counts in shapes.items() if counts}, gone)
