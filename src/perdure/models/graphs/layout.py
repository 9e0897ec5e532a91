"""The layout of a graph's picture, in layers from top to bottom, by Sugiyama's method. This module is pure.

Lines that lead back are reversed. The layer of a box is the length of the longest path to the box. Within a layer,
boxes are ordered by the barycentres of their neighbours. Then they are aligned with their neighbours, as far as that
order allows. Boxes are in even layers. A line has a thin slot in every layer that it passes. Its label is in an odd
layer. So no box and no label covers another, and no line crosses a box.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct

from perdure.errors import Misuse

Point = tuple[float, float]

_GAP_X: Final = 26.0  # the gap between boxes
_GAP_SLOT: Final = 14.0  # the gap beside a line
_GAP_Y: Final = 13.0  # the smallest gap between layers
_GAP_Y_MORE: Final = 30.0  # the largest addition to this gap, where lines go far to the side
_SWEEPS: Final = 12
_SWEPT_MAX: Final = 24_000  # slots times sweeps; a larger picture gets fewer sweeps
SLOTS_MAX: Final = 20_000
_SPREAD: Final = 0.7  # the part of a box's side that lines use
_PORT_GAP: Final = 22.0
_LOOP_WIDTH: Final = 26.0


class Box(Struct, frozen=True):
    id: str
    width: float
    height: float


class Line(Struct, frozen=True):
    """A line from one box to another, with room for a label."""

    source: str
    target: str
    label_width: float = 0.0
    label_height: float = 0.0


class Route(Struct, frozen=True):
    """The route of a line. The line curves between these points, and is vertical at each of them. `label` is the centre
    of the line's label.
    """

    points: Sequence[Point]
    label: Point
    is_back: bool


class Layout(Struct, frozen=True):
    """The centres of boxes and the routes of lines. All coordinates are between 0 and `width` or `height`."""

    boxes: Mapping[str, Point]
    routes: Sequence[Route]
    width: float
    height: float


class _Slot:
    """A box, or the place where a line passes through a layer."""

    __slots__ = ("above", "below", "box", "height", "index", "layer", "left", "right", "weight", "x")

    def __init__(self, layer: int, left: float, right: float, height: float, box: str | None) -> None:
        self.layer = layer
        self.left = left
        self.right = right
        self.height = height
        self.box = box
        self.index = 0
        self.x = 0.0
        self.weight = 1.0
        self.above: list[_Slot] = []
        self.below: list[_Slot] = []


class _Way:
    """A line from top to bottom. It has slots from box to box."""

    __slots__ = ("is_back", "label", "line", "slots")

    def __init__(self, line: Line, *, is_back: bool) -> None:
        self.line = line
        self.is_back = is_back
        self.slots: list[_Slot] = []
        self.label: _Slot | None = None


def arrange(boxes: Sequence[Box], lines: Sequence[Line]) -> Layout:
    """Lay out a graph. Its first box is the beginning. The time is bounded. A picture with many slots gets fewer
    sweeps, and a picture with more than SLOTS_MAX slots is refused. Raises Misuse.
    """
    loops = {line.source: max(_loop_width(other) for other in lines if _is_loop(other, line.source)) for line in lines
             if line.source == line.target}  # fmt: skip
    back = _leading_back(boxes, lines)
    layers_of = _layers(boxes, lines, back)
    slots = {
        box.id: _Slot(layers_of[box.id], box.width / 2, box.width / 2 + loops.get(box.id, 0.0), box.height, box.id)
        for box in boxes
    }
    count = len(boxes) + sum(abs(layers_of[line.source] - layers_of[line.target]) for line in lines)
    if count > SLOTS_MAX:
        raise Misuse(
            f"this graph is too large for a picture: its {len(boxes):,} boxes and {len(lines):,} lines take "
            f"{count:,} places, and there are {SLOTS_MAX:,}; draw it as Mermaid"
        )
    sweeps = min(_SWEEPS, max(1, _SWEPT_MAX // count))
    ways = [_way(line, slots, is_back=number in back) for number, line in enumerate(lines)]
    layers = _ordered(boxes, slots, sweeps)
    _place(layers, sweeps)
    for way in ways:
        _straighten(way, layers)
    tops = _heights(layers)
    least = min(slot.x - slot.left for layer in layers for slot in layer)
    most = max(slot.x + slot.right for layer in layers for slot in layer)
    for layer in layers:
        for slot in layer:
            slot.x -= least
    ports = _ports(ways, {box.id: box.width for box in boxes})
    routes = [_route(way, number, ports, tops) for number, way in enumerate(ways)]
    middles = {box.id: (slots[box.id].x, _middle(tops, slots[box.id].layer)) for box in boxes}
    bottom, height = tops[-1]
    return Layout(middles, routes, most - least, bottom + height)


def _is_loop(line: Line, box: str) -> bool:
    return line.source == line.target == box


def _loop_width(line: Line) -> float:
    return _LOOP_WIDTH + (line.label_width + 6 if line.label_width else 0.0)


def _leading_back(boxes: Sequence[Box], lines: Sequence[Line]) -> set[int]:
    """Return the numbers of the lines that lead back to an earlier box."""
    onward: dict[str, list[tuple[int, str]]] = {box.id: [] for box in boxes}
    for number, line in enumerate(lines):
        if line.source != line.target:
            onward[line.source].append((number, line.target))
    back: set[int] = set()
    done: set[str] = set()
    for box in boxes:
        if box.id in done:
            continue
        on_way = {box.id}
        stack = [(box.id, iter(onward[box.id]))]
        while stack:
            here, following = stack[-1]
            step = next(following, None)
            if step is None:
                done.add(here)
                on_way.discard(here)
                stack.pop()
            elif step[1] in on_way:
                back.add(step[0])
            elif step[1] not in done:
                on_way.add(step[1])
                stack.append((step[1], iter(onward[step[1]])))
    return back


def _layers(boxes: Sequence[Box], lines: Sequence[Line], back: set[int]) -> dict[str, int]:
    """Return the layer of each box. A box is below all boxes that lead to it."""
    below: dict[str, list[str]] = {box.id: [] for box in boxes}
    open_: dict[str, int] = {box.id: 0 for box in boxes}
    for number, line in enumerate(lines):
        if line.source != line.target:
            upper, lower = (line.target, line.source) if number in back else (line.source, line.target)
            below[upper].append(lower)
            open_[lower] += 1
    layer = dict.fromkeys(below, 0)
    free = [box.id for box in boxes if not open_[box.id]]
    while free:
        here = free.pop()
        for lower in below[here]:
            layer[lower] = max(layer[lower], layer[here] + 2)
            open_[lower] -= 1
            if not open_[lower]:
                free.append(lower)
    return layer


def _way(line: Line, slots: Mapping[str, _Slot], *, is_back: bool) -> _Way:
    way = _Way(line, is_back=is_back)
    if line.source == line.target:
        return way
    upper, lower = (line.target, line.source) if is_back else (line.source, line.target)
    top, bottom = slots[upper], slots[lower]
    label_at = bottom.layer - 1 if is_back else top.layer + 1
    way.slots.append(top)
    for layer in range(top.layer + 1, bottom.layer):
        has_label = layer == label_at and line.label_width > 0
        half = line.label_width / 2 if has_label else 0.0
        slot = _Slot(layer, half, half, line.label_height if has_label else 0.0, None)
        slot.weight = 0.5 if is_back else 2.0  # Lines that lead forward should be straighter than lines that lead back.
        way.slots.append(slot)
        if has_label:
            way.label = slot
    way.slots.append(bottom)
    for one, other in pairwise(way.slots):
        one.below.append(other)
        other.above.append(one)
    return way


# ---------------------------------------------------------------------------------------------------------------------
# Order


def _ordered(boxes: Sequence[Box], slots: Mapping[str, _Slot], sweeps: int) -> list[list[_Slot]]:
    """Return the layers. The slots of each layer are in the order with the fewest crossings that was found."""
    count = max(slot.layer for slot in slots.values()) + 1
    layers: list[list[_Slot]] = [[] for _ in range(count)]
    seen: set[int] = set()
    following = [slots[box.id] for box in boxes if not slots[box.id].above]
    # The list grows during the loop, layer by layer. The ends of lines are added in the order of the lines.
    for slot in following:
        if id(slot) not in seen:
            seen.add(id(slot))
            layers[slot.layer].append(slot)
            following.extend(slot.below)
    _number(layers)
    best, fewest = [list(layer) for layer in layers], _crossings(layers)
    for sweep in range(sweeps):
        if not fewest:
            break
        downward = sweep % 2 == 0
        for layer in layers if downward else reversed(layers):
            _sort(layer, downward=downward)
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = [list(layer) for layer in layers], crossings
    for at, layer in enumerate(best):
        layers[at] = layer
    _number(layers)
    return layers


def _number(layers: Iterable[Sequence[_Slot]]) -> None:
    for layer in layers:
        for index, slot in enumerate(layer):
            slot.index = index


def _sort(layer: list[_Slot], *, downward: bool) -> None:
    def centre(slot: _Slot) -> float:
        near = slot.above if downward else slot.below
        return sum(one.index for one in near) / len(near) if near else slot.index

    layer.sort(key=centre)
    _number([layer])


def _crossings(layers: Sequence[Sequence[_Slot]]) -> int:
    return sum(_crossings_below(layer) for layer in layers)


def _crossings_below(layer: Sequence[_Slot]) -> int:
    """Return how often lines to the layer below cross each other."""
    ends = [end for slot in layer for end in sorted(one.index for one in slot.below)]
    size = max(ends, default=-1) + 1
    tree = [0] * (size + 1)
    crossings = 0
    for number, end in enumerate(ends):
        at, before = end + 1, 0
        while at:
            before += tree[at]
            at &= at - 1
        crossings += number - before
        at = end + 1
        while at <= size:
            tree[at] += 1
            at += at & -at
    return crossings


# ---------------------------------------------------------------------------------------------------------------------
# Coordinates


def _place(layers: Sequence[Sequence[_Slot]], sweeps: int) -> None:
    for layer in layers:
        for slot, offset in zip(layer, _offsets(layer), strict=True):
            slot.x = offset
    # The last sweep goes down, so that boxes that follow one another are in one line.
    for sweep in range(sweeps * 2 + 1):
        downward = sweep % 2 == 0
        for layer in layers if downward else reversed(layers):
            wanted = [_wanted(slot, slot.above if downward else slot.below) for slot in layer]
            for slot, x in zip(layer, _fitted(layer, wanted), strict=True):
                slot.x = x


def _offsets(layer: Sequence[_Slot]) -> list[float]:
    """Return the offset of each slot from the first slot, if all slots are as close as allowed."""
    offsets: list[float] = []
    for index, slot in enumerate(layer):
        if not index:
            offsets.append(0.0)
            continue
        before = layer[index - 1]
        gap = _GAP_X if slot.box is not None and before.box is not None else _GAP_SLOT
        offsets.append(offsets[-1] + before.right + gap + slot.left)
    return offsets


def _wanted(slot: _Slot, near: Sequence[_Slot]) -> tuple[float, float]:
    """Return the ideal place of a slot without regard to other slots, and the weight of the slot."""
    if not near:
        return slot.x, 0.1
    # Above all, a line that passes through a layer should be straight.
    pulls = [(one.x, 4.0 if one.box is None and slot.box is None else 1.0) for one in near]
    total = sum(pull for _, pull in pulls)
    return sum(x * pull for x, pull in pulls) / total, total * slot.weight


def _fitted(layer: Sequence[_Slot], wanted: Sequence[tuple[float, float]]) -> list[float]:
    """Return the places that are closest to the ideal places and keep the order and the distances. Neighbours that
    would collide move together.
    """
    offsets = _offsets(layer)
    blocks: list[tuple[float, float, int]] = []  # the place, the weight, and the number of slots
    for (x, weight), offset in zip(wanted, offsets, strict=True):
        where, much, many = x - offset, weight, 1
        while blocks and blocks[-1][0] > where:
            left = blocks.pop()
            where = (left[0] * left[1] + where * much) / (left[1] + much)
            much, many = much + left[1], many + left[2]
        blocks.append((where, much, many))
    starts = [where for where, _, many in blocks for _ in range(many)]
    return [start + offset for start, offset in zip(starts, offsets, strict=True)]


def _straighten(way: _Way, layers: Sequence[Sequence[_Slot]]) -> None:
    """Align the slots of a line vertically, as far as possible without moving other slots."""
    group: list[_Slot] = []
    low, high = float("-inf"), float("inf")
    for slot in [*way.slots[1:-1], None]:
        if slot is not None:
            least, most = _room(slot, layers[slot.layer])
            if max(low, least) <= min(high, most):
                group.append(slot)
                low, high = max(low, least), min(high, most)
                continue
        if group:
            x = min(max(sum(one.x for one in group) / len(group), low), high)
            for one in group:
                one.x = x
        if slot is not None:
            group = [slot]
            low, high = _room(slot, layers[slot.layer])


def _room(slot: _Slot, layer: Sequence[_Slot]) -> tuple[float, float]:
    """Return how far to the left and to the right a line's slot can move."""
    least, most = float("-inf"), float("inf")
    if slot.index:
        before = layer[slot.index - 1]
        least = before.x + before.right + _GAP_SLOT + slot.left
    if slot.index + 1 < len(layer):
        after = layer[slot.index + 1]
        most = after.x - after.left - _GAP_SLOT - slot.right
    return (least, most) if least <= most else (slot.x, slot.x)


