"""The state of a graph's run: its tokens, their forks, and the joins that wait for them.

A fork's branch is live while a token is in it, or an inner fork is open in it. So a token that ends affects only its
own fork, however deep that is nested.

token_moves.py decides which data a new token takes over. At a fork, the data come from the token that splits. Behind a
join, they come from the branch in which the fork was made. A plain move keeps the token.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from hashlib import sha256
from typing import Any, Final, TypeVar

from perdure.models.graphs.context import Scope, View
from perdure.models.graphs.plan import Join
from perdure.values.failures import locate

X = TypeVar("X", bound=BaseException)

_MISSING: Final[Any] = object()
NO_LAPS: Final[Mapping[int, int]] = {}
_ITEM_MAX_CHARS: Final = 100
_FAILED_SHOWN_MAX: Final = 10
_FAILED_NAMED_MAX: Final = 3
_PATH_MAX_CHARS: Final = 200


class Meeting:
    """A join's state for one fork: the arrived branches, by index, with a value for each merge."""

    __slots__ = ("arrived", "fired", "has_timer", "in_a_row", "join", "still_live")

    def __init__(self, join: Join) -> None:
        self.join = join
        self.arrived: dict[int, tuple[Any, ...]] = {}
        self.still_live = 0  # branches that have arrived and still have other tokens
        self.fired = False
        self.has_timer = False
        self.in_a_row: int | None = None  # the smallest count of the arrived tokens


class Fork:
    """One instance of a fork. `live` counts the tokens and forks that keep each branch alive. `unfinished` counts the
    live branches."""

    __slots__ = (
        "base", "closed", "depth", "error", "failed", "failed_live", "has_leavers", "id", "in_a_row", "index", "inner",
        "is_split", "items", "laps", "live", "meetings", "outer", "scope", "scopes", "site", "slots", "tokens", "total",
        "unfinished",
    )  # fmt: skip

    def __init__(
        self, *, id: int, site: str, total: int, scope: Scope, outer: Fork | None, index: int, laps: Mapping[int, int]
    ) -> None:
        self.id = id
        self.site = site
        self.total = total
        self.scope = scope
        self.base = scope  # what its branches see: the scope, or the scope as it was when the fork was made
        self.outer = outer
        self.index = index  # the branch of the outer fork in which this one is
        self.laps = laps
        self.in_a_row = 0  # of the token that was forked
        self.error: dict[str, Any] | None = None  # the error that the forked token saw
        self.slots: Any = None  # if not all branches may run at once
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.is_split = False  # into different ways, not over a list or a number
        self.items: list[Any] | None = None
        self.scopes: list[Scope] = []  # of the branches of a split
        self.live = [1] * total
        self.unfinished = total
        self.tokens: dict[int, Token] = {}
        self.inner: dict[int, Fork] = {}
        self.meetings: dict[str, Meeting] = {}  # by the node that the join leads to
        self.failed: dict[int, tuple[dict[str, Any], BaseException]] = {}
        self.failed_live = 0  # branches that have failed and still have other tokens
        self.has_leavers = False  # tokens have left it for the join of an outer fork
        self.closed = False

    def enclosing(self, index: int, sites: Container[str]) -> tuple[Fork | None, int]:
        """Return the nearest fork at one of these nodes, from this one outwards, and in which of its branches the
        branch `index` of this fork is. Returns None if there is no such fork."""
        fork: Fork | None = self
        while fork is not None and fork.site not in sites:
            index, fork = fork.index, fork.outer
        return fork, index

    def release(self, index: int) -> bool:
        """Note that a token or a fork that kept a branch alive has ended. Return whether the branch is over now."""
        self.live[index] -= 1
        if self.live[index]:
            return False
        self.unfinished -= 1
        if index in self.failed:
            self.failed_live -= 1
        for meeting in self.meetings.values():
            if index in meeting.arrived:
                meeting.still_live -= 1
        return True

    def count(self, laps: Mapping[int, int]) -> None:
        """Take over the laps of a token that has ended in the fork. The token behind its join inherits them."""
        if laps is not self.laps and any(self.laps.get(number, 0) < count for number, count in laps.items()):
            self.laps = {
                number: max(count, self.laps.get(number, 0)) for number, count in {**self.laps, **laps}.items()
            }


