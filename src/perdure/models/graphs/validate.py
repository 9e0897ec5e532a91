"""Check the shape of a graph when it is built, and report each problem with its place.

This module also determines which fork each join closes. It follows every path to the join, and notes the forks on it.
If the join does not name its fork, all paths must have the same innermost fork.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

from perdure.models.graphs.kinds.base import Kind
from perdure.models.graphs.spec import END, TERMINATE, EdgeSpec, GraphSpec

STACKS_MAX: Final = 20_000

Stack = tuple[str, ...]


class Way:
    """An edge with one source. `number` identifies the edge in its graph."""

    __slots__ = ("number", "source", "spec", "target")

    def __init__(self, number: int, source: str, spec: EdgeSpec) -> None:
        self.number = number
        self.source = source
        self.target = spec.target
        self.spec = spec

    @property
    def is_certain(self) -> bool:
        return self.spec.when is None and self.is_unbounded

    @property
    def is_unbounded(self) -> bool:
        """Whether the edge has no limit for how often or how long it fires."""
        return self.spec.limit is None and self.spec.limit_timeout is None

    @property
    def is_multiple(self) -> bool:
        return self.spec.foreach is not None or self.spec.spawn is not None

    def place(self, graph: str) -> str:
        return f"graph {graph!r}, edge {self.source} -> {self.target}"


def ways_of(spec: GraphSpec) -> list[Way]:
    pairs = [(source, edge) for edge in spec.edges for source in edge.sources]
    return [Way(number, source, edge) for number, (source, edge) in enumerate(pairs)]


def tiers_of(ways: Sequence[Way], node: str, *, on_error: bool) -> list[list[Way]]:
    """Return the tiers of a node: its edges grouped by priority."""
    own = [way for way in ways if way.source == node and way.spec.on_error is on_error]
    return [[way for way in own if way.spec.priority == tier] for tier in sorted({way.spec.priority for way in own})]


def check_shape(spec: GraphSpec, kinds: Mapping[str, Kind], ways: Sequence[Way]) -> list[str]:
    """Return the problems of a graph's shape. Problems of joins and expressions are found elsewhere."""
    graph = f"graph {spec.graph!r}"
    if not kinds:
        return [f"{graph}: it has no nodes"]
    problems: list[str] = [
        f"{graph}, node {name!r}: {name} is where edges lead that end something; give the node another name"
        for name in (END, TERMINATE)
        if name in kinds
    ]
    if spec.start is not None and spec.start not in kinds:
        problems.append(f"{graph}, start: there is no node {spec.start!r}")
    seen: dict[object, Way] = {}
    for way in ways:
        problems += (f"{way.place(spec.graph)}, {problem}" for problem in _wrong_with(way, kinds))
        edge = way.spec
        key = (way.source, way.target, edge.on_error, edge.priority, edge.when, edge.foreach, edge.spawn)
        if seen.setdefault(key, way) is not way:
            problems.append(f"{way.place(spec.graph)}: it is there twice")
    problems += _wrong_turns(spec, kinds)
    if problems:
        return problems
    start = spec.start or next(iter(kinds))
    reached = _reached(start, ways)
    problems += [f"{graph}, node {name!r}: no way leads to it from {start!r}" for name in kinds if name not in reached]
    if (cycle := _endless(list(kinds), ways)) is not None:
        problems.append(
            f"{graph}, loop {' -> '.join(cycle)}: no edge on it has a limit; give one limit=…, or "
            'limit="unlimited" if a condition ends it'
        )
    return problems


def _wrong_with(way: Way, kinds: Mapping[str, Kind]) -> Iterator[str]:
    edge = way.spec
    if way.source not in kinds:
        yield f"from: there is no node {way.source!r}"
    if way.target not in kinds and way.target not in (END, TERMINATE):
        yield f"to: there is no node {way.target!r}"
    if way.target in (END, TERMINATE) and (edge.join is not None or way.is_multiple):
        yield f"to: nothing joins or comes apart on the way to {way.target}"
    if edge.foreach is not None and edge.spawn is not None:
        yield "foreach: it has spawn too; it can have one of them"
    if edge.at_once is not None and not way.is_multiple:
        yield "at_once: there is one branch; it goes with foreach or spawn"
    if edge.join is not None and way.is_multiple:
        yield "join: branches cannot meet and come apart on the same edge; put a node between"
    if edge.merges and edge.join is None:
        yield "merge: there is no join at which to merge"
    if edge.join is not None:
        if edge.join.fork is not None and edge.join.fork not in kinds:
            yield f"join.fork: there is no node {edge.join.fork!r}"
        if edge.join.need == "all" and edge.join.on_early != "cancel":
            yield "join.on_early: a join that needs all branches is never early"
        if edge.join.timeout is not None and edge.join.need in ("any", 1):
            yield (
                "join.timeout: it counts from the first arrival, with which this join goes on; give the nodes before "
                "it a timeout, or let it need more branches"
            )
        if edge.join.tolerate is not None:
            if edge.join.need != "all":
                yield "join.tolerate: only a join that needs all branches tolerates failures"
            if not _is_tolerance(edge.join.tolerate):
                yield f"join.tolerate: a whole number, or a fraction between 0 and 1, not {edge.join.tolerate}"
        if edge.join.on_timeout != "fail" and edge.join.timeout is None:
            yield "join.on_timeout: it has no timeout"
        if edge.join.on_early == "late_merge" and any(merge.strategy == "reduce" for merge in edge.merges):
            yield "merge: a reducer has all outputs at once, so late ones cannot be merged"
    for merge in edge.merges:
        if (merge.strategy == "reduce") is not (merge.reducer is not None):
            yield "merge.reducer: the strategy reduce has one, the others have none"
    for name in edge.cancel:
        if name not in kinds and name != "*":
            yield f"cancel: there is no node {name!r}"


