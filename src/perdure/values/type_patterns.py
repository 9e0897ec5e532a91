"""Patterns in users' types, as in `Annotated[str, Meta(pattern=…)]`.

msgspec checks texts against these patterns with Python's `re`, on the event loop.

A type is refused if the time for checking a text can grow faster than the length of the text. Only the pattern is
examined, when its type is first used. So reading a value takes no extra time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Final

import msgspec
from msgspec import inspect

from perdure.errors import InvalidDefinition
from perdure.values.pattern_costs import EXPONENTIAL, cost_of

_TRIES_PER_CHAR_MAX: Final = 300


def check_patterns(wanted: Any, what: str) -> None:
    """Raise InvalidDefinition if a type has a pattern whose check can take too long. `what` names the owner of the type
    in the message."""
    try:
        found = _known_patterns(wanted)
    except TypeError:  # The type cannot be hashed for the cache, for instance a Literal of a list.
        found = tuple(_patterns(wanted))
    for pattern, chars_max in found:
        cost = cost_of(pattern)
        if cost > 1 and (chars_max is None or chars_max ** (cost - 1) > _TRIES_PER_CHAR_MAX):
            raise InvalidDefinition(f"{what} has the pattern {pattern!r:.200}: {_remedy(cost)}")


def _remedy(cost: int) -> str:
    if cost >= EXPONENTIAL:
        return (
            "Python's re can take for ever to compare a short text with it, since it can match the same text in very "
            "many ways; write it without a repetition inside a repetition, or adjacent parts that read the same"
        )
    chars = int(_TRIES_PER_CHAR_MAX ** (1 / (cost - 1)))
    return (
        f"the time that Python's re takes grows with the length of the text to the power of {cost}; begin it with ^, "
        "have no two parts next to each other that can read the same text, or give the text a "
        f"max_length of at most {chars}"
    )


@lru_cache(maxsize=512)
def _known_patterns(wanted: Any) -> tuple[tuple[str, int | None], ...]:
    return tuple(_patterns(wanted))


def _patterns(wanted: Any) -> Iterator[tuple[str, int | None]]:
    """Yield the patterns of a type and of its parts, each with the maximum length of a text."""
    try:
        waiting: list[Any] = [inspect.type_info(wanted)]
    except Exception:  # noqa: BLE001 - msgspec cannot describe names that are defined later, or foreign types
        return
    seen: set[int] = set()
    while waiting:
        found = waiting.pop()
        if id(found) in seen:
            continue
        seen.add(id(found))
        if isinstance(found, inspect.StrType):
            if found.pattern is not None and _compiles(found.pattern):
                yield found.pattern, found.max_length
        elif isinstance(found, msgspec.Struct):
            for name in found.__struct_fields__:
                value = getattr(found, name)
                waiting += [
                    one for one in (value if isinstance(value, tuple) else (value,)) if isinstance(one, _DESCRIBED)
                ]


_DESCRIBED: Final = (inspect.Type, inspect.Field)


def _compiles(pattern: str) -> bool:
    try:
        re.compile(pattern)
    except (re.error, RecursionError, OverflowError):
        return False  # msgspec has already refused the type.
    return True


__all__ = ["check_patterns"]
