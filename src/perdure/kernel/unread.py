"""Events of one name that a run has yet to read, in the order of sending. Pure.

What a run has before a batch is kept until the batch is committed, so nothing here is changed in place. Events are in
blocks: adding or taking one copies its block and the list of blocks, not fifty thousand events.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Final

from msgspec import Struct

from perdure.kernel.records import Event

BLOCK_MAX: Final = 256
_NEVER: Final = 2**63

Placed = tuple[int, Event]  # with its place in the order of sending, among all events of the run


class Block(Struct, frozen=True, gc=False):
    """Some events that were sent one after the other, and when the first of them expires."""

    events: tuple[Placed, ...]
    expires_at: int


class Unread(Struct, frozen=True, gc=False):
    """All of a name: never none. How many there are, and when the first of them expires."""

    blocks: tuple[Block, ...]
    count: int
    expires_at: int

    def __iter__(self) -> Iterator[Placed]:
        for block in self.blocks:
            yield from block.events


def of(events: list[Placed]) -> Unread | None:
    """These events, which are in order."""
    return _of([_block(tuple(events[start : start + BLOCK_MAX])) for start in range(0, len(events), BLOCK_MAX)])


def added(unread: Unread | None, place: int, event: Event) -> Unread:
    """With one more, which was sent last."""
    one: tuple[Placed, ...] = ((place, event),)
    expires_at = event.expires_at
    if unread is None:
        return Unread((Block(one, expires_at),), 1, expires_at)
    blocks, last = unread.blocks, unread.blocks[-1]
    if len(last.events) < BLOCK_MAX:
        blocks, one, expires_at = blocks[:-1], last.events + one, min(last.expires_at, expires_at)
    return Unread((*blocks, Block(one, expires_at)), unread.count + 1, min(unread.expires_at, expires_at))


def restored(unread: Unread | None, place: int, event: Event) -> Unread:
    """With one more, which was sent when its place says."""
    if unread is None or unread.blocks[-1].events[-1][0] < place:
        return added(unread, place, event)
    index = next(index for index, block in enumerate(unread.blocks) if block.events[-1][0] > place)
    block = unread.blocks[index]
    at = next(at for at, (other, _) in enumerate(block.events) if other > place)
    grown = Block((*block.events[:at], (place, event), *block.events[at:]), min(block.expires_at, event.expires_at))
    blocks = (*unread.blocks[:index], grown, *unread.blocks[index + 1 :])
    return Unread(blocks, unread.count + 1, min(unread.expires_at, event.expires_at))


def first(unread: Unread, fits: Callable[[Event], bool], now: int) -> Placed | None:
    """The first that fits and has not expired."""
    return next((placed for placed in unread if placed[1].expires_at > now and fits(placed[1])), None)


def without(unread: Unread, place: int) -> Unread | None:
    """What is left without the one at this place. When the first expires may be told too early then, never too late."""
    for index, block in enumerate(unread.blocks):
        if block.events[-1][0] >= place:
            at = bisect_left(block.events, place, key=itemgetter(0))
            left = block.events[:at] + block.events[at + (block.events[at][0] == place) :]
            kept = (Block(left, block.expires_at),) if left else ()
            blocks = (*unread.blocks[:index], *kept, *unread.blocks[index + 1 :])
            count = unread.count + len(left) - len(block.events)
            return Unread(blocks, count, unread.expires_at) if blocks else None
    return unread


def without_ids(unread: Unread, ids: set[str]) -> Unread | None:
    """What is left without the events that have one of these ids, which are taken out of `ids` as they are found.

    Events are looked at from the earliest on, until all were found: those that are read were mostly sent first."""
    blocks: list[Block] = []
    for index, block in enumerate(unread.blocks):
        if not ids:
            blocks += unread.blocks[index:]
            break
        left = tuple(placed for placed in block.events if placed[1].id not in ids)
        if len(left) < len(block.events):
            ids.difference_update([event.id for _, event in block.events])
            block = Block(left, block.expires_at)  # noqa: PLW2901
        if left:
            blocks.append(block)
    count = sum(len(block.events) for block in blocks)
    return Unread(tuple(blocks), count, unread.expires_at) if blocks else None


def without_expired(unread: Unread, now: int) -> Unread | None:
    """What is left of it at a time."""
    if unread.expires_at > now:
        return unread
    return _of([block if block.expires_at > now else _block(_unexpired(block, now)) for block in unread.blocks])


def _unexpired(block: Block, now: int) -> tuple[Placed, ...]:
    return tuple(placed for placed in block.events if placed[1].expires_at > now)


def _block(events: tuple[Placed, ...]) -> Block:
    return Block(events, min((event.expires_at for _, event in events), default=_NEVER))


def _of(blocks: list[Block]) -> Unread | None:
    some = tuple(block for block in blocks if block.events)
    if not some:
        return None
    return Unread(some, sum(len(block.events) for block in some), min(block.expires_at for block in some))