class Token:
    """One point of execution."""

    __slots__ = ("error", "fork", "id", "in_a_row", "index", "laps", "node", "output", "scope")

    def __init__(self, id: int, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> None:
        self.id = id
        self.fork = fork
        self.index = index
        self.scope = scope
        self.laps = laps
        self.in_a_row = 0  # nodes that it came to since something was waited for
        self.node = ""
        self.output: Any = None
        self.error: dict[str, Any] | None = None

    @property
    def trail(self) -> list[dict[str, Any]]:
        """Return the branches that the token is in, from the outermost: the node of each fork, and the index, with the
        item if it has one."""
        return trail(self.fork, self.index)

    @property
    def path(self) -> str:
        """The token's branches, from the outermost, and its node, in short: `plan.2/search`."""
        parts, fork, index = [self.node], self.fork, self.index
        while fork.outer is not None:
            parts.append(f"{fork.site}.{index}")
            index, fork = fork.index, fork.outer
        path = "/".join(reversed(parts))
        return path if len(path) <= _PATH_MAX_CHARS else f"{sha256(path.encode()).hexdigest()[:32]}/{self.node}"

    def view(self, input: Any) -> View:
        return View(input, self.scope, Branch(self.fork, self.index, self.output), self.error)


def trail(fork: Fork, index: int) -> list[dict[str, Any]]:
    """Return the branches that enclose a branch of a fork, from the outermost, and the branch itself."""
    found: list[dict[str, Any]] = []
    while fork.outer is not None:
        branch: dict[str, Any] = {"fork": fork.site, "index": index}
        if fork.items is not None and fork.items[index] is not _MISSING:
            branch["item"] = fork.items[index]
        found.append(branch)
        index, fork = fork.index, fork.outer
    return found[::-1]


def shown(branches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the branch of a failure as expressions see it: the nearest branch over a list, or the innermost branch."""
    if not branches:
        return {}
    nearest = next((branch for branch in reversed(branches) if "item" in branch), branches[-1])
    return {key: nearest[key] for key in ("index", "item") if key in nearest}


def branches_text(branches: Sequence[Mapping[str, Any]]) -> str:
    """Return the branches of a trail as a text for messages."""
    return ", ".join(
        f"branch {branch['index']} of the fork at {branch['fork']!r}"
        + (f", item {_cut(branch['item'])}" if "item" in branch else "")
        for branch in branches
    )


def _cut(item: Any) -> str:
    text = f"{item!r:.{_ITEM_MAX_CHARS + 1}}"
    return text if len(text) <= _ITEM_MAX_CHARS else f"{text[:_ITEM_MAX_CHARS]}…"


class Branch:
    """The root `branch` in expressions: index, total, output (of the last node), parent, and item (of the nearest fork
    over a list)."""

    __slots__ = ("_fork", "_index", "_output")

    def __init__(self, fork: Fork, index: int, output: Any = None) -> None:
        self._fork = fork
        self._index = index
        self._output = output

    def get(self, key: str, default: Any = None) -> Any:
        fork = self._fork
        match key:
            case "item":
                return self._item(default)
            case "output":
                return self._output
            case _ if fork.outer is None:
                return default
            case "index":
                return self._index
            case "total":
                return fork.total
            case "parent":
                return Branch(fork.outer, fork.index)
            case _:
                return default

    def _item(self, default: Any) -> Any:
        fork: Fork | None = self._fork
        index = self._index
        while fork is not None:
            if fork.items is not None and index < len(fork.items) and fork.items[index] is not _MISSING:
                return fork.items[index]
            index, fork = fork.index, fork.outer
        return default

    def whole(self) -> dict[str, Any]:
        found = {key: self.get(key, _MISSING) for key in ("index", "total", "item", "output")}
        seen = {key: value for key, value in found.items() if value is not _MISSING}
        if self._fork.outer is not None and self._fork.outer.outer is not None:
            seen["parent"] = Branch(self._fork.outer, self._fork.index).whole()
        return seen


def items_of(parts: Sequence[list[Any] | int]) -> list[Any] | None:
    """Return the items of a fork's branches in order. Branches without an item (of `spawn`) leave gaps."""
    if all(isinstance(part, int) for part in parts):
        return None
    return [item for part in parts for item in (part if isinstance(part, list) else [_MISSING] * part)]


def failed_branches(fork: Fork) -> list[dict[str, Any]]:
    """Return how the first failed branches of a fork failed."""
    first = sorted(fork.failed)[:_FAILED_SHOWN_MAX]
    about = ("type", "message", "node")
    return [trail(fork, index)[-1] | {key: fork.failed[index][0][key] for key in about} for index in first]


def failures(fork: Fork) -> str:
    first = failed_branches(fork)[:_FAILED_NAMED_MAX]
    texts = [f"{branches_text([one])}, at node {one['node']!r}: {one['type']}: {one['message']:.200}" for one in first]
    more = len(fork.failed) - len(first)
    return "; ".join(texts) + (f"; and {more:,} more" if more else "")


def located(error: X, branches: Sequence[Mapping[str, Any]], node: str) -> X:
    """Return the same error, with a note of the branch in which it happened."""
    if branches:
        locate(error, f"{branches_text(branches)}, at node {node!r}")
    return error
