"""The state of a graph's run: its tokens, their forks, and the waiting joins.

A branch of a fork is live while it has a token or an open inner fork. So the end of a token affects only the token's
own fork, however deep the fork is nested.

token_moves.py decides which data a new token takes over. After a fork, the data come from the token that was forked.
Behind a join, they come from the branch in which the fork was made. A token that moves along an edge without a fork
stays the same token.
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
    """The state of a join for one fork. It has the arrived branches by index, with one output for each merge."""

    __slots__ = ("arrived", "fired", "has_timer", "in_a_row", "join", "still_live")

    def __init__(self, join: Join) -> None:
        self.join = join
        self.arrived: dict[int, tuple[Any, ...]] = {}
        self.still_live = 0  # branches that have arrived and still have other tokens
        self.fired = False
        self.has_timer = False
        self.in_a_row: int | None = None  # the smallest `in_a_row` of the arrived tokens


class Fork:
    """One instance of a fork. `live` has, for each branch, the number of tokens and forks that keep the branch live.
    `unfinished` counts the live branches.
    """

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
        self.base = scope  # the scope that its branches see, either live or as it was when the fork was made
        self.outer = outer
        self.index = index  # the branch of the outer fork in which this fork is
        self.laps = laps
        self.in_a_row = 0  # the `in_a_row` of the forked token
        self.error: dict[str, Any] | None = None  # the error that the forked token saw
        self.slots: Any = None  # set if not all branches may run at once
        self.depth: int = 0 if outer is None else outer.depth + 1
        self.is_split = False  # whether the fork comes from several edges, and not from a list or a number
        self.items: list[Any] | None = None
        self.scopes: list[Scope] = []  # the scopes of the branches, if `is_split`
        self.live = [1] * total
        self.unfinished = total
        self.tokens: dict[int, Token] = {}
        self.inner: dict[int, Fork] = {}
        self.meetings: dict[str, Meeting] = {}  # by the node behind the join
        self.failed: dict[int, tuple[dict[str, Any], BaseException]] = {}
        self.failed_live = 0  # branches that have failed and still have other tokens
        self.has_leavers = False  # whether tokens have left the fork for the join of an outer fork
        self.closed = False

    def enclosing(self, index: int, sites: Container[str]) -> tuple[Fork | None, int]:
        """Return the nearest fork at one of these nodes, from this fork outwards. Also return the branch of that fork
        that contains the branch `index` of this fork. Returns None as the fork if there is no fork at these nodes.
        """
        fork: Fork | None = self
        while fork is not None and fork.site not in sites:
            index, fork = fork.index, fork.outer
        return fork, index

    def release(self, index: int) -> bool:
        """Note that a token or an inner fork that kept a branch live has ended. Return whether the branch has ended
        now.
        """
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
        """Take over the laps of a token that has ended in the fork. The token behind the fork's join inherits them."""
        if laps is not self.laps and any(self.laps.get(number, 0) < count for number, count in laps.items()):
            self.laps = {
                number: max(count, self.laps.get(number, 0)) for number, count in {**self.laps, **laps}.items()
            }


class Token:
    """One point of execution in a graph."""

    __slots__ = ("error", "fork", "id", "in_a_row", "index", "laps", "node", "output", "scope")

    def __init__(self, id: int, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> None:
        self.id = id
        self.fork = fork
        self.index = index
        self.scope = scope
        self.laps = laps
        self.in_a_row = 0  # nodes that the token has reached since the run last waited for something
        self.node = ""
        self.output: Any = None
        self.error: dict[str, Any] | None = None

    @property
    def trail(self) -> list[dict[str, Any]]:
        """Return the branches around the token, from the outermost inwards. Each has the node of the fork, the branch's
        index, and its item if it has one.
        """
        return trail(self.fork, self.index)

    @property
    def path(self) -> str:
        """The branches around the token, from the outermost inwards, and its node, in short form: `plan.2/search`."""
        parts, fork, index = [self.node], self.fork, self.index
        while fork.outer is not None:
            parts.append(f"{fork.site}.{index}")
            index, fork = fork.index, fork.outer
        path = "/".join(reversed(parts))
        return path if len(path) <= _PATH_MAX_CHARS else f"{sha256(path.encode()).hexdigest()[:32]}/{self.node}"

    def view(self, input: Any) -> View:
        return View(input, self.scope, Branch(self.fork, self.index, self.output), self.error)


def trail(fork: Fork, index: int) -> list[dict[str, Any]]:
    """Return the branches around a branch of a fork, from the outermost inwards, and the branch itself."""
    found: list[dict[str, Any]] = []
    while fork.outer is not None:
        branch: dict[str, Any] = {"fork": fork.site, "index": index}
        if fork.items is not None and fork.items[index] is not _MISSING:
            branch["item"] = fork.items[index]
        found.append(branch)
        index, fork = fork.index, fork.outer
    return found[::-1]


def shown(branches: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the branch of a failure in the form that expressions see. It is the nearest branch over a list, or else
    the innermost branch.
    """
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
    """The root `branch` in expressions. It has the fields index, total, output (of the last node), parent, and item (of
    the nearest fork over a list).
    """

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
    """Return the items of a fork's branches in order. A branch without an item (from `spawn`) leaves a gap."""
    if all(isinstance(part, int) for part in parts):
        return None
    return [item for part in parts for item in (part if isinstance(part, list) else [_MISSING] * part)]


def failed_branches(fork: Fork) -> list[dict[str, Any]]:
    """Return descriptions of the first failed branches of a fork."""
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
