"""The worst-case cost of a search with Python's `re`, computed from the pattern alone.

msgspec checks `Meta(pattern=…)` with `re`. A search with `re` tries one way to match after the other. With some
patterns, a short text has so many ways to match that the search practically never ends. `cost_of` computes a bound for
the number of ways. It builds an automaton. The states are the places of the pattern that read a character. Then it
looks for two paths that read the same text.

- If two different paths lead from a state back to itself, the number of ways doubles with each turn, so the time is
  exponential.
- If one path can stay in a state while another path leads to a second state and stays there, the time grows with the
  square of the text's length. For a chain of these states, the time grows with a higher power.
- Otherwise the time is proportional to the length of the text.

The result may be too high, but is never too low. So a search for a pattern with the cost 1 is linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from itertools import product
from typing import Any, Final

# The parser that `re` itself uses. It is not public, but its results have been the same since Python 3.11, the oldest
# supported version.
_parser: Any = import_module("re._parser")
_constants: Any = import_module("re._constants")

EXPONENTIAL: Final = 1_000
_STATES_MAX: Final = 150  # If a pattern has more states, its bounded repetitions are treated as unbounded.
_TRIPLES_MAX: Final = 20_000
_WAYS_MAX: Final = 100_000  # ways to match one text, if no repetition is unbounded
_WAYS_ANYWHERE_MAX: Final = 300  # ways to match one text, if the search tries each place of the text
_CHARS: Final = (1 << 128) - 1
_MULTILINE, _DOTALL, _IGNORECASE, _ASCII = 8, 16, 2, 256
# Characters beyond ASCII, in four disjoint kinds: digits, other word characters, spaces, and all others.
_DIGITS, _LETTERS, _SPACES, _OTHERS = 1, 2, 4, 8
_ALL: Final = _DIGITS | _LETTERS | _SPACES | _OTHERS


@dataclass(frozen=True, slots=True)
class _Chars:
    """A set of characters: ASCII characters as bits, and the kinds of characters beyond ASCII."""

    ascii: int
    kinds: int


_ANY: Final = _Chars(_CHARS, _ALL)


@dataclass(slots=True)
class _Part:
    """A part of a pattern: the states that it can begin and end with, and whether it can read nothing. `ends_free` are
    the end states after which the pattern requires nothing more. `skips_free` says that the part can read nothing and
    then requires nothing else. An assertion reads nothing too, but requires something.
    """

    first: list[int] = field(default_factory=list)
    last: list[int] = field(default_factory=list)
    ends_free: list[int] = field(default_factory=list)
    skips: bool = True
    skips_free: bool = True
    ways: int = 1  # ways to match one text, without unbounded repetitions
    has_loop: bool = False


@lru_cache(maxsize=1024)
def cost_of(pattern: str) -> int:
    """Return the power of the text's length with which the time of a search grows: 1 is linear. EXPONENTIAL or more
    means that the time grows faster than any power.
    """
    tree = _parser.parse(pattern)
    is_anywhere = not _is_anchored(tree, tree.state.flags)
    ways = _ways(tree)
    if ways is not None:
        return 1 if ways <= (_WAYS_ANYWHERE_MAX if is_anywhere else _WAYS_MAX) else EXPONENTIAL
    try:
        return _Automaton(_STATES_MAX, is_anywhere=is_anywhere).cost(tree)
    except _TooMany:
        return _Automaton(None, is_anywhere=is_anywhere).cost(tree)


def _ways(tree: Any) -> int | None:
    """Return the largest number of ways in which one text can match at one place. Return None if the pattern has an
    unbounded repetition, or a part that cannot be counted, for example a look-around.
    """
    found = 1
    for name, value in tree:
        inner: int | None = 1
        match str(name):
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN" | "AT":
                continue
            case "SUBPATTERN":
                inner = _ways(value[3])
            case "BRANCH":
                parts = [_ways(one) for one in value[1]]
                inner = None if None in parts else sum(one or 0 for one in parts)
            case "MAX_REPEAT" | "MIN_REPEAT" if value[1] is not _constants.MAXREPEAT:
                once = _ways(value[2])
                inner = None if once is None else min(once ** value[1], EXPONENTIAL**3) * (value[1] - value[0] + 1)
            case _:
                return None
        if inner is None:
            return None
        found *= inner
    return found


class _TooMany(Exception):
    """The pattern has too many states to examine."""


class _Automaton:
    def __init__(self, states_max: int | None, *, is_anywhere: bool) -> None:
        self._states_max = states_max
        self._is_anywhere = is_anywhere
        self._twice: set[tuple[int, int]] = set()  # pairs of states with two direct links
        self._chars: list[_Chars] = []
        self._follow: list[set[int]] = []
        self._extra = 1  # the cost of look-arounds, and of loops around parts that read nothing
        self._depth = 0  # the depth of nested unbounded repetitions

    def cost(self, tree: Any) -> int:
        whole = self._sequence(tree, tree.state.flags)
        starts = set(whole.first)
        # A pattern that can match the empty text matches at the first place.
        if self._is_anywhere and not whole.skips_free:
            anywhere = self._state(_ANY)
            self._follow[anywhere] |= {anywhere, *whole.first}
            starts = {anywhere}
        return max(self._extra, self._paths(whole, starts).cost())

    def _paths(self, whole: _Part, starts: set[int]) -> _Paths:
        return _Paths(self._chars, self._follow, self._twice, set(whole.ends_free), starts, whole.ways)

    def _state(self, chars: _Chars) -> int:
        if self._states_max is not None and len(self._chars) >= self._states_max:
            raise _TooMany
        self._chars.append(chars)
        self._follow.append(set())
        return len(self._chars) - 1

    def _sequence(self, tree: Iterable[Any], flags: int) -> _Part:
        found = _Part()
        for name, value in tree:
            found = self._then(found, self._part(str(name), value, flags))
        return found

    def _then(self, left: _Part, right: _Part) -> _Part:
        self._link(left.last, right.first)
        return _Part(
            first=left.first + right.first if left.skips else left.first,
            last=right.last + left.last if right.skips else right.last,
            ends_free=right.ends_free + left.ends_free if right.skips_free else right.ends_free,
            skips=left.skips and right.skips,
            skips_free=left.skips_free and right.skips_free,
            ways=left.ways * right.ways,
            has_loop=left.has_loop or right.has_loop,
        )

    def _link(self, last: list[int], first: list[int]) -> None:
        for state in last:
            self._twice |= {(state, one) for one in first if one in self._follow[state]}
            self._follow[state] |= set(first)

    def _one(self, chars: _Chars) -> _Part:
        state = self._state(chars)
        return _Part(first=[state], last=[state], ends_free=[state], skips=False, skips_free=False)

    def _part(self, name: str, value: Any, flags: int) -> _Part:
        match name:
            case "LITERAL" | "NOT_LITERAL" | "ANY" | "IN":
                return self._one(_chars_of(name, value, flags))
            case "SUBPATTERN":
                _, on, off, inner = value
                return self._sequence(inner, (flags | on) & ~off)
            case "ATOMIC_GROUP":
                return self._sequence(value, flags)
            case "BRANCH":
                return self._choice([self._sequence(one, flags) for one in value[1]])
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                return self._repeated(*value, flags=flags)
            case "AT":
                return _Part(skips_free=False)
            case "ASSERT" | "ASSERT_NOT":
                return self._looked_at(value[1], flags)
            case "GROUPREF_EXISTS":
                _, yes, no = value
                return self._choice([self._sequence(one or (), flags) for one in (yes, no)])
            case _:  # A reference to a group reads whatever the group has read.
                found = self._loop(self._one(_ANY), skips=True)
                found.ends_free, found.skips_free = [], False
                return found

    def _choice(self, parts: list[_Part]) -> _Part:
        self._read_nothing(sum(part.skips for part in parts))
        return _Part(
            first=[state for part in parts for state in part.first],
            last=[state for part in parts for state in part.last],
            ends_free=[state for part in parts for state in part.ends_free],
            skips=any(part.skips for part in parts),
            skips_free=any(part.skips_free for part in parts),
            ways=sum(part.ways for part in parts),
            has_loop=any(part.has_loop for part in parts),
        )

    def _repeated(self, fewest: int, most: Any, inner: Any, *, flags: int) -> _Part:
        if most is _constants.MAXREPEAT or (most > 1 and self._states_max is None):
            self._depth += 1
            found = _Part()
            if self._states_max is not None:
                for _ in range(fewest - 1):
                    found = self._then(found, self._sequence(inner, flags))
            turn = self._sequence(inner, flags)
            self._depth -= 1
            self._read_nothing((fewest == 0) + turn.skips)
            loop = self._loop(turn, skips=fewest == 0)
            return self._then(found, loop)
        found = _Part()
        for _ in range(fewest):
            found = self._then(found, self._sequence(inner, flags))
        if most > fewest:
            # The repetitions are built from the last to the first. A repetition may be left out only together with all
            # later repetitions.
            rest = _Part()
            for _ in range(most - fewest):
                rest = self._optional(self._then(self._sequence(inner, flags), rest))
            rest.ways *= most - fewest + 1
            found = self._then(found, rest)
        return found

    def _read_nothing(self, ways: int) -> None:
        """Note the number of ways in which a part can read nothing. Each turn of a loop around the part multiplies the
        ways."""
        if ways > 1 and self._depth:
            self._extra = EXPONENTIAL

    def _optional(self, part: _Part) -> _Part:
        self._read_nothing(1 + part.skips)
        part.skips = part.skips_free = True
        return part

    def _loop(self, part: _Part, *, skips: bool) -> _Part:
        self._link(part.last, part.first)
        part.has_loop = True
        part.skips |= skips
        part.skips_free |= skips
        return part

    def _looked_at(self, inner: Any, flags: int) -> _Part:
        """Return the part of a look-ahead or look-behind. The search matches it like a separate pattern, at each place
        that it reaches.
        """
        other = _Automaton(self._states_max, is_anywhere=False)
        whole = other._sequence(inner, flags)
        cost = max(other._extra, other._paths(whole, set(whole.first)).cost())
        if whole.has_loop and (self._depth or self._is_anywhere):
            cost += 1
        self._extra = max(self._extra, cost)
        return _Part(skips_free=False)


class _Paths:
    """An automaton that is searched for paths that read the same text.

    A path that has reached a free end has found a match. `re` may try to make the match longer, but never goes back to
    an earlier place. So only paths that avoid free ends (`inner`) can be tried without success.
    """

    def __init__(
        self,
        chars: list[_Chars],
        follow: list[set[int]],
        twice: set[tuple[int, int]],
        ends: set[int],
        starts: set[int],
        ways: int,
    ) -> None:
        known = starts | _reached(starts, dict(enumerate(follow)))
        self._chars = chars
        self._ways = ways
        self._follow = {state: follow[state] for state in known}
        self._inner = {state: follow[state] - ends for state in known}
        self._circles = _circles(self._follow)
        self._inner_circles = _circles({state: follow[state] - ends for state in known - ends})
        self._twice = {pair for pair in twice if pair[1] in self._inner_circles.get(pair[0], ())}

    def cost(self) -> int:
        circles = set(self._inner_circles.values())
        if self._twice or self._ways > _WAYS_MAX or any(map(self._doubles, circles)):
            return EXPONENTIAL
        after = {state: self._chained(state, self._inner, self._inner_circles) for state in self._inner_circles}
        # An inner circle leads to other circles, and these never lead back, so the chains end.
        longest: dict[int, int] = {}

        def chain(state: int) -> int:
            if state not in longest:
                longest[state] = max((1 + chain(one) for one in after[state]), default=0)
            return longest[state]

        chains = [
            1 + chain(one) for state in self._circles for one in self._chained(state, self._follow, self._circles)
        ]
        return 1 + max(chains, default=0)

    def _doubles(self, circle: frozenset[int]) -> bool:
        """Whether two different paths with the same text lead from a state of a circle back to that state."""
        state = next(iter(circle))
        apart = [pair for pair in self._pairs((state, state), circle) if pair[0] != pair[1]]
        return any((state, state) in self._pairs(pair, circle) for pair in apart)

    def _pairs(self, begin: tuple[int, int], circle: frozenset[int]) -> set[tuple[int, int]]:
        """Return the pairs of states that two paths within a circle can reach with the same text."""
        found: set[tuple[int, int]] = set()
        waiting = [begin]
        while waiting:
            first, second = waiting.pop()
            for pair in product(self._inner[first] & circle, self._inner[second] & circle):
                if pair not in found and self._meet(*pair):
                    found.add(pair)
                    waiting.append(pair)
        return found

    def _chained(self, state: int, follow: _Follow, circles: dict[int, frozenset[int]]) -> set[int]:
        """Return the states of inner circles that are chained to this state. A state is chained if one and the same
        text leads from this state back to itself, from this state to the other state, and from the other state back to
        itself.
        """
        own = self._inner_circles.get(state, frozenset())
        candidates = (_reached({state}, self._inner) & self._inner_circles.keys()) - own
        return {one for one in candidates if self._is_chained(state, one, follow, circles[state])}

    def _is_chained(self, state: int, other: int, follow: _Follow, circle: frozenset[int]) -> bool:
        found: set[tuple[int, int, int]] = set()
        waiting = [(state, state, other)]
        stays = self._inner_circles[other]
        while waiting:
            first, second, third = waiting.pop()
            for three in product(follow[first] & circle, self._inner[second], self._inner[third] & stays):
                if three not in found and self._meet(*three):
                    found.add(three)
                    waiting.append(three)
            if (state, other, other) in found or len(found) > _TRIPLES_MAX:
                return True
        return False

    def _meet(self, *states: int) -> bool:
        """Whether one character exists that all of these states read."""
        bits, kinds = _CHARS, _ALL
        for state in states:
            bits &= self._chars[state].ascii
            kinds &= self._chars[state].kinds
        return bool(bits or kinds)


_Follow = Mapping[int, set[int]]


def _reached(begin: Iterable[int], follow: _Follow) -> set[int]:
    """Return the states that are reached in one step or more."""
    found: set[int] = set()
    waiting = list(begin)
    while waiting:
        new = follow[waiting.pop()] - found
        found |= new
        waiting += new
    return found


def _circles(follow: _Follow) -> dict[int, frozenset[int]]:
    """Return the states that lead back to themselves, each with all states of its circle."""
    ahead = {state: _reached({state}, follow) for state in follow}
    return {
        state: frozenset(one for one in found if state in ahead[one])
        for state, found in ahead.items()
        if state in found
    }


# Characters.


def _chars_of(name: str, value: Any, flags: int) -> _Chars:
    match name:
        case "LITERAL":
            return _range(value, value, flags)
        case "NOT_LITERAL":
            return _negated(_range(value, value, flags))
        case "ANY":
            return _ANY if flags & _DOTALL else _Chars(_CHARS & ~(1 << 10), _ALL)
        case _:
            bits, kinds, is_negated = 0, 0, False
            for kind, inner in value:
                if str(kind) == "NEGATE":
                    is_negated = True
                    continue
                found = _item(str(kind), inner, flags)
                bits |= found.ascii
                kinds |= found.kinds
            whole = _Chars(bits, kinds)
            # A range beyond ASCII has only some of the characters of its kinds. So the negated set may have characters
            # of all kinds.
            is_whole = all(str(kind) in ("NEGATE", "CATEGORY") or _is_ascii(inner) for kind, inner in value)
            return (_negated(whole) if is_whole else _Chars(_CHARS & ~bits, _ALL)) if is_negated else whole


def _is_ascii(inner: Any) -> bool:
    return bool((inner[1] if isinstance(inner, tuple) else inner) < 128)


def _item(kind: str, inner: Any, flags: int) -> _Chars:
    if kind == "CATEGORY":
        return _category(str(inner), flags)
    low, high = inner if isinstance(inner, tuple) else (inner, inner)
    return _range(low, high, flags)


def _range(low: int, high: int, flags: int) -> _Chars:
    bits = 0
    for code in range(low, min(high, 127) + 1):
        bits |= 1 << code
        if flags & _IGNORECASE and chr(code).isalpha():
            bits |= 1 << ord(chr(code).swapcase())
    if high < 128:
        # With IGNORECASE, K and S also match some characters beyond ASCII.
        return _Chars(bits, _LETTERS if flags & _IGNORECASE and bits & _LETTER_BITS else 0)
    return _Chars(bits | (_LETTER_BITS if flags & _IGNORECASE else 0), _kind(low) if low == high else _ALL)


def _kind(code: int) -> int:
    char = chr(code)
    if char.isdecimal():
        return _DIGITS
    return _LETTERS if char.isalnum() else _SPACES if char.isspace() else _OTHERS


def _bits(codes: Iterable[int]) -> int:
    return sum(1 << code for code in codes)


def _ascii_where(test: Any) -> Iterator[int]:
    return (code for code in range(128) if test(chr(code)))


_LETTER_BITS: Final = _bits(_ascii_where(str.isalpha))
_CATEGORIES: Final = {
    "DIGIT": _Chars(_bits(_ascii_where(str.isdecimal)), _DIGITS),
    "SPACE": _Chars(_bits(_ascii_where(str.isspace)), _SPACES),
    "WORD": _Chars(_bits(_ascii_where(lambda char: char.isalnum() or char == "_")), _DIGITS | _LETTERS),
}


def _category(name: str, flags: int) -> _Chars:
    """Return the characters of a category such as `CATEGORY_DIGIT` or `CATEGORY_NOT_WORD`."""
    found = _CATEGORIES.get(name.rpartition("_")[2], _ANY)
    if flags & _ASCII:
        found = _Chars(found.ascii, 0)
    return _negated(found) if "_NOT_" in name else found


def _negated(chars: _Chars) -> _Chars:
    return _Chars(_CHARS & ~chars.ascii, _ALL & ~chars.kinds)


def _is_anchored(tree: Any, flags: int) -> bool:
    """Whether a match can begin only at the start of a text. If so, no other place is tried."""
    for name, value in tree:
        match str(name):
            case "AT":
                if str(value) == "AT_BEGINNING_STRING" or (str(value) == "AT_BEGINNING" and not flags & _MULTILINE):
                    return True
            case "SUBPATTERN":
                return _is_anchored(value[3], (flags | value[1]) & ~value[2])
            case "BRANCH":
                return all(_is_anchored(one, flags) for one in value[1])
            case "ASSERT" | "ASSERT_NOT":
                continue
            case _:
                return False
    return False


__all__ = ["EXPONENTIAL", "cost_of"]
