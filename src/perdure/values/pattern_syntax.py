"""Regular expressions in RE2's syntax, parsed into parts: sets of characters, sequences, choices, repetitions."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from typing import Any, Final

LENGTH_MAX: Final = 1_000
DEPTH_MAX: Final = 30
REPEATS_MAX: Final = 1_000

_LAST: Final = sys.maxunicode
_DIGITS: Final = ((48, 57),)
_SPACES: Final = ((9, 10), (12, 13), (32, 32))
_WORD: Final = ((48, 57), (65, 90), (95, 95), (97, 122))
_CLASSES: Final = {"d": _DIGITS, "s": _SPACES, "w": _WORD}
_POSIX: Final = {
    "alnum": ((48, 57), (65, 90), (97, 122)), "alpha": ((65, 90), (97, 122)), "ascii": ((0, 127),),
    "blank": ((9, 9), (32, 32)), "cntrl": ((0, 31), (127, 127)), "digit": _DIGITS, "graph": ((33, 126),),
    "lower": ((97, 122),), "print": ((32, 126),), "punct": ((33, 47), (58, 64), (91, 96), (123, 126)),
    "space": ((9, 13), (32, 32)), "upper": ((65, 90),), "word": _WORD, "xdigit": ((48, 57), (65, 70), (97, 102)),
}  # fmt: skip
_CATEGORIES: Final = (
    "Cc", "Cf", "Cn", "Co", "Cs", "Ll", "Lm", "Lo", "Lt", "Lu", "Mc", "Me", "Mn", "Nd", "Nl", "No",
    "Pc", "Pd", "Pe", "Pf", "Pi", "Po", "Ps", "Sc", "Sk", "Sm", "So", "Zl", "Zp", "Zs",
)  # fmt: skip
_CONTROLS: Final = {"a": "\a", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_REPEAT: Final = re.compile(r"\{(\d{1,5})(?:(,)(\d{1,5})?)?\}", re.ASCII)
_GROUP: Final = re.compile(
    r"\?(?:P?<(?P<name>[A-Za-z_]\w{0,100})>|(?P<flags>[imsU]*(?:-[imsU]+)?)(?P<end>[:)]))", re.ASCII
)
_HEX: Final = re.compile(r"x(?:([0-9a-fA-F]{2})|\{([0-9a-fA-F]{1,6})\})")
_CATEGORY: Final = re.compile(r"([pP])(?:\{(\^?)([A-Z][a-z]?)\}|([A-Z]))")
_POSIX_CLASS: Final = re.compile(r"\[:(\^?)([a-z]+):\]")

Ranges = Iterable[tuple[int, int]]


class PatternFailed(Exception):
    """A pattern is invalid or not supported. The message says what is wrong."""


class Chars:
    """A set of characters: ranges by their ends, and Unicode's general categories. A category is named by the beginning
    of its name (`L`, `Lu`). Its flag says whether the category is excluded.
    """

    __slots__ = ("categories", "highs", "ignores_case", "is_negated", "lows")

    def __init__(
        self,
        ranges: Ranges,
        categories: Iterable[tuple[str, bool]] = (),
        *,
        is_negated: bool = False,
        ignores_case: bool = False,
    ) -> None:
        lows: list[int] = []
        highs: list[int] = []
        for low, high in sorted(ranges):
            if highs and low <= highs[-1] + 1:
                highs[-1] = max(highs[-1], high)
            else:
                lows.append(low)
                highs.append(high)
        self.lows = lows
        self.highs = highs
        # All categories are stored by their full names, so that the cost of a look-up does not depend on the number of
        # categories in the pattern.
        given = list(categories)
        self.categories = frozenset(
            name for name in _CATEGORIES if any(name.startswith(one) is not is_not for one, is_not in given)
        )
        self.is_negated = is_negated
        self.ignores_case = ignores_case


# A part is a set of characters; the name of an assertion; ("then", parts); ("or", parts); or ("repeat", part, fewest,
# most or None). Every part except the empty part becomes at least one state. So the number of states bounds the cost of
# compiling a pattern.
Part = Chars | str | tuple[Any, ...]
_EMPTY: Final[Part] = ("then", [])


def _then(parts: list[Part]) -> Part:
    """Return parts in sequence, without empty parts such as `()` and `a{0}`."""
    found = [part for part in parts if part != _EMPTY]
    return found[0] if len(found) == 1 else ("then", found)


def _repeat(part: Part, fewest: int, most: int | None) -> Part:
    if part == _EMPTY or most == 0:
        return _EMPTY
    return part if fewest == most == 1 else ("repeat", part, fewest, most)


def parse(source: str) -> Part:
    """Return the parts of a pattern. Raises PatternFailed."""
    if len(source) > LENGTH_MAX:
        raise PatternFailed(f"it has {len(source):,} characters, and a pattern has at most {LENGTH_MAX:,}")
    parser = _Parser(source)
    found = parser.choice(0)
    if not parser.is_at_end:
        raise PatternFailed("it has a ) too many")
    return found


class _Parser:
    def __init__(self, source: str) -> None:
        self._source = source
        self._at = 0
        self._flags: frozenset[str] = frozenset()

    @property
    def is_at_end(self) -> bool:
        return self._at >= len(self._source)

    def choice(self, depth: int) -> Part:
        if depth > DEPTH_MAX:
            raise PatternFailed(f"it nests deeper than {DEPTH_MAX}")
        choices: list[Part] = []
        parts: list[Part] = []
        while not self.is_at_end and self._source[self._at] != ")":
            if self._takes("|"):
                choices.append(_then(parts))
                parts = []
            elif (part := self._part(depth)) is not None:
                parts.append(self._repeated(part))
        choices.append(_then(parts))
        return choices[0] if len(choices) == 1 else ("or", choices)

    def _takes(self, text: str) -> bool:
        if not self._source.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _part(self, depth: int) -> Part | None:
        """Read one part; return None if it only set flags for the following parts."""
        char = self._source[self._at]
        self._at += 1
        if char == "(":
            return self._group(depth)
        if char == "[":
            return self._class()
        if char == "\\":
            return self._escape()
        if char == ".":
            return Chars([(0, _LAST)] if "s" in self._flags else [(0, 9), (11, _LAST)])
        if char == "^":
            return "line start" if "m" in self._flags else "start"
        if char == "$":
            return "line end" if "m" in self._flags else "end"
        if char in "*+?":
            raise PatternFailed(f"there is nothing to repeat before the {char} at character {self._at}")
        return self._one(char)

    def _one(self, char: str) -> Chars:
        return Chars([(ord(char), ord(char))], ignores_case="i" in self._flags)

    def _group(self, depth: int) -> Part | None:
        outside = self._flags
        if self._source.startswith("?", self._at):
            match = _GROUP.match(self._source, self._at)
            if match is None:
                raise PatternFailed(f"there is no such group as that at character {self._at}")
            self._at = match.end()
            on, _, off = (match["flags"] or "").partition("-")
            flags = (outside | set(on)) - set(off)
            if match["end"] == ")":
                self._flags = flags
                return None
            self._flags = flags if match["name"] is None else outside
        found = self.choice(depth + 1)
        if not self._takes(")"):
            raise PatternFailed("it has a ( without its )")
        self._flags = outside
        return found

    def _repeated(self, part: Part) -> Part:
        while not self.is_at_end:
            if self._takes("*"):
                part = _repeat(part, 0, None)
            elif self._takes("+"):
                part = _repeat(part, 1, None)
            elif self._takes("?"):
                part = _repeat(part, 0, 1)
            elif (match := _REPEAT.match(self._source, self._at)) is not None:
                self._at = match.end()
                fewest = int(match[1])
                most = fewest if match[2] is None else None if match[3] is None else int(match[3])
                if max(fewest, most or 0) > REPEATS_MAX or (most is not None and most < fewest):
                    raise PatternFailed(f"{match[0]} is no number of times between 0 and {REPEATS_MAX:,}")
                part = _repeat(part, fewest, most)
            else:
                return part
            self._takes("?")  # Whether a repetition is greedy makes no difference to whether the text matches.
            if self._source[self._at : self._at + 1] in ("*", "+", "?"):
                raise PatternFailed(f"what is repeated is repeated again at character {self._at + 1}")
        return part

    def _escape(self) -> Part:
        if self.is_at_end:
            raise PatternFailed("it ends with a backslash")
        char = self._source[self._at]
        assertion = {"b": "border", "B": "no border", "A": "start", "z": "end"}.get(char)
        if assertion is not None:
            self._at += 1
            return assertion
        ranges, categories = self._escaped_class()
        if categories or ranges is not None:
            return Chars(ranges or (), categories)
        return self._one(self._escaped_char())

    def _escaped_class(self) -> tuple[Ranges | None, list[tuple[str, bool]]]:
        """Return the set of characters that an escape means. Return None if the escape means a single character."""
        char = self._source[self._at : self._at + 1]
        if char.lower() in _CLASSES and char:
            self._at += 1
            ranges = _CLASSES[char.lower()]
            return (ranges if char.islower() else _others(ranges)), []
        match = _CATEGORY.match(self._source, self._at)
        if match is None:
            return None, []
        self._at = match.end()
        return None, [(match[3] or match[4], (match[1] == "P") is not bool(match[2]))]

    def _escaped_char(self) -> str:
        match = _HEX.match(self._source, self._at)
        if match is not None:
            code = int(match[1] or match[2], 16)
            if code > _LAST:
                raise PatternFailed(f"there is no character {match[0]}")
            self._at = match.end()
            return chr(code)
        char = self._source[self._at : self._at + 1]
        self._at += 1
        if char in _CONTROLS and char:
            return _CONTROLS[char]
        if not char or char == "_" or (char.isascii() and char.isalnum()) or not char.isascii():
            raise PatternFailed(f"there is no escape \\{char} here")
        return char

    def _class(self) -> Chars:
        is_negated = self._takes("^")
        ranges: list[tuple[int, int]] = []
        categories: list[tuple[str, bool]] = []
        is_first = True
        while is_first or not self._takes("]"):
            if self.is_at_end:
                raise PatternFailed("it has a [ without its ]")
            is_first = False
            if (match := _POSIX_CLASS.match(self._source, self._at)) is not None:
                if match[2] not in _POSIX:
                    raise PatternFailed(f"there is no class {match[0]}")
                self._at = match.end()
                ranges += _others(_POSIX[match[2]]) if match[1] else _POSIX[match[2]]
                continue
            if self._takes("\\"):
                found, more = self._escaped_class()
                if found is not None or more:
                    ranges += found or ()
                    categories += more
                    continue
                low = self._escaped_char()
            else:
                low = self._source[self._at]
                self._at += 1
            ranges.append((ord(low), ord(self._range_end(low))))
        return Chars(ranges, categories, is_negated=is_negated, ignores_case="i" in self._flags)

    def _range_end(self, low: str) -> str:
        source, at = self._source, self._at
        if source[at : at + 1] != "-" or source[at + 1 : at + 2] in ("]", ""):
            return low
        self._at += 1
        if self._takes("\\"):
            high = self._escaped_char()
        else:
            high = source[self._at]
            self._at += 1
        if high < low:
            raise PatternFailed(f"{low}-{high} goes backwards")
        return high


def _others(ranges: Ranges) -> list[tuple[int, int]]:
    """Return the ranges of all characters that are outside the given, sorted ranges."""
    found: list[tuple[int, int]] = []
    after = 0
    for low, high in ranges:
        if low > after:
            found.append((after, low - 1))
        after = high + 1
    return [*found, (after, _LAST)]