def _is_tolerance(given: Any) -> bool:
    return 0 < given < 1 if isinstance(given, float) else given >= 0


def _wrong_turns(spec: GraphSpec, kinds: Mapping[str, Kind]) -> Iterator[str]:
    seen: set[str] = set()
    for number, part in enumerate(spec.exclusive):
        place = f"graph {spec.graph!r}, exclusive[{number}]"
        for name in part.nodes:
            if name not in kinds:
                yield f"{place}: there is no node {name!r}"
            elif name in seen:
                yield f"{place}: the node {name!r} is exclusive already, and can be so once"
            seen.add(name)


def _reached(start: str, ways: Sequence[Way]) -> set[str]:
    reached, following = {start}, [start]
    while following:
        node = following.pop()
        for way in ways:
            if way.source == node and way.target not in reached:
                reached.add(way.target)
                following.append(way.target)
    return reached


def _endless(names: Sequence[str], ways: Sequence[Way]) -> list[str] | None:
    """Return a loop without a limit, or None."""
    onward: dict[str, list[str]] = {name: [] for name in names}
    for way in ways:
        if way.is_unbounded and way.target in onward:
            onward[way.source].append(way.target)
    done: set[str] = set()
    for name in names:
        path: list[str] = []
        stack = [(name, iter(onward[name]))] if name not in done else []
        path += [name] if stack else []
        while stack:
            node, targets = stack[-1]
            target = next(targets, None)
            if target is None:
                done.add(node)
                stack.pop()
                path.pop()
            elif target in path:
                return [*path[path.index(target) :], target]
            elif target not in done:
                stack.append((target, iter(onward[target])))
                path.append(target)
    return None


class Shortcut(NamedTuple):
    """How often a join may go on without an arrival. It may do so `limit` times, minus the laps of these edges."""

    limit: int
    edges: list[int]


def shortcuts(ways: Sequence[Way], closes: Mapping[int, str]) -> dict[tuple[str, str], Shortcut]:
    """Find the joins on loops whose only limits are inside the join's fork. Return these limits for each join. The key
    of a join is its fork and its target.

    A join goes on without an arrival if the fork's list is empty, or if all branches end or fail. Then no edge between
    the fork and the join has fired, so a limit there would not end the loop.
    """
    joins = {(closes[way.number], way.target) for way in ways if way.number in closes}
    onward: dict[str, set[str]] = {}
    for source, target in joins | {(way.source, way.target) for way in ways if way.is_unbounded}:
        onward.setdefault(source, set()).add(target)
    found: dict[tuple[str, str], Shortcut] = {}
    for fork, target in sorted(joins):
        if fork not in _followed(target, onward):
            continue
        inside = {fork, *_within(fork, target, ways)}
        limits = {way.number: way.spec.limit for way in ways if way.source in inside}
        counted = {number: limit for number, limit in limits.items() if isinstance(limit, int)}
        if counted:
            found[fork, target] = Shortcut(max(counted.values()), list(counted))
    return found


def _followed(start: str, onward: Mapping[str, set[str]]) -> set[str]:
    """Return the nodes that can be reached from a node, including the node itself."""
    reached, following = {start}, [start]
    while following:
        fresh = onward.get(following.pop(), set()) - reached
        reached |= fresh
        following += fresh
    return reached


def _within(fork: str, target: str, ways: Sequence[Way]) -> set[str]:
    """Return the nodes between a fork and its join."""
    onward: dict[str, set[str]] = {}
    for way in ways:
        if way.target != target and way.source != target:
            onward.setdefault(way.source, set()).add(way.target)
    return _followed(fork, onward)


