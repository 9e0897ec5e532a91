"""What a graph is, as data: the one schema behind the builder, YAML and JSON. Nothing here decides or runs anything.

Durations are seconds. Texts in mappings, conditions and foreach are expressions (see expressions.py).
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from msgspec import Meta, Struct, field

from perdure.values.arguments import check_fields
from perdure.values.retry import Backoff

Name = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=100)]
SECONDS_MAX: Final = 1000 * 366 * 24 * 3600  # A thousand years, which is longer than any run lives.
Seconds = Annotated[float, Meta(gt=0, lt=SECONDS_MAX)]
Count = Annotated[int, Meta(ge=1)]
TARGET_PATTERN = r"^(state|output)(\.[A-Za-z_][A-Za-z0-9_]*)+$"
Target = Annotated[str, Meta(pattern=TARGET_PATTERN.replace("+$", "{1,50}$"))]  # Values nest no deeper than is sane.

# Where an edge may lead beside nodes: the token ends; the whole run ends.
END = "END"
TERMINATE = "TERMINATE"


class Spec(Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, frozen=True):
    """A part of a definition."""


class MergeSpec(Spec, frozen=True, kw_only=True):
    """What becomes of the outputs of the branches that meet at a join.

    `source` is an expression in each branch's own context, its last node's result unless given. append adds them, by
    branch index, to the list at the target, and lists flattened if all are; collect puts a new list there and never
    flattens; merge_object adds their fields, of equal ones the later branch's; keyed puts {"0": …}; last_wins the last
    branch's, {} if there is none; reduce calls `reducer` with the list of them.
    """

    strategy: Literal["append", "collect", "merge_object", "keyed", "last_wins", "reduce"]
    target: Target
    source: str | None = None
    reducer: str | None = None


class JoinSpec(Spec, frozen=True, kw_only=True):
    """When the branches of a fork go on as one token.

    `need`: all of them, any, or a number. `fork` is the node at which the branches came apart; the innermost that can
    be on the way unless given. `timeout` counts from the first arrival. `on_early` is for the branches that are still
    under way when any or m of them are enough. With `tolerate`, a number or a fraction of branches, a join of all takes
    the failures of its branches, and fails as soon as there are more.
    """

    need: Literal["all", "any"] | Count = "all"
    fork: Name | None = None
    on_early: Literal["cancel", "let_finish", "late_merge"] = "cancel"
    timeout: Seconds | None = None
    on_timeout: Literal["fail", "proceed"] = "fail"
    tolerate: int | float | None = None


class EdgeSpec(Spec, frozen=True, kw_only=True, rename={"source": "from", "target": "to"}):
    """A way from one node (or several) to another. Of the edges of a node those of the lowest priority with a match
    fire, all of them that match. Those with `on_error` are for a node that has failed, the others for one that has not.

    With `foreach` (an expression for a list) or `spawn` (a number) it gives several tokens, each a branch of a fork, as
    several edges that fire together do; of these, `at_once` are under way at a time, and the others wait. One with
    `limit` fires so many times per token and is then passed over, as one with `limit_timeout` is when so many seconds
    have passed since the token first took it.
    `cancel` names nodes whose tokens end when it fires ("*" for all), as far as they share the enclosing branch.
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
    """Nodes of which only one token of a run at a time stands at any; others wait for their turn, in the order in which
    they come. A turn ends with the node, or, with `keep`, when the token goes to none of these nodes: it ends, comes
    apart, or arrives at a join."""

    nodes: Annotated[list[Name], Meta(min_length=1)]
    keep: bool = False


class Limits(Spec, frozen=True, kw_only=True):
    """Bounds of one run of a graph: a run that goes beyond one of them fails."""

    tokens: Count = 20_000  # that are alive at once
    branches: Count = 20_000  # of one fork
    nesting: Count = 32  # forks inside each other
    in_a_row: Count = 100_000  # nodes one after the other, along one way, without anything to wait for

    def __post_init__(self) -> None:
        check_fields(self, positive=True)


class RetrySpec(Spec, frozen=True, kw_only=True):
    """How often and when a failed task is tried again; times are in seconds.

    `backoff` says how the pauses grow, as in `perdure.Retry`. `retry_on` lists the errors that are retryable (all of
    them if it is empty), `give_up_on` those that are not: classes, as `package.module:name`, or by their names alone if
    they are Python's or Perdure's own.
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
    """A graph without its nodes: their schema depends on the kinds there are (see kinds/)."""

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
    limits: Limits | None = None