def _heights(layers: Sequence[Sequence[_Slot]]) -> list[tuple[float, float]]:
    """Return the top and the height of each layer. The gaps are larger where lines go far to the side."""
    found: list[tuple[float, float]] = []
    y = 0.0
    for layer in layers:
        height = max((slot.height for slot in layer), default=0.0)
        far = max((abs(slot.x - one.x) for slot in layer for one in slot.above), default=0.0)
        if found:
            y += _GAP_Y + min(_GAP_Y_MORE, far / 8)
        found.append((y, height))
        y += height
    return found


def _middle(tops: Sequence[tuple[float, float]], layer: int) -> float:
    top, height = tops[layer]
    return top + height / 2


# ---------------------------------------------------------------------------------------------------------------------
# Lines


def _ports(ways: Sequence[_Way], widths: Mapping[str, float]) -> dict[tuple[int, bool], float]:
    """Return the place where each line leaves its upper box (True) and the place where it enters its lower box, so that
    lines do not overlap there.
    """
    sides: dict[tuple[str, bool], list[tuple[float, int, _Slot]]] = {}
    for number, way in enumerate(ways):
        if way.slots:
            upper, lower = way.slots[0], way.slots[-1]
            sides.setdefault((upper.box or "", True), []).append((way.slots[1].x, number, upper))
            sides.setdefault((lower.box or "", False), []).append((way.slots[-2].x, number, lower))
    ports: dict[tuple[int, bool], float] = {}
    for (box, is_below), there in sides.items():
        there.sort(key=lambda one: one[:2])
        step = min(_PORT_GAP, widths[box] * _SPREAD / max(1, len(there) - 1))
        for index, (_, number, slot) in enumerate(there):
            ports[number, is_below] = slot.x + (index - (len(there) - 1) / 2) * step
    return ports


def _route(
    way: _Way, number: int, ports: Mapping[tuple[int, bool], float], tops: Sequence[tuple[float, float]]
) -> Route:
    if not way.slots:
        return Route((), (0.0, 0.0), is_back=True)
    upper, lower = way.slots[0], way.slots[-1]
    points: list[Point] = [(ports[number, True], _middle(tops, upper.layer) + upper.height / 2)]
    for slot in way.slots[1:-1]:
        top, height = tops[slot.layer]
        if height:  # An empty layer has nothing that a line could cross.
            points += [(slot.x, top), (slot.x, top + height)]
    points.append((ports[number, False], _middle(tops, lower.layer) - lower.height / 2))
    at = way.label
    label = (0.0, 0.0) if at is None else (at.x, _middle(tops, at.layer))
    return Route(points[::-1] if way.is_back else points, label, way.is_back)


__all__ = ["SLOTS_MAX", "Box", "Layout", "Line", "Point", "Route", "arrange"]
