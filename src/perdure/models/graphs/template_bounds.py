"""What a template may take: how long its source and its parts are, and how much it writes.

The engine of templates counts instructions (its fuel), but not what they write, and overflows the stack on expressions
with thousands of operators. So a source is looked at before it is parsed, and a meter counts while it is rendered: all
that a template shows goes through it, and each time around a loop or into a macro so much as the text in there has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

CHARS_MAX: Final = 100_000  # of a source
TAG_CHARS_MAX: Final = 2_000  # of what is between {{ and }}, or {% and %}, but for texts in quotes
CHOICES_MAX: Final = 100  # of {% elif %}
OUTPUT_CHARS_MAX: Final = 4_000_000
FUEL: Final = 200_000
METER: Final = "__passed"  # what templates call to be counted; no name that anybody would use

_TAG: Final = re.compile(
    r"""\{\{(?:[^"'}]|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\}(?!\}))*\}\}"""
    r"""|\{%(?:[^"'%]|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|%(?!\}))*%\}|\{\#.*?\#\}""",
    re.DOTALL,
)
_QUOTED: Final = re.compile(r""""(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'""", re.DOTALL)
_WORD: Final = re.compile(r"\{%[-+]?\s*(\w+)")
_REPEATED: Final = {"for": "endfor", "macro": "endmacro", "call": "endcall", "block": "endblock"}


class TooMuch(Exception):
    """What is too much about a template, or about what it writes."""


class Metered:
    """A source in which loops and macros tell how much text is in them. Positions in it lead back to the original."""

    __slots__ = ("_inserted", "source")

    def __init__(self, source: str) -> None:
        """Raises TooMuch."""
        if len(source) > CHARS_MAX:
            raise TooMuch(f"it has {len(source):,} characters, and a template has at most {CHARS_MAX:,}")
        tags = list(_TAG.finditer(source))
        _check(tags)
        self._inserted: list[tuple[int, int]] = []  # where, in bytes, and how many
        parts: list[str] = []
        at = 0
        for position, chars, is_trimmed in sorted(_repeated_texts(tags)):
            call = f"{{{{ {METER}({chars}) {'-' if is_trimmed else ''}}}}}"
            parts += (source[at:position], call)
            self._inserted.append((len(source[:position].encode(errors="replace")), len(call)))
            at = position
        self.source = "".join([*parts, source[at:]])

    def position(self, found: int) -> int:
        """Where in the original source, in bytes, something is that is at a position in this one."""
        for at, length in self._inserted:
            if found <= at:
                break
            found -= length
        return found


def _check(tags: list[re.Match[str]]) -> None:
    for tag in tags:
        if tag[0].startswith("{#"):
            continue
        length = len(_QUOTED.sub("''", tag[0]))
        if length > TAG_CHARS_MAX:
            raise TooMuch(f"{tag[0][:40]}… has {length:,} characters, and a tag has at most {TAG_CHARS_MAX:,}")
    choices = sum((word := _WORD.match(tag[0])) is not None and word[1] == "elif" for tag in tags)
    if choices > CHOICES_MAX:
        raise TooMuch(f"it has {choices:,} times elif, and a template has it at most {CHOICES_MAX} times")


def _repeated_texts(tags: list[re.Match[str]]) -> Iterator[tuple[int, int, bool]]:
    """For each part that may be written many times: where it begins, how much text is in it, whether it is trimmed."""
    within: list[tuple[str, int, bool, int]] = []  # what ends it, where it begins, is it trimmed, the text before it
    text = at = 0
    is_raw = False
    for tag in tags:
        text += tag.start() - at
        at = tag.end()
        word = _WORD.match(tag[0])
        name = word[1] if word else ""
        if is_raw or name in ("raw", "endraw"):
            is_raw = name != "endraw"
            text += len(tag[0])
        elif name in _REPEATED and not (name == "block" and tag[0].endswith("/%}")):
            within.append((_REPEATED[name], tag.end(), tag[0].endswith("-%}"), text))
        elif within and name == within[-1][0]:
            _, begins, is_trimmed, before = within.pop()
            yield begins, text - before, is_trimmed


class _Meter:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = OUTPUT_CHARS_MAX


_meter: ContextVar[_Meter | None] = ContextVar("perdure_template_meter", default=None)


@contextmanager
def metering() -> Generator[None]:
    """Count what is written in here."""
    token = _meter.set(_Meter())
    try:
        yield
    finally:
        _meter.reset(token)


def spend(chars: int) -> None:
    """Raises TooMuch."""
    meter = _meter.get()
    if meter is not None:
        meter.left -= chars
        if meter.left < 0:
            raise TooMuch(f"it writes more than {OUTPUT_CHARS_MAX:,} characters")


def check_output(text: str) -> None:
    """Raises TooMuch."""
    if len(text) > OUTPUT_CHARS_MAX:
        raise TooMuch(f"it writes more than {OUTPUT_CHARS_MAX:,} characters")


def passed(chars: int) -> str:
    """So much text follows."""
    spend(chars)
    return ""


def shown(value: Any) -> Any:
    """What a template shows, once it is counted."""
    if isinstance(value, str):
        spend(1 + len(value))
    elif isinstance(value, list | tuple | dict):
        spend(_length(value))
    else:
        spend(8)
    return value


def _length(value: Any) -> int:
    """About how many characters a value has as text; no more than it takes to see that these are too many."""
    length, parts = 0, [value]
    while parts and length <= OUTPUT_CHARS_MAX:
        part = parts.pop()
        length += 2 + (len(part) if isinstance(part, str | dict | list | tuple) else 6)
        if isinstance(part, dict):
            parts += part.keys()
            parts += part.values()
        elif isinstance(part, list | tuple):
            parts += part
    return length


# Filters whose result can be much larger than what they are given.


def _replace(value: Any, old: Any, new: Any) -> str:
    text, old, new = str(value), str(old), str(new)
    spend(len(text) + text.count(old) * len(new))
    return text.replace(old, new)


def _indent(value: Any, width: int = 4, first: bool = False, blank: bool = False) -> str:
    lines = str(value).removesuffix("\n").split("\n")
    spend(len(lines) * max(0, int(width)))
    pad = " " * max(0, int(width))
    return "\n".join(pad + line if (number or first) and (line or blank) else line for number, line in enumerate(lines))


def _slice(value: Any, count: int, fill: Any = None) -> list[list[Any]]:
    items, count = list(value), int(count)
    if count < 1:
        raise ValueError("slice needs a number of at least 1")
    spend(8 * count)
    size, more = divmod(len(items), count)
    found: list[list[Any]] = []
    at = 0
    for number in range(count):
        length = size + (number < more)
        part = items[at : at + length]
        at += length
        found.append([*part, fill] if fill is not None and number >= more else part)
    return found


FILTERS: Final[Mapping[str, Callable[..., Any]]] = {"replace": _replace, "indent": _indent, "slice": _slice}
