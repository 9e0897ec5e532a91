"""A graph that is ready to run: in its definition, every name is looked up and every expression is parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.mappings import ValueMap
from perdure.models.graphs.merges import Merge
from perdure.models.graphs.spec import GraphLimits, JoinSpec

_TIMES_FROM: Final = 2**40  # the numbers of edges are smaller than this


class Passes(Struct, frozen=True, kw_only=True, eq=False):
    """The limit of a join that goes on without an arrival. It is needed if nothing else on the join's loop has a limit.
    The join may go on as often as `edges` may fire. These are the edges with a limit between the fork and the join.
    `number` is the number of the join, which no edge has.
    """

    number: int
    limit: int
    edges: Sequence[int]


class Join(Struct, frozen=True, kw_only=True, eq=False):
    """The place where the branches of the fork at node `fork` meet, before the node `target`."""

    target: str
    fork: str
    spec: JoinSpec
    merges: Sequence[Merge]
    place: str
    passes: Passes | None = None

    @property
    def enough(self) -> int | None:
        """Return how many branches are enough. Return None if all branches are needed."""
        need = self.spec.need
        return None if need == "all" else 1 if need == "any" else need

    def tolerated(self, total: int) -> int | None:
        """Return how many of `total` branches may fail. Return None if this join does not handle failures."""
        tolerate = self.spec.tolerate
        return int(tolerate * total) if isinstance(tolerate, float) else tolerate


class Edge(Struct, frozen=True, kw_only=True, eq=False):
    """An edge. `number` identifies the edge in its graph."""

    number: int
    source: str
    target: str
    when: Expression | None
    foreach: Expression | None
    spawn: int | None
    at_once: int | None
    limit: int | None
    limit_us: int | None
    join: Join | None
    cancel: frozenset[str]
    place: str

    @property
    def is_multiple(self) -> bool:
        return self.foreach is not None or self.spawn is not None

    @property
    def began(self) -> int:
        """The key, in a token's `laps`, for the time when the token first took this edge. It is used only if the edge
        has a time limit.
        """
        return self.number + _TIMES_FROM


Tiers = Sequence[Sequence[Edge]]


class Node(Struct, frozen=True, kw_only=True, eq=False):
    """A node, with its edges in tiers by priority, and the values that it writes to the context. `work` is the work
    that its kind has prepared.
    """

    name: str
    work: Any
    onward: Tiers
    on_failure: Tiers
    on_error: Literal["fail_run", "branch_error"]
    otherwise: Literal["error", "end"]
    writes: Sequence[tuple[str, Expression]]
    place: str


class Exclusive(Struct, frozen=True, kw_only=True, eq=False):
    """A group of nodes at which only one token at a time may be. The token's turn ends when its node ends. With `keep`,
    the turn ends when the token leaves all nodes of the group. `number` identifies the group.
    """

    number: int
    nodes: frozenset[str]
    keep: bool


class Plan(Struct, frozen=True, kw_only=True, eq=False):
    """A whole graph. `joins` has the joins of each fork's node, in the order of the definition. `cancellable` are the
    nodes that edges name in their `cancel`.
    """

    name: str
    place: str
    start: str
    nodes: Mapping[str, Node]
    joins: Mapping[str, Sequence[Join]]
    output: ValueMap | None
    timeout_s: float | None
    limits: GraphLimits
    exclusive: Sequence[Exclusive]
    cancellable: frozenset[str] = frozenset()
