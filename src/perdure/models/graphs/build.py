"""Build a graph from its definition: look up every name, parse every expression, and collect all problems."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from perdure.errors import InvalidDefinition
from perdure.models.graphs.expressions import Expression
from perdure.models.graphs.kinds.base import Kind, Preparing, Work
from perdure.models.graphs.mappings import ValueMap
from perdure.models.graphs.merges import Merge
from perdure.models.graphs.places import invalid
from perdure.models.graphs.plan import Edge, Exclusive, Join, Node, Passes, Plan
from perdure.models.graphs.references import remember_reducer, resolve
from perdure.models.graphs.spec import GraphLimits, GraphSpec
from perdure.models.graphs.validate import Forks, Shortcut, Way, check_shape, shortcuts, tiers_of, ways_of


def build(
    spec: GraphSpec,
    kinds: Mapping[str, Kind],
    objects: Mapping[str, Any],
    input_fields: frozenset[str] | None,
    may_start: Callable[[Sequence[str]], bool],
) -> Plan:
    """Return the plan of a graph. Raises InvalidDefinition, whose `problems` list all problems with their places."""
    return _Building(spec, kinds, objects, input_fields, may_start).plan()


class _Building:
    def __init__(
        self,
        spec: GraphSpec,
        kinds: Mapping[str, Kind],
        objects: Mapping[str, Any],
        fields: frozenset[str] | None,
        may_start: Callable[[Sequence[str]], bool],
    ) -> None:
        self._spec = spec
        self._kinds = kinds
        self._objects = objects
        self._fields = fields
        self._may_start = may_start
        self._place = f"graph {spec.graph!r}"
        self._problems: list[str] = []
        self._expressions: list[Expression] = []
        self._joins: dict[tuple[str, str], tuple[Join, Any]] = {}
        self._shortcuts: dict[tuple[str, str], Shortcut] = {}

    def plan(self) -> Plan:
        spec = self._spec
        ways = ways_of(spec)
        self._problems += check_shape(spec, self._kinds, ways)
        self._fail_if_wrong()
        forks = Forks(spec, self._kinds, ways)
        self._problems += forks.problems
        self._shortcuts = shortcuts(ways, forks.closes)
        edges = {way.number: edge for way in ways if (edge := self._edge(way, forks)) is not None}
        nodes = {name: node for name in self._kinds if (node := self._node(name, ways, edges)) is not None}
        output: ValueMap | None = None
        if spec.output is not None:
            output = self._tried(ValueMap, spec.output, f"{self._place}, output")
            self._expressions += [] if output is None else output.expressions()
        for expression in self._expressions:
            self._problems += [
                f"{expression.place}: {expression.source!r} uses the result of a node {name!r}, and there is none"
                for name in sorted(expression.nodes - set(self._kinds))
            ]
        self._fail_if_wrong()
        joins: dict[str, list[Join]] = {}
        for join, _ in self._joins.values():
            joins.setdefault(join.fork, []).append(join)
        return Plan(
            name=spec.graph,
            place=self._place,
            start=spec.start or next(iter(self._kinds)),
            nodes=nodes,
            joins=joins,
            output=output,
            timeout_s=spec.timeout,
            limits=spec.limits or GraphLimits(),
            exclusive=[
                Exclusive(number=number, nodes=frozenset(part.nodes), keep=part.keep)
                for number, part in enumerate(spec.exclusive)
            ],
            cancellable=frozenset(name for edge in spec.edges for name in edge.cancel if name != "*"),
        )

    def _fail_if_wrong(self) -> None:
        if self._problems:
            raise invalid(self._problems)

    def _tried(self, make: Any, *args: Any) -> Any:
        """Return the result of a function. Return None if the function found a problem in the definition."""
        try:
            return make(*args)
        except InvalidDefinition as error:
            self._problems.append(str(error))
            return None

    def _expression(self, source: str | None, place: str) -> Expression | None:
        if source is None:
            return None
        found: Expression | None = self._tried(Expression, source, place)
        if found is not None:
            self._expressions.append(found)
        return found

    def _node(self, name: str, ways: Sequence[Way], edges: Mapping[int, Edge]) -> Node | None:
        kind = self._kinds[name]
        about = Preparing(
            self._spec.graph,
            name,
            resolve=lambda reference, place: resolve(reference, place, self._objects),
            knows=lambda reference: reference in self._objects,
            input_fields=self._fields,
            may_start=self._may_start,
        )
        work: Work | None = self._tried(kind.prepare, about)
        self._expressions += about.expressions
        writes: list[tuple[str, Expression]] = []
        for target, source in kind.output.items():
            written = self._expression(source, f"{about.place}, output.{target}")
            if written is not None:
                writes.append((target, written))

        def tiers(on_error: bool) -> list[list[Edge]]:
            found = tiers_of(ways, name, on_error=on_error)
            return [[edges[way.number] for way in tier if way.number in edges] for tier in found]

        return Node(
            name=name,
            work=work,
            onward=tiers(False),
            on_failure=tiers(True),
            on_error=kind.on_error,
            otherwise=kind.otherwise,
            writes=writes,
            place=about.place,
        )

    def _edge(self, way: Way, forks: Forks) -> Edge | None:
        spec, place = way.spec, way.place(self._spec.graph)
        join = None
        if spec.join is not None:
            if way.number not in forks.closes:
                return None
            join = self._join(way, forks.closes[way.number], place)
        return Edge(
            number=way.number,
            source=way.source,
            target=way.target,
            when=self._expression(spec.when, f"{place}, when"),
            foreach=self._expression(spec.foreach, f"{place}, foreach"),
            spawn=spec.spawn,
            at_once=spec.at_once,
            limit=spec.limit if isinstance(spec.limit, int) else None,
            limit_us=None if spec.limit_timeout is None else round(spec.limit_timeout * 1_000_000),
            join=join,
            cancel=frozenset(spec.cancel),
            place=place,
        )

    def _join(self, way: Way, fork: str, place: str) -> Join:
        """Return the join of an edge. Edges that lead to the same node and close the same fork share one join."""
        assert way.spec.join is not None
        spec = (structs.replace(way.spec.join, fork=None), way.spec.merges)
        known = self._joins.get((way.target, fork))
        if known is not None:
            if known[1] != spec:
                self._problems.append(
                    f"{place}, join: other edges into {way.target!r} close the fork at {fork!r} in another way; a join "
                    "and what it merges are the same on all of them"
                )
            return known[0]
        merges: list[Merge] = []
        for number, merge in enumerate(way.spec.merges):
            where = f"{place}, merge" + (f"[{number}]" if len(way.spec.merges) > 1 else "")
            reducer = None
            if merge.reducer is not None:
                reducer = self._tried(resolve, merge.reducer, f"{where}.reducer", self._objects)
                remember_reducer(merge.reducer, reducer)
            made: Merge | None = self._tried(Merge, merge, where, reducer)
            if made is not None:
                merges.append(made)
                self._expressions += [made.source] if made.source is not None else []
        where = f"graph {self._spec.graph!r}, join at {way.target!r} of the fork at {fork!r}"
        passes = None
        if (shortcut := self._shortcuts.get((fork, way.target))) is not None:
            number = -1 - len(self._joins)  # Joins have negative numbers, because edges count upwards from zero.
            passes = Passes(number=number, limit=shortcut.limit, edges=shortcut.edges)
        join = Join(target=way.target, fork=fork, spec=way.spec.join, merges=merges, place=where, passes=passes)
        self._joins[way.target, fork] = (join, spec)
        return join
