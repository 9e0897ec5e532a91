"""Maps and sorted lists that are never changed in place. A change makes a new object that shares almost all parts with
the old one.

The state of a run before a batch is kept until the batch is committed. A run may wait at ten thousand positions. So
neither a map (Pages) nor a sorted list (Line) is copied as a whole. Both consist of parts, and a change copies one
part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Collection, ItemsView, Iterator, Mapping, Sequence, ValuesView
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

PAGE_MAX: Final = 128

K = TypeVar("K")
V = TypeVar("V")

_key_of: Final = itemgetter(0)


class Pages(Mapping[K, V]):
    """A map. As long as all entries fit into one page, they are in the order of adding. With more pages, the order is
    undefined.
    """

    __slots__ = ("_count", "_pages")

    def __init__(self, items: Mapping[K, V] | None = None) -> None:
        plain = dict(items or {})
        self._count = len(plain)
        self._pages: tuple[dict[K, V], ...] = (plain,) if len(plain) <= PAGE_MAX else _cut(plain)

    def __len__(self) -> int:
        return self._count

    def __bool__(self) -> bool:
        return self._count > 0

    def __iter__(self) -> Iterator[K]:
        return chain.from_iterable(self._pages)

    def __getitem__(self, key: K) -> V:
        return self._page(key)[key]

    def __contains__(self, key: object) -> bool:
        pages = self._pages
        return key in (pages[0] if len(pages) == 1 else self._page(key))

    def get(self, key: K, default: Any = None) -> Any:
        pages = self._pages
        return (pages[0] if len(pages) == 1 else self._page(key)).get(key, default)

    def items(self) -> ItemsView[K, V]:
        return self._pages[0].items() if len(self._pages) == 1 else super().items()

    def values(self) -> ValuesView[V]:
        return self._pages[0].values() if len(self._pages) == 1 else super().values()

    def __repr__(self) -> str:
        return f"Pages({dict(self)!r})"

    def changed(self, put: Mapping[K, V], gone: Collection[K] = ()) -> Pages[K, V]:
        """Return this map without the keys in `gone`, and with the entries in `put`."""
        if not put and not gone:
            return self
        pages = self._pages
        if len(pages) == 1:
            page = pages[0].copy()
            for key in gone:
                page.pop(key, None)
            page.update(put)
            if len(page) > PAGE_MAX:
                return Pages(page)
            made: Pages[K, V] = Pages.__new__(Pages)  # as `_made`, without a call: most maps are small
            made._pages, made._count = (page,), len(page)
            return made
        copies: dict[int, dict[K, V]] = {}
        mask = len(pages) - 1
        for key in gone:
            if (at := hash(key) & mask) not in copies:
                copies[at] = pages[at].copy()
            copies[at].pop(key, None)
        for key, value in put.items():
            if (at := hash(key) & mask) not in copies:
                copies[at] = pages[at].copy()
            copies[at][key] = value
        left = list(pages)
        count = self._count
        for at, page in copies.items():
            count += len(page) - len(pages[at])
            left[at] = page
        if not len(pages) * PAGE_MAX // 16 <= count <= len(pages) * PAGE_MAX:
            return Pages({key: value for page in left for key, value in page.items()})
        return self._made(tuple(left), count)

    @classmethod
    def _made(cls, pages: tuple[dict[K, V], ...], count: int) -> Pages[K, V]:
        made: Pages[K, V] = cls.__new__(cls)
        made._pages, made._count = pages, count
        return made

    def _page(self, key: object) -> dict[K, V]:
        pages = self._pages
        return pages[0] if len(pages) == 1 else pages[hash(key) & (len(pages) - 1)]


def _cut(items: dict[K, V]) -> tuple[dict[K, V], ...]:
    """Split items into pages that are less than half full on average. The number of pages is a power of two."""
    number = 1 << (2 * len(items) // PAGE_MAX).bit_length()
    pages: tuple[dict[K, V], ...] = tuple({} for _ in range(number))
    for key, value in items.items():
        pages[hash(key) & (number - 1)][key] = value
    return pages


class Line(Generic[K, V]):
    """Values in the order of their keys. Values are added and removed one at a time. Each key occurs once."""

    __slots__ = ("_blocks",)

    def __init__(self, blocks: tuple[tuple[tuple[K, V], ...], ...] = ()) -> None:
        self._blocks = blocks

    @classmethod
    def of(cls, entries: Sequence[tuple[K, V]]) -> Line[K, V]:
        """Return a line of these entries. They must be in order."""
        return cls(tuple(tuple(entries[at : at + PAGE_MAX]) for at in range(0, len(entries), PAGE_MAX)))

    def __bool__(self) -> bool:
        return bool(self._blocks)

    def __iter__(self) -> Iterator[tuple[K, V]]:
        for block in self._blocks:
            yield from block

    @property
    def first(self) -> tuple[K, V]:
        """The entry with the lowest key. Raises IndexError if the line is empty."""
        return self._blocks[0][0]

    def added(self, key: K, value: V) -> Line[K, V]:
        """Return the line with one more entry at the place of its key. Mostly this is the end."""
        blocks, one = self._blocks, ((key, value),)
        if not blocks or blocks[-1][-1][0] < key:  # type: ignore[operator]
            if blocks and len(blocks[-1]) < PAGE_MAX:
                return Line((*blocks[:-1], blocks[-1] + one))
            return Line((*blocks, one))
        at = self._block_of(key)
        block = blocks[at]
        place = _place_of(block, key)
        grown = block[:place] + one + block[place:]
        middle = len(grown) // 2
        parts = (grown,) if len(grown) <= PAGE_MAX else (grown[:middle], grown[middle:])
        return Line((*blocks[:at], *parts, *blocks[at + 1 :]))

    def without(self, key: K) -> Line[K, V]:
        """Return the line without the entry that has this key. If no entry has it, the line is unchanged."""
        blocks = self._blocks
        at = self._block_of(key)
        if at == len(blocks):
            return self
        block = blocks[at]
        place = _place_of(block, key)
        if block[place][0] != key:
            return self
        left = block[:place] + block[place + 1 :]
        return Line((*blocks[:at], *((left,) if left else ()), *blocks[at + 1 :]))

    def _block_of(self, key: K) -> int:
        """Return the number of the first block whose last key is equal to this key or greater."""
        return _block_of(self._blocks, key)


def _place_of(block: Any, key: Any) -> int:
    return bisect_left(block, key, key=_key_of)


def _block_of(blocks: Any, key: Any) -> int:
    return bisect_left(blocks, key, key=_last_key)


def _last_key(block: tuple[tuple[Any, Any], ...]) -> Any:
    return block[-1][0]
