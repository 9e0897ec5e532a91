"""The budget of one rendering, in steps and characters. Both are the same on every machine and in every replay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

STEPS_MAX: Final = 100_000  # A rendering with so many steps takes 5 to 25 ms: see bench/templates.py.
OUTPUT_CHARS_MAX: Final = 4_000_000
CHARS_PER_STEP: Final = 64  # copying and searching a character is much faster than a step
CALLS_DEPTH_MAX: Final = 30  # the nesting of macro calls
DEPTH_MAX: Final = 60  # the nesting of statements, including the statements of macros
VALUE_DEPTH_MAX: Final = 100  # the nesting of lists and objects that are shown or compared


class SyntaxWrong(Exception):
    """The source is not a valid template."""


class RenderingFailed(Exception):
    """A template cannot be rendered. `line` counts from 1. `variable` is the missing variable, as it is written in the
    source.
    """

    def __init__(self, message: str, *, line: int | None = None, variable: str | None = None) -> None:
        super().__init__(message)
        self.line = line
        self.variable = variable


class TooMuch(RenderingFailed):
    """The rendering exceeds its budget."""


class Undefined:
    """A missing value, with its name in the source."""

    __slots__ = ("line", "source")

    def __init__(self, source: str, line: int) -> None:
        self.source = source
        self.line = line

    def failure(self) -> RenderingFailed:
        return RenderingFailed(f"{self.source!r} is not defined", line=self.line, variable=self.source)


class Frame:
    """One rendering. It has the rest of its budget, its variables, and the text that was written so far."""

    __slots__ = ("calls", "chars_left", "depth", "left", "scopes")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.left = STEPS_MAX
        self.chars_left = OUTPUT_CHARS_MAX
        self.depth = 0  # the current nesting of statements
        self.calls = 0  # the current nesting of macro calls
        self.scopes: list[dict[str, Any]] = [dict(values), {}]

    def spend(self, steps: int) -> None:
        """Subtract steps from the budget, before they are done. Raises TooMuch."""
        self.left -= steps
        if self.left < 0:
            raise TooMuch(f"it takes more than {STEPS_MAX:,} steps; give it less to go through, or have a step do it")

    def spend_text(self, chars: int) -> None:
        """Subtract the cost of copying or searching `chars` characters from the budget. Raises TooMuch."""
        self.spend(1 + chars // CHARS_PER_STEP)

    def spend_value(self, value: Any, times: int = 1) -> int:
        """Spend the cost of reading a value `times` times. Return the approximate number of its characters. Raises
        TooMuch, RenderingFailed.
        """
        chars, level = 0, [value]
        for _ in range(VALUE_DEPTH_MAX + 1):
            if not level:
                return chars
            inner: list[Any] = []
            for part in level:
                if isinstance(part, str):
                    chars += len(part) + 2
                    self.left -= times * (1 + len(part) // CHARS_PER_STEP)
                elif isinstance(part, Mapping):
                    self.left -= times * (1 + 2 * len(part))
                    if self.left >= 0:
                        inner += part.keys()
                        inner += part.values()
                elif isinstance(part, list | tuple):
                    self.left -= times * (1 + len(part))
                    if self.left >= 0:
                        inner += part
                elif isinstance(part, Undefined):
                    raise part.failure()
                else:
                    chars += 8
                    self.left -= times
                if self.left < 0:
                    self.spend(0)
            level = inner
        raise RenderingFailed(f"it has lists or objects more than {VALUE_DEPTH_MAX} deep inside each other")

    def write(self, out: list[str], text: str) -> None:
        """Write a text, and spend the cost of writing it. Raises TooMuch."""
        self.chars_left -= len(text)
        if self.chars_left < 0:
            raise TooMuch(f"it writes more than {OUTPUT_CHARS_MAX:,} characters")
        # The same as spend_text, but without two function calls for each text.
        self.left -= 1 + len(text) // CHARS_PER_STEP
        if self.left < 0:
            self.spend(0)
        out.append(text)

    def find(self, name: str, default: Any) -> Any:
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return default
