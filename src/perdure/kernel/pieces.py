"""Work in pieces: a generator that yields between two pieces and returns the result at its end.

Its caller lets other tasks of the loop run between the pieces. The size of a piece is a number of items. The duration
of a piece is not measured, so the same work has the same pieces on every machine.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Sequence
from typing import Final, TypeVar

T = TypeVar("T")
S = TypeVar("S")

Pieces = Generator[None, None, T]

PIECE_ITEMS_MAX: Final = 256


def at_once(work: Pieces[T]) -> T:
    """Do all pieces one after the other, and return the result."""
    while True:
        try:
            next(work)
        except StopIteration as done:
            result: T = done.value
            return result


def parts(items: Sequence[S]) -> Iterable[tuple[int, Sequence[S]]]:
    """Split items into parts of at most PIECE_ITEMS_MAX items. Each part comes with the number of items before it."""
    if not items:
        return ()
    return ((0, items),) if len(items) <= PIECE_ITEMS_MAX else _cut(items)


def _cut(items: Sequence[S]) -> Iterator[tuple[int, Sequence[S]]]:
    for start in range(0, len(items), PIECE_ITEMS_MAX):
        yield start, items[start : start + PIECE_ITEMS_MAX]