class Forks:
    """Determines which fork each join closes. `closes` has the fork's node for each number of a join's edge."""

    def __init__(self, spec: GraphSpec, kinds: Mapping[str, Kind], ways: Sequence[Way]) -> None:
        self.problems: list[str] = []
        self.closes: dict[int, str] = {}
        self._spec = spec
        self._ways = ways
        self._innermost: dict[int, set[str | None]] = {}
        self._found: dict[str, set[Stack]] = {}
        if any(way.spec.join is not None for way in ways):
            self._go_through(spec.start or next(iter(kinds)), kinds)
        for way in ways:
            if way.spec.join is not None:
                self._settle(way)
        self._compare_depths()
        joined = set(self.closes.values())
        for name, kind in kinds.items():
            if kind.on_error == "branch_error" and not any(joined & set(stack) for stack in self._found.get(name, ())):
                self.problems.append(
                    f"graph {spec.graph!r}, node {name!r}, on_error: it is in no branch whose join would take its error"
                )

    def _go_through(self, start: str, kinds: Mapping[str, Kind]) -> None:
        tiers = {
            name: [tier for on_error in (False, True) for tier in tiers_of(self._ways, name, on_error=on_error)]
            for name in kinds
        }
        following: list[tuple[str, Stack]] = [(start, ())]
        count = 0
        while following:
            node, stack = following.pop()
            if stack in self._found.setdefault(node, set()):
                continue
            self._found[node].add(stack)
            count += 1
            if count > STACKS_MAX:
                self.problems.append(
                    f"graph {self._spec.graph!r}: there are more than {STACKS_MAX:,} ways through its forks, too many "
                    "to be followed; name the fork of every join, or make graphs of its parts"
                )
                return
            for tier in tiers[node]:
                for way in tier:
                    following += [
                        (way.target, left)
                        for entered in _entered(node, stack, way, tier)
                        for left in self._left(way, entered)
                        if way.target in kinds
                    ]

    def _left(self, way: Way, stack: Stack) -> Iterator[Stack]:
        join = way.spec.join
        if join is None:
            yield stack
            return
        fork = join.fork or (stack[-1] if stack else None)
        self._innermost.setdefault(way.number, set()).add(fork if fork in stack else None)
        yield stack[: stack.index(fork)] if fork is not None and fork in stack else stack

    def _settle(self, way: Way) -> None:
        forks = sorted(fork for fork in self._innermost.get(way.number, ()) if fork is not None)
        place = f"{way.place(self._spec.graph)}, join"
        if not forks:
            named = way.spec.join is not None and way.spec.join.fork
            what = f"the fork at {named!r} does not reach it" if named else "no fork reaches it"
            self.problems.append(f"{place}: {what}, so nothing comes apart that could meet here")
        elif len(forks) > 1:
            ambiguous = " or ".join(map(repr, forks))
            self.problems.append(
                f"{place}: it can close the fork at {ambiguous}; say which with fork={forks[0]!r} or the like"
            )
        else:
            self.closes[way.number] = forks[0]

    def _compare_depths(self) -> None:
        """Check that the edges of one join close the same fork. If one edge closed an inner fork, the join would go on
        more than once. So the author must name the fork.
        """
        for target in dict.fromkeys(way.target for way in self._ways if way.number in self.closes):
            into = [way for way in self._ways if way.target == target and way.number in self.closes]
            if all(way.spec.join is not None and way.spec.join.fork is not None for way in into):
                continue
            forks = sorted({self.closes[way.number] for way in into})
            stacks = {stack for found in self._found.values() for stack in found}
            for outer, inner in ((one, other) for one in forks for other in forks if one != other):
                if any(inner in stack and outer in stack[: stack.index(inner)] for stack in stacks):
                    said = "; ".join(f"from {way.source!r} the fork at {self.closes[way.number]!r}" for way in into)
                    self.problems.append(
                        f"graph {self._spec.graph!r}, join at {target!r}: its edges close forks of different depth "
                        f"({said}), so that it would go on more than once; name the fork on each of these edges: "
                        f"fork={outer!r} for one join over all of them"
                    )


def _entered(node: str, stack: Stack, way: Way, tier: Sequence[Way]) -> Iterator[Stack]:
    """Return the forks on the path after an edge has fired. If the edge may or may not make a new fork, return both
    possibilities.
    """
    others = [other for other in tier if other is not way and other.target != END]
    if way.is_multiple or any(other.is_certain for other in others):
        forks = (True,)
    else:
        forks = (True, False) if others else (False,)  # type: ignore[assignment]
    for is_fork in forks:
        yield stack if not is_fork or node in stack else (*stack, node)
