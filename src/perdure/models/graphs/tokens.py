"""Where a run of a graph is: its tokens, the forks at which they came apart, and the joins that wait for them.

A fork's branch is live while a token stands in it, or an inner fork is open in it. So a token that ends touches only
its own fork, however deep that is nested.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from perdure.models.graphs.plan import Join
from perdure.models.graphs.scopes import Scope, View

_MISSING: Final[Any] = object()
NO_LAPS: Final[Mapping[int, int]] = {}


class Meeting:
    """A join's state for one fork: who has arrived, by branch index, with a value for each merge."""

    __slots__ = ("arrived", "fired", "has_timer", "join", "still_live")

    def __init__(self, join: Join) -> None:
        self.join = join
        self.arrived: dict[int, tuple[Any, ...]] = {}
        self.still_live = 0  # branches that have arrived and in which other tokens are under way
        self.fired = False
        self.has_timer = False


class Fork:
    """One coming apart. `live` counts what keeps each branch alive, `unfinished` the branches that are."""

    __slots__ = (
        "closed", "depth", "failed", "has_leavers", "id", "index", "inner", "is_split", "items", "laps", "live",
        "meetings", "outer", "scope", "scopes", "site", "tokens", "total", "unfinished",
    )  # fmt: skip

    def __init__(
        self, *, id: int, site: str, total: int, scope: Scope, outer: Fork | None, index: int, laps: Mapping[int, int]
    ) -> None:
        self.id = id
        self.site = site
        self.total = total
        self.scope = scope
        self.outer = outer
        self.index = index  # the branch of the outer fork in which this one is
        self.laps = laps
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
        self.has_leavers = False  # tokens have left it for the join of an outer fork
        self.closed = False


class Token:
    """One point of execution."""

    __slots__ = ("error", "fork", "id", "index", "laps", "node", "output", "scope")

    def __init__(self, id: int, fork: Fork, index: int, scope: Scope, laps: Mapping[int, int]) -> None:
        self.id = id
        self.fork = fork
        self.index = index
        self.scope = scope
        self.laps = laps
        self.node = ""
        self.output: Any = None
        self.error: dict[str, Any] | None = None

    def view(self, input: Any) -> View:
        return View(input, self.scope, Branch(self.fork, self.index, self.output), self.error)


class Branch:
    """What `branch` is in an expression: index, total, output (of the last node), parent, and item: that of the nearest
    fork over a list."""

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
    """The items of a fork's branches in order; branches that have none (a number of them) leave gaps."""
    if all(isinstance(part, int) for part in parts):
        return None
    return [item for part in parts for item in (part if isinstance(part, list) else [_MISSING] * part)]
