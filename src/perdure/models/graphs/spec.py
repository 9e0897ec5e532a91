"""A graph as data: the one schema behind the builder, YAML and JSON. Nothing here decides or runs anything.

Nodes are in kinds/: the fields that all kinds have in kinds/base.py, and the fields of each kind in its module.
Durations are seconds. Texts in mappings, conditions and foreach are expressions (see expressions.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from perdure.values.arguments import check_fields
from perdure.values.retry import Backoff

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
SECONDS_MAX: Final = 1000 * 366 * 24 * 3600  # a thousand years
Seconds = Annotated[float, Meta(gt=0, lt=SECONDS_MAX)]
Count = Annotated[int, Meta(ge=1)]
TARGET_PATTERN = r"^(state|output)(\.[A-Za-z_][A-Za-z0-9_]*)+$"
Target = Annotated[str, Meta(pattern=TARGET_PATTERN.replace("+$", "{1,50}$"))]  # a bound on the nesting of values

# Targets of edges other than nodes: END ends the token, TERMINATE the whole run.
END = "END"
TERMINATE = "TERMINATE"


class Spec(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A part of a definition."""


class MergeSpec(Spec, frozen=True, kw_only=True):
    """A merge of the outputs of the branches that meet at a join.

    `source` is an expression in each branch's own context, by default the result of its last node. Strategies: append
    adds the outputs, by branch index, to the list at the target, flattened if all are lists. collect writes a new list
    and never flattens. merge_object adds their fields. If a field occurs twice, the later branch wins. keyed writes
    {"0": …}. last_wins writes the last branch's output, {} if there is none. reduce calls `reducer` with the list of
    outputs.
    """

    strategy: Literal["append", "collect", "merge_object", "keyed", "last_wins", "reduce"]
    target: Target
    source: str | None = None
    reducer: str | None = None


class JoinSpec(Spec, frozen=True, kw_only=True):
    """A join, at which the branches of a fork become one token again.

    `need` is all, any, or a number of branches. `fork` is the node of the fork, by default the innermost fork before
    the join. `timeout` counts from the first arrival. `on_early` says what happens to the other branches when any or m
    branches are enough. With `tolerate`, a join of all branches tolerates that number or fraction of failed branches,
    and fails as soon as there are more.
    """

    need: Literal["all", "any"] | Count = "all"
    fork: Name | None = None
    on_early: Literal["cancel", "let_finish", "late_merge"] = "cancel"
    timeout: Seconds | None = None
    on_timeout: Literal["fail", "proceed"] = "fail"
    tolerate: int | float | None = None


class EdgeSpec(Spec, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """An edge from one node (or several) to another. Of a node's edges, all matching edges of the lowest priority with
    a match fire. Edges with `on_error` apply if the node has failed, the others if it has not.

    With `foreach` (an expression for a list) or `spawn` (a number) the edge makes several tokens, each a branch of a
    fork, as several edges that fire together do. At most `at_once` of these branches run at a time. An edge with
    `limit` fires that many times per token and is then skipped. An edge with `limit_timeout` is skipped once that many
    seconds have passed since the token first took it. When an edge with `cancel` fires, the tokens at the named nodes
    ("*" for all) end, if they share the enclosing branch.
    """

    source: Name | list[Name]
    target: Name
    when: str | None = None
    priority: int = 0
    on_error: bool = False
    foreach: str | None = None
    spawn: Count | None = None
    at_once: Count | None = None
    limit: Count | Literal["unlimited"] | None = None
    limit_timeout: Seconds | None = None
    join: JoinSpec | None = None
    merge: MergeSpec | list[MergeSpec] = field(default_factory=list)
    cancel: list[str] = field(default_factory=list)

    @property
    def sources(self) -> list[str]:
        return [self.source] if isinstance(self.source, str) else self.source

    @property
    def merges(self) -> list[MergeSpec]:
        return [self.merge] if isinstance(self.merge, MergeSpec) else self.merge


class ExclusiveSpec(Spec, frozen=True, kw_only=True):
    """Nodes at which only one token of a run at a time may be. Others wait for their turn in the order in which they
    come. A turn ends with the node, or, with `keep`, when the token leaves these nodes: it moves elsewhere, ends, is
    forked, or arrives at a join."""

    nodes: Annotated[list[Name], Meta(min_length=1)]
    keep: bool = False


class GraphLimits(Spec, frozen=True, kw_only=True):
    """Limits of one run of a graph. A run that exceeds a limit fails."""

    tokens: Count = 20_000  # that are alive at once
    branches: Count = 20_000  # of one fork
    nesting: Count = 32  # forks inside each other
    in_a_row: Count = 100_000  # nodes one after the other, along one way, without anything to wait for
    merged_bytes: Count = 32 * 1024 * 1024  # of a value that a join merges, as JSON

    def __post_init__(self) -> None:
        check_fields(self, positive=True)


class RetrySpec(Spec, frozen=True, kw_only=True):
    """The retry policy of a node: how often and when it is retried after a failure. Times are in seconds.

    `backoff` says how the pauses grow, as in `perdure.Retry`. `retry_on` lists the retryable errors (all, if it is
    empty), `give_up_on` those that are not retried. An error is a class, as `package.module:name`, or a bare name if it
    is one of Python's or Perdure's own.
    """

    attempts: Count = 3
    initial: float = 0.1
    maximum: float = 300.0
    multiplier: float = 2.0
    jitter: float = 0.1
    backoff: Backoff = "exponential"
    retry_on: list[str] = field(default_factory=list)
    give_up_on: list[str] = field(default_factory=list)


class GraphSpec(Spec, frozen=True, kw_only=True):
    """A graph without its nodes, whose schema depends on the known kinds (see kinds/)."""

    graph: str
    version: str = ""
    description: str = ""
    start: Name | None = None
    input_schema: dict[str, Any] | str | None = None
    output_schema: dict[str, Any] | str | None = None
    nodes: dict[Name, Any]
    edges: list[EdgeSpec] = field(default_factory=list)
    exclusive: list[ExclusiveSpec] = field(default_factory=list)
    output: Any = None
    timeout: Seconds | None = None
    limits: GraphLimits | None = None
