"""A graph as data: the schema that the builder, YAML and JSON share. This module decides and runs nothing.

Nodes are in kinds/. kinds/base.py has the fields of all kinds, and each kind's module has the fields of that kind.
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
Target = Annotated[str, Meta(pattern=TARGET_PATTERN.replace("+$", "{1,50}$"))]  # bounds the nesting of values

# Targets of edges that are not nodes. END ends the token, and TERMINATE ends the whole run.
END = "END"
TERMINATE = "TERMINATE"


class Spec(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A part of a definition."""


class MergeSpec(Spec, frozen=True, kw_only=True):
    """A merge of the outputs of the branches that meet at a join.

    `source` is an expression that is evaluated in each branch's own context. The default is the result of the branch's
    last node. Strategies: `append` adds the outputs, by branch index, to the list at the target; if all outputs are
    lists, it adds their items. `collect` writes a new list, and never adds items one by one. `merge_object` adds the
    fields of the outputs to the object. If a field occurs twice, the later branch wins. `keyed` writes {"0": …}.
    `last_wins` writes the output of the last branch, or {} if there is no output. `reduce` calls `reducer` with the
    list of outputs.
    """

    strategy: Literal["append", "collect", "merge_object", "keyed", "last_wins", "reduce"]
    target: Target
    source: str | None = None
    reducer: str | None = None


class JoinSpec(Spec, frozen=True, kw_only=True):
    """A join, at which the branches of a fork become one token again.

    `need` is all, any, or a number of branches. `fork` is the node of the fork. The default is the innermost fork
    before the join. `timeout` counts from the first arrival. `on_early` says what happens to the remaining branches if
    any branch, or m branches, are enough. `tolerate` is the number, or the fraction, of branches that may fail at a
    join of all branches. The join fails as soon as more branches have failed.
    """

    need: Literal["all", "any"] | Count = "all"
    fork: Name | None = None
    on_early: Literal["cancel", "let_finish", "late_merge"] = "cancel"
    timeout: Seconds | None = None
    on_timeout: Literal["fail", "proceed"] = "fail"
    tolerate: int | float | None = None


class EdgeSpec(Spec, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """An edge to a node, from one node or from several. When a node ends, its edges are tried by priority, the lowest
    number first. All matching edges of the first priority that has a match fire. Edges with `on_error` apply if the
    node has failed. All other edges apply if it has not failed.

    With `foreach` (an expression for a list) or `spawn` (a number), the edge makes several tokens. Each token is a
    branch of a fork. Several edges that fire together make a fork too. At most `at_once` of these branches run at a
    time. An edge with `limit` fires that many times per token. After that it is skipped. An edge with `limit_timeout`
    is skipped once that many seconds have passed since the token first took the edge. When an edge with `cancel` fires,
    the tokens at the named nodes ("*" for all nodes) end, if they are in the branch that contains the fork of the
    edge's token.
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
    """Nodes at which only one token of a run may be at a time. Other tokens wait for their turn, in the order in which
    they arrive. A turn ends when the node ends. With `keep`, a turn ends when the token leaves these nodes: it moves
    elsewhere, ends, is forked, or arrives at a join.
    """

    nodes: Annotated[list[Name], Meta(min_length=1)]
    keep: bool = False


class GraphLimits(Spec, frozen=True, kw_only=True):
    """Limits of one run of a graph. A run that exceeds a limit fails."""

    tokens: Count = 20_000  # tokens that are alive at once
    branches: Count = 20_000  # branches of one fork
    nesting: Count = 32  # the nesting of forks
    in_a_row: Count = 100_000  # nodes one after the other on one path, without a wait between them
    merged_bytes: Count = 32 * 1024 * 1024  # bytes, as JSON, of a value that a join merges

    def __post_init__(self) -> None:
        check_fields(self, positive=True)


class RetrySpec(Spec, frozen=True, kw_only=True):
    """The retry policy of a node: whether and when it is retried after a failure. Times are in seconds.

    `backoff` says how the pauses grow, as in `perdure.Retry`. `retry_on` lists the errors that are retried; if it is
    empty, all errors are. `give_up_on` lists errors that are not retried. An error is a class, written as
    `package.module:name`. For a class of Python or Perdure, the name alone is enough.
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
    """A graph without its nodes. The schema of nodes depends on the registered kinds (see kinds/)."""

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
