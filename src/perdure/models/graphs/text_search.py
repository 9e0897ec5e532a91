"""Search in texts, with a cost that is known beforehand.

CPython's `find`, `count`, `split`, `replace` and `in` take linear time in long texts. In short texts they compare the
part at each place, so the only bound is the product of both lengths. `rfind` does so in all texts.
"""

from __future__ import annotations

from typing import Final

# CPython searches linearly in texts from these lengths on (Objects/stringlib/fastsearch.h, from 3.10).
_SHORT_TEXT: Final = 2_500
_TEXT_FOR_SHORT_PART: Final = 30_000
_SHORT_PART: Final = 100
_CHARS_PER_CHAR: Final = 4  # A search reads a text more often than a copy does.
_COMPARISONS_PER_CHAR: Final = 24


def search_chars(text: str, part: str) -> int:
    """Return how many characters could be copied in the longest time that a search for a part takes."""
    chars = _CHARS_PER_CHAR * len(text) + len(part)
    if len(text) < _SHORT_TEXT or (len(part) < _SHORT_PART and len(text) < _TEXT_FOR_SHORT_PART):
        chars += max(0, len(text) - len(part)) * len(part) // _COMPARISONS_PER_CHAR
    return chars


def last_index(text: str, part: str, end: int | None = None) -> int:
    """Return where the last such part begins that ends at `end` or before; -1 if there is none.

    It gives the result of `text.rfind(part, 0, end)` in the time of a forward search. `end` is not negative.
    """
    backwards = text[:end][::-1]
    found = backwards.find(part[::-1])
    return -1 if found < 0 else len(backwards) - found - len(part)


__all__ = ["last_index", "search_chars"]
