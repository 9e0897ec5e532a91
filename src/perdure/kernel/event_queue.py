"""The queue of a run's unread events of one name, in the order of sending. This module is pure.

The state of a run before a batch is kept until the batch is committed. So nothing here is changed in place. Events are
kept in blocks. Adding or taking an event copies only its block and the list of blocks. There may be fifty thousand
events. The first search by certain fields builds an index for these fields.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Final

from msgspec import Struct, field
from msgspec.structs import force_setattr

from perdure.kernel.events import Event
from perdure.kernel.persistent_maps import Line, Pages

BLOCK_MAX: Final = 256
_NEVER: Final = 2**63

Placed = tuple[int, Event]  # an event, and its place in the order in which all events of the run were sent
Shape = tuple[str, ...]  # the names of the fields by which a wait filters
# the values of the fields -> the events with these values, by their places
Index = Pages[tuple[str, ...], Line[int, Event]]


class Block(Struct, frozen=True, gc=False):
    """Consecutive events, and the time at which the first of them expires."""

    events: tuple[Placed, ...]
    expires_at: int


class Unread(Struct, frozen=True, gc=False):
    """All unread events of one name. There is at least one event. `expires_at` is the time at which the first of them
    expires, or earlier. `indexes` has the indexes that were needed so far. Each has all events that have its fields.
    """

    blocks: tuple[Block, ...]
    count: int
    expires_at: int
    indexes: dict[Shape, Index] = field(default_factory=dict)

    def __iter__(self) -> Iterator[Placed]:
        for block in self.blocks:
            yield from block.events


def of(events: list[Placed]) -> Unread | None:
    """Return the unread events from a sorted list."""
    return _of([_block(tuple(events[start : start + BLOCK_MAX])) for start in range(0, len(events), BLOCK_MAX)])


def added(unread: Unread | None, place: int, event: Event) -> Unread:
    """Return the queue with one more event that was sent last."""
    one: tuple[Placed, ...] = ((place, event),)
    expires_at = event.expires_at
    if unread is None:
        return Unread((Block(one, expires_at),), 1, expires_at)
    blocks, last = unread.blocks, unread.blocks[-1]
    if len(last.events) < BLOCK_MAX:
        blocks, one, expires_at = blocks[:-1], last.events + one, min(last.expires_at, expires_at)
    indexes = _with(unread.indexes, place, event)
    return Unread((*blocks, Block(one, expires_at)), unread.count + 1, min(unread.expires_at, expires_at), indexes)


def restored(unread: Unread | None, place: int, event: Event) -> Unread:
    """Return the queue with one more event, at its place in the order of sending."""
    if unread is None or unread.blocks[-1].events[-1][0] < place:
        return added(unread, place, event)
    index = bisect_left(unread.blocks, place, key=_last_place)
    block = unread.blocks[index]
    at = bisect_left(block.events, place, key=itemgetter(0))
    grown = Block((*block.events[:at], (place, event), *block.events[at:]), min(block.expires_at, event.expires_at))
    blocks = (*unread.blocks[:index], grown, *unread.blocks[index + 1 :])
    indexes = _with(unread.indexes, place, event)
    return Unread(blocks, unread.count + 1, min(unread.expires_at, event.expires_at), indexes)


def first(unread: Unread, where: tuple[tuple[str, str], ...], now: int) -> Placed | None:
    """Return the first event that has these fields and has not expired."""
    some: Iterable[Placed] = unread
    if where:
        shape = tuple(name for name, _ in where)
        index = unread.indexes.get(shape)
        if index is None:
            index = _indexed(unread, shape)
            # An index adds no information. So changing this frozen value in place makes no difference to code that has
            # it.
            force_setattr(unread, "indexes", {**unread.indexes, shape: index})
        some = index.get(tuple(value for _, value in where), ())
    return next((placed for placed in some if placed[1].expires_at > now), None)


def _indexed(unread: Unread, shape: Shape) -> Index:
    found: dict[tuple[str, ...], list[Placed]] = {}
    for placed in unread:
        if (values := _values(placed[1], shape)) is not None:
            found.setdefault(values, []).append(placed)
    return Pages({values: Line.of(some) for values, some in found.items()})


def _values(event: Event, shape: Shape) -> tuple[str, ...] | None:
    fields = event.fields
    return tuple([fields[name] for name in shape]) if all(name in fields for name in shape) else None


def _with(indexes: dict[Shape, Index], place: int, event: Event) -> dict[Shape, Index]:
    if not indexes:
        return indexes
    grown: dict[Shape, Index] = {}
    for shape, index in indexes.items():
        values = _values(event, shape)
        line: Line[int, Event] | None = None if values is None else index.get(values)
        grown[shape] = index if values is None else index.changed({values: (line or Line()).added(place, event)})
    return grown


def _less(indexes: dict[Shape, Index], gone: Iterable[Placed]) -> dict[Shape, Index]:
    if not indexes:
        return indexes
    gone = list(gone)
    left: dict[Shape, Index] = {}
    for shape, index in indexes.items():
        changed: dict[tuple[str, ...], Line[int, Event]] = {}
        for place, event in gone:
            if (values := _values(event, shape)) is not None:
                changed[values] = changed.get(values, index[values]).without(place)
        empty = [values for values, line in changed.items() if not line]
        left[shape] = index.changed({values: line for values, line in changed.items() if line}, empty)
    return left


def without(unread: Unread, place: int) -> Unread | None:
    """Return the queue without the event at this place. Return None if no event is left. After that, `expires_at` may
    be too early, but it is never too late.
    """
    index = bisect_left(unread.blocks, place, key=_last_place)
    if index == len(unread.blocks):
        return unread
    block = unread.blocks[index]
    at = bisect_left(block.events, place, key=itemgetter(0))
    if block.events[at][0] != place:
        return unread
    left = block.events[:at] + block.events[at + 1 :]
    kept = (Block(left, block.expires_at),) if left else ()
    blocks = (*unread.blocks[:index], *kept, *unread.blocks[index + 1 :])
    if not blocks:
        return None
    return Unread(blocks, unread.count - 1, unread.expires_at, _less(unread.indexes, (block.events[at],)))


def without_ids(unread: Unread, ids: set[str]) -> Unread | None:
    """Return the queue without the events with these ids. Each id that is found is removed from `ids`.

    The search begins with the earliest event, because the events that a run reads were mostly sent first. It ends when
    all ids are found.
    """
    blocks: list[Block] = []
    gone: list[Placed] = []
    for index, block in enumerate(unread.blocks):
        if not ids:
            blocks += unread.blocks[index:]
            break
        left = tuple(placed for placed in block.events if placed[1].id not in ids)
        if len(left) < len(block.events):
            gone += [placed for placed in block.events if placed[1].id in ids]
            ids.difference_update([event.id for _, event in block.events])
            block = Block(left, block.expires_at)  # noqa: PLW2901
        if left:
            blocks.append(block)
    if not blocks:
        return None
    return Unread(tuple(blocks), unread.count - len(gone), unread.expires_at, _less(unread.indexes, gone))


def without_expired(unread: Unread, now: int) -> Unread | None:
    """Return the queue without the events that have expired at the time `now`."""
    if unread.expires_at > now:
        return unread
    left = _of([block if block.expires_at > now else _block(_unexpired(block, now)) for block in unread.blocks])
    if left is None or not unread.indexes:
        return left
    over = [block for block in unread.blocks if block.expires_at <= now]
    gone = [placed for block in over for placed in block.events if placed[1].expires_at <= now]
    return Unread(left.blocks, left.count, left.expires_at, _less(unread.indexes, gone))


def _last_place(block: Block) -> int:
    return block.events[-1][0]


def _unexpired(block: Block, now: int) -> tuple[Placed, ...]:
    return tuple(placed for placed in block.events if placed[1].expires_at > now)


def _block(events: tuple[Placed, ...]) -> Block:
    return Block(events, min((event.expires_at for _, event in events), default=_NEVER))


def _of(blocks: list[Block]) -> Unread | None:
    some = tuple(block for block in blocks if block.events)
    if not some:
        return None
    return Unread(some, sum(len(block.events) for block in some), min(block.expires_at for block in some))
