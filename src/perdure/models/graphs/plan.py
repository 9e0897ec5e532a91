"""A graph as it is run: what was read from its definition, with every name looked up and every expression parsed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from msgspec import Struct

from perdure.models.graphs.expressions import Expression, ValueMap
from perdure.models.graphs.merges import Merge
from perdure.models.graphs.spec import JoinSpec, Limits

_TIMES_FROM: Final = 2**40  # Edges have smaller numbers.


class Passes(Struct, frozen=True, kw_only=True, eq=False):
    """How often a join goes on without an arrival, if nothing else on its loop has a limit: as often as `edges`, those
    with a limit between the fork and the join, may fire. `number` is the join's among the numbers of edges."""

    number: int
    limit: int
    edges: Sequence[int]


class Join(Struct, frozen=True, kw_only=True, eq=False):
    """Where branches that came apart at the node `fork` meet, on their way into the node `target`."""

    target: str
    fork: str
    spec: JoinSpec
    merges: Sequence[Merge]
    place: str
    passes: Passes | None = None

    @property
    def enough(self) -> int | None:
        """How many branches are enough; None for all."""
        need = self.spec.need
        return None if need == "all" else 1 if need == "any" else need

    def tolerated(self, total: int) -> int | None:
        """How many of so many branches may fail; None: that is no matter of this join."""
        tolerate = self.spec.tolerate
        return int(tolerate * total) if isinstance(tolerate, float) else tolerate


class Edge(Struct, frozen=True, kw_only=True, eq=False):
    """One way on. `number` tells the edges of a graph apart."""

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
        """Under which number laps have the time at which a token first took it, if that counts."""
        return self.number + _TIMES_FROM


Tiers = Sequence[Sequence[Edge]]


class Node(Struct, frozen=True, kw_only=True, eq=False):
    """A node: its edges in tiers, by priority, and what is written when it has a result. `work` is its kind's."""

    name: str
    work: Any
    onward: Tiers
    on_failure: Tiers
    on_error: Literal["fail_run", "branch_error"]
    otherwise: Literal["error", "end"]
    writes: Sequence[tuple[str, Expression]]
    place: str


class Exclusive(Struct, frozen=True, kw_only=True, eq=False):
    """Nodes of which one token at a time may stand at any: until its node has ended, or (`keep`) until it leaves them
    all. `number` tells them apart."""

    number: int
    nodes: frozenset[str]
    keep: bool


class Plan(Struct, frozen=True, kw_only=True, eq=False):
    """A whole graph. `joins` are those of each node at which branches come apart, in the order of the definition;
    `cancellable` are the nodes that edges name in their `cancel`."""

    name: str
    place: str
    start: str
    nodes: Mapping[str, Node]
    joins: Mapping[str, Sequence[Join]]
    output: ValueMap | None
    timeout_s: float | None
    limits: Limits
    exclusive: Sequence[Exclusive]
    cancellable: frozenset[str] = frozenset()
