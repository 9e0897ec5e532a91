"""Search in texts, with a cost that can be computed before the search.

CPython's `find`, `count`, `split`, `replace` and `in` take linear time in long texts. In short texts these functions
compare the part at each place. So the bound for their time is the product of both lengths. `rfind` does that in all
texts.
"""

from __future__ import annotations

from typing import Final

# From these lengths on, CPython searches in linear time (Objects/stringlib/fastsearch.h, since 3.10).
_SHORT_TEXT: Final = 2_500
_TEXT_FOR_SHORT_PART: Final = 30_000
_SHORT_PART: Final = 100
_CHARS_PER_CHAR: Final = 4  # a search reads each character more often than a copy does
_COMPARISONS_PER_CHAR: Final = 24


def search_chars(text: str, part: str) -> int:
    """Return a cost for the search for a part. It is the number of characters that could be copied in the longest time
    that the search can take.
    """
    chars = _CHARS_PER_CHAR * len(text) + len(part)
    if len(text) < _SHORT_TEXT or (len(part) < _SHORT_PART and len(text) < _TEXT_FOR_SHORT_PART):
        chars += max(0, len(text) - len(part)) * len(part) // _COMPARISONS_PER_CHAR
    return chars


def last_index(text: str, part: str, end: int | None = None) -> int:
    """Return the index of the last occurrence of the part that ends at or before `end`. Return -1 if there is none.

    The result is the same as `text.rfind(part, 0, end)`, in the time of a forward search. `end` must not be negative.
    """
    backwards = text[:end][::-1]
    found = backwards.find(part[::-1])
    return -1 if found < 0 else len(backwards) - found - len(part)


__all__ = ["last_index", "search_chars"]
