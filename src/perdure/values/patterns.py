"""Regular expressions in RE2's syntax, for `matches` in CEL and for JSON Schemas, searched in linear time.

A pattern is compiled to a nondeterministic automaton (`Pattern`). A search makes the automaton deterministic step by
step. Each deterministic state is the set of states in which the automaton can be. It is built when a text first leads
to it. The search never backtracks. Each new state and each character uses up a part of a budget.

Not supported: classes by the name of a script (`\\p{Greek}`), `\\Q…\\E`, octal numbers, look-around and
back-references.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from functools import lru_cache
from typing import Any, Final, Protocol

from perdure.values.pattern_syntax import Chars, Part, PatternFailed, parse

STATES_MAX: Final = 1_000
SCHEMA_STATES_MAX: Final = 20_000  # of all patterns in one schema: to compile them takes about 15 ms
_STEPS_PER_STATE: Final = 6
_CHARS_PER_STEP: Final = 2
_ACCEPT: Final = 0


class Budget(Protocol):
    """The budget of steps of a search. `spend` raises an error if too few steps are left."""

    def spend(self, steps: int) -> None: ...


class SchemaPatterns:
    """The patterns of one schema. They share a bound on their states, because they are compiled without a break."""

    __slots__ = ("_left", "_seen")

    def __init__(self) -> None:
        self._left = SCHEMA_STATES_MAX
        self._seen: set[str] = set()

    def add(self, source: str) -> None:
        """Compile a pattern. Raises PatternFailed if it is no pattern, or if all patterns together have too many
        states."""
        if source in self._seen:
            return
        if self._left <= 0:
            raise PatternFailed(f"the patterns of a schema have at most {SCHEMA_STATES_MAX:,} states together")
        self._seen.add(source)
        self._left -= len(automaton(source).onward)


class Pattern:
    """A nondeterministic automaton. Each state has the characters that it reads (`chars`) or the assertion that must
    hold (`assertions`), and the next states (`onward`). State 0 accepts. A state without characters and without an
    assertion only branches.
    """

    __slots__ = ("assertions", "chars", "onward", "start")

    def __init__(self, source: str) -> None:
        """Compile a pattern. Raises PatternFailed."""
        self.chars: list[Chars | None] = [None]
        self.assertions: list[str | None] = [None]
        self.onward: list[tuple[int, ...]] = [()]
        self.start = self._emit(parse(source), _ACCEPT)

    def _state(self, chars: Chars | None = None, assertion: str | None = None, onward: tuple[int, ...] = ()) -> int:
        if len(self.onward) >= STATES_MAX:
            raise PatternFailed(f"it is too large: it has more than {STATES_MAX:,} states")
        self.chars.append(chars)
        self.assertions.append(assertion)
        self.onward.append(onward)
        return len(self.onward) - 1

    def _emit(self, part: Part, after: int) -> int:
        """Add the states of a part, and return its first state.

        The last state of the part leads to the state `after`.
        """
        if isinstance(part, Chars):
            return self._state(chars=part, onward=(after,))
        if isinstance(part, str):
            return self._state(assertion=part, onward=(after,))
        kind = part[0]
        if kind == "then":
            for one in reversed(part[1]):
                after = self._emit(one, after)
            return after
        if kind == "or":
            return self._state(onward=tuple(self._emit(one, after) for one in part[1]))
        _, inner, fewest, most = part
        found = after
        if most is None:
            found = self._state()
            self.onward[found] = (self._emit(inner, found), after)
        else:
            for _ in range(most - fewest):
                found = self._state(onward=(self._emit(inner, found), after))
        for _ in range(fewest):
            found = self._emit(inner, found)
        return found


class Search:
    """The search for one pattern in one evaluation, with the deterministic states that were built so far."""

    __slots__ = ("_pattern", "_states")

    def __init__(self, pattern: Pattern) -> None:
        self._pattern = pattern
        self._states: dict[tuple[frozenset[int], str], dict[str, Any]] = {}

    def is_in(self, text: str, budget: Budget) -> bool:
        """Whether some part of a text matches. Raises BudgetExceeded."""
        budget.spend(1 + len(text) // _CHARS_PER_STEP)

        state = self._state(frozenset(), "start")
        for char in text:
            following = state.get(char)
            if following is None:
                following = state[char] = self._follow(state[""], char, budget)
            if following is True:
                return True
            state = following
        accepts = state.get("end")
        if accepts is None:
            accepts = state["end"] = self._accepts(state[""], budget)
        return bool(accepts)

    def _state(self, core: frozenset[int], before: str) -> dict[str, Any]:
        """Return a deterministic state. It stands for a set of states of the automaton, and for the kind of the
        previous character. Its entries are the next states by character. The entry True means a match. The entry `end`
        says whether the text matches if it ends here.
        """
        key = (core, before)
        found = self._states.get(key)
        if found is None:
            found = self._states[key] = {"": key}
        return found

    def _follow(self, key: tuple[frozenset[int], str], char: str, budget: Budget) -> Any:
        core, before = key
        reached = self._closure(core, before, char, budget)
        if _ACCEPT in reached:
            return True
        pattern = self._pattern
        after = [pattern.onward[one][0] for one in reached if (set_ := pattern.chars[one]) and is_among(char, set_)]
        return self._state(frozenset(after), _kind(char))

    def _accepts(self, key: tuple[frozenset[int], str], budget: Budget) -> bool:
        return _ACCEPT in self._closure(key[0], key[1], "", budget)

    def _closure(self, core: frozenset[int], before: str, char: str, budget: Budget) -> set[int]:
        """Return the states that can be reached from the pattern's start, or from a state in `core`, without reading a
        character."""
        pattern = self._pattern
        reached: set[int] = set()
        following = [*core, pattern.start]
        while following:
            state = following.pop()
            if state in reached:
                continue
            reached.add(state)
            if pattern.chars[state] is not None:
                continue
            assertion = pattern.assertions[state]
            if assertion is None or _holds(assertion, before, char):
                following.extend(pattern.onward[state])
        budget.spend(4 + _STEPS_PER_STATE * len(reached))
        return reached


def _kind(char: str) -> str:
    if char == "\n":
        return "newline"
    return "word" if char == "_" or (char.isascii() and char.isalnum()) else "other"


def _holds(assertion: str, before: str, char: str) -> bool:
    """Whether an assertion holds between two characters. At the start or the end of the text, one of the characters is
    missing.
    """
    if assertion == "start":
        return before == "start"
    if assertion == "end":
        return char == ""
    if assertion == "line start":
        return before in ("start", "newline")
    if assertion == "line end":
        return char in ("", "\n")
    is_border = (before == "word") is not (char != "" and _kind(char) == "word")
    return is_border if assertion == "border" else not is_border


def is_among(char: str, chars: Chars) -> bool:
    """Whether a character belongs to a set."""
    found = _in_ranges(ord(char), chars)
    if not found and chars.ignores_case:
        found = any(len(other) == 1 and _in_ranges(ord(other), chars) for other in (char.lower(), char.upper()))
    if not found and chars.categories:
        found = unicodedata.category(char) in chars.categories
    return found is not chars.is_negated


def _in_ranges(code: int, chars: Chars) -> bool:
    at = bisect_right(chars.lows, code)
    return at > 0 and code <= chars.highs[at - 1]


class Searches:
    """The searches during one decoding of a value. All texts of the value share one budget, and the states that were
    built so far.

    Reading a character costs nothing, because the size of a value is bounded elsewhere. New states cost steps.
    Otherwise a pattern that needs many states could use a whole budget for every text of a long list.
    """

    __slots__ = ("_left", "_made")

    def __init__(self, steps: int) -> None:
        self._left = steps
        self._made: dict[str, Search] = {}

    def spend(self, steps: int) -> None:
        self._left -= steps
        if self._left < 0:
            raise SearchFailed

    def is_in(self, pattern: str, text: str) -> bool:
        """Whether some part of a text matches. Raises SearchFailed if the searches take too many steps, and
        PatternFailed."""
        search = self._made.get(pattern)
        if search is None:
            search = self._made[pattern] = Search(automaton(pattern))
        self._left += 1 + len(text) // _CHARS_PER_STEP
        return search.is_in(text, self)


class SearchFailed(Exception):
    """The searches during one decoding take more steps than allowed."""


@lru_cache(maxsize=512)
def automaton(source: str) -> Pattern:
    """Return the automaton of a pattern. Raises PatternFailed."""
    return Pattern(source)


__all__ = [
    "STATES_MAX",
    "Budget",
    "Pattern",
    "PatternFailed",
    "Search",
    "SearchFailed",
    "Searches",
    "automaton",
    "is_among",
]
