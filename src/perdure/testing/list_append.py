"""A checker of transactions: does a recorded history of reads and appends have an order that explains it?

Each transaction appends values to lists, and reads whole lists. Every value is appended once in the whole history. So
a list that was read tells which appends came before it, and in which order. From this the checker derives how
transactions depend on each other:

- ww: a transaction appended to a list right after another one had appended to it.
- wr: a transaction read a list whose last value another one had appended.
- rw: a transaction read a list, and another one appended the next value.
- rt: a transaction ended before another one began (only with `real_time`).

A history is serializable if these dependencies have no cycle, and strictly serializable if they have none with rt. The
names of the anomalies are those of Adya (G0, G1a, G1b, G1c, G-single, G2). The method is that of Elle by Kingsbury and
Alvaro, "Elle: Inferring Isolation Anomalies from Experimental Observations", for its workload of lists.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

from msgspec import Struct

from perdure.errors import EngineBug, InvalidArguments

Key = str | int
Value = str | int
Outcome = Literal["committed", "aborted", "unknown"]
Kind = Literal["ww", "wr", "rw", "rt"]


class Append(Struct, frozen=True, tag=True):
    """A value was appended to a list."""

    key: Key
    value: Value


class Read(Struct, frozen=True, tag=True):
    """A list was read, with these values."""

    key: Key
    values: tuple[Value, ...]


class Transaction(Struct, frozen=True, kw_only=True):
    """What one transaction did, in order, and how it ended.

    `began` and `ended` are times of one clock. They are needed for `real_time` only. An outcome is unknown if the
    connection was lost before the answer to the commit: the transaction counts as committed once its appends were read.
    """

    id: str
    did: tuple[Append | Read, ...]
    outcome: Outcome = "committed"
    began: float = 0
    ended: float = 0


class Anomaly(Struct, frozen=True):
    """What is wrong with a history: the name of the anomaly, the transactions that show it, and a sentence."""

    name: str
    transactions: tuple[str, ...]
    message: str

    def __str__(self) -> str:
        return f"{self.name}: {self.message}"


def check(history: Sequence[Transaction], *, real_time: bool = False) -> list[Anomaly]:
    """Return the anomalies of a history. It is serializable if there are none; with `real_time`, strictly so.

    Each cycle is reported once, by its most serious name. Raises InvalidArguments if two transactions have the same id,
    or a value was appended to a list more than once by the history itself.
    """
    writers = _writers(history)
    orders, anomalies = _orders(history)
    anomalies = [*_internal(history), *anomalies, *_aborted(history, writers), *_lost(history, orders)]
    if anomalies:
        return anomalies  # Dependencies that are derived from lists like these mean nothing.
    return _cycles(_Graph(history, writers, orders, real_time=real_time))


def _writers(history: Sequence[Transaction]) -> dict[tuple[Key, Value], Transaction]:
    if len({one.id for one in history}) < len(history):
        raise InvalidArguments("two transactions of the history have the same id")
    writers: dict[tuple[Key, Value], Transaction] = {}
    for transaction in history:
        for done in transaction.did:
            if isinstance(done, Append):
                if (done.key, done.value) in writers:
                    raise InvalidArguments(f"{done.value!r} is appended to {done.key!r} twice: give each value once")
                writers[done.key, done.value] = transaction
    return writers


def _internal(history: Sequence[Transaction]) -> Iterator[Anomaly]:
    """Find transactions that do not see their own appends, or read a list twice with different values."""
    for transaction in history:
        known: dict[Key, tuple[Value, ...]] = {}
        added: dict[Key, tuple[Value, ...]] = defaultdict(tuple)
        for done in transaction.did:
            if isinstance(done, Append):
                added[done.key] += (done.value,)
                if done.key in known:
                    known[done.key] += (done.value,)
                continue
            own = added[done.key]
            if (done.key in known and known[done.key] != done.values) or done.values[
                len(done.values) - len(own) :
            ] != own:
                message = f"{transaction.id} read {_shown(done)}, which does not fit what it had done before"
                yield Anomaly("internal", (transaction.id,), message)
            known[done.key] = done.values


def _orders(history: Sequence[Transaction]) -> tuple[dict[Key, tuple[Value, ...]], list[Anomaly]]:
    """Return the longest list that was read under each key. Every other list that was read under
    the key must be a prefix of it."""
    longest: dict[Key, tuple[Value, ...]] = {}
    readers: dict[Key, str] = {}
    anomalies: list[Anomaly] = []
    reads = [(one, done) for one in history if one.outcome != "aborted" for done in one.did if isinstance(done, Read)]
    for transaction, read in reads:
        if len(set(read.values)) < len(read.values):
            message = f"{transaction.id} read {_shown(read)}, which has a value twice"
            anomalies.append(Anomaly("duplicate", (transaction.id,), message))
        if len(read.values) >= len(longest.get(read.key, ())):
            longest[read.key], readers[read.key] = read.values, transaction.id
    for transaction, read in reads:
        whole = longest[read.key]
        if whole[: len(read.values)] != read.values:
            other = readers[read.key]
            message = f"{transaction.id} read {_shown(read)}, and {other} read {_shown(Read(read.key, whole))}"
            anomalies.append(Anomaly("incompatible order", (transaction.id, other), message))
    return longest, anomalies


def _aborted(history: Sequence[Transaction], writers: dict[tuple[Key, Value], Transaction]) -> Iterator[Anomaly]:
    """Find reads of values that nobody committed (G1a), nobody appended, or that were not final (G1b)."""
    for transaction in history:
        if transaction.outcome == "aborted":
            continue
        for read in [done for done in transaction.did if isinstance(done, Read)]:
            for value in read.values:
                writer = writers.get((read.key, value))
                if writer is None:
                    message = f"{transaction.id} read {value!r} under {read.key!r}, which nobody has appended"
                    yield Anomaly("phantom value", (transaction.id,), message)
                elif writer.outcome == "aborted" and writer is not transaction:
                    message = f"{transaction.id} read {value!r} under {read.key!r}, which {writer.id} had rolled back"
                    yield Anomaly("G1a", (transaction.id, writer.id), message)
            last = writers.get((read.key, read.values[-1])) if read.values else None
            if last is not None and last is not transaction and _appended(last, read.key)[-1] != read.values[-1]:
                message = f"{transaction.id} read {_shown(read)}, before {last.id} had appended all its values"
                yield Anomaly("G1b", (transaction.id, last.id), message)


def _lost(history: Sequence[Transaction], orders: dict[Key, tuple[Value, ...]]) -> Iterator[Anomaly]:
    """Find appends that are missing in a list which was read by a transaction that began after their commit."""
    reads: dict[Key, list[tuple[float, str, Read]]] = defaultdict(list)
    for transaction in history:
        for done in transaction.did if transaction.outcome != "aborted" else ():
            if isinstance(done, Read):
                reads[done.key].append((transaction.began, transaction.id, done))
    for transaction in history:
        if transaction.outcome != "committed" or not transaction.ended:
            continue
        for key in {done.key for done in transaction.did if isinstance(done, Append)}:
            missing = [value for value in _appended(transaction, key) if value not in orders.get(key, ())]
            later = [(at, reader) for at, reader, _ in reads[key] if at > transaction.ended] if missing else []
            if later:
                reader = min(later)[1]
                message = (
                    f"{transaction.id} appended {missing[0]!r} to {key!r}, and {reader}, which began later, has not"
                )
                yield Anomaly("lost append", (transaction.id, reader), f"{message} read it")


def _appended(transaction: Transaction, key: Key) -> list[Value]:
    return [done.value for done in transaction.did if isinstance(done, Append) and done.key == key]


def _shown(read: Read) -> str:
    values = ", ".join(map(repr, read.values[-5:]))
    return f"{read.key!r}: [{'…, ' if len(read.values) > 5 else ''}{values}]"


class _Graph:
    """Transactions, and how they depend on each other."""

    def __init__(
        self,
        history: Sequence[Transaction],
        writers: dict[tuple[Key, Value], Transaction],
        orders: dict[Key, tuple[Value, ...]],
        *,
        real_time: bool,
    ) -> None:
        self.edges: dict[str, dict[str, set[Kind]]] = defaultdict(lambda: defaultdict(set))
        for key, order in orders.items():
            for value, following in pairwise(order):
                self._add(writers[key, value].id, writers[key, following].id, "ww")
        for transaction in history:
            for done in transaction.did if transaction.outcome != "aborted" else ():
                if isinstance(done, Read):
                    self._add_read(transaction.id, done, writers, orders[done.key])
        if real_time:
            self._add_times([one for one in history if one.outcome == "committed" and one.ended])

    def _add_read(
        self, reader: str, read: Read, writers: dict[tuple[Key, Value], Transaction], order: tuple[Value, ...]
    ) -> None:
        seen = len(read.values)
        if seen:
            self._add(writers[read.key, read.values[-1]].id, reader, "wr")
        if seen < len(order):
            self._add(reader, writers[read.key, order[seen]].id, "rw")

    def _add_times(self, transactions: list[Transaction]) -> None:
        """Add an edge from each transaction to those that began after its end, and that no other one lies between."""
        by_begin = sorted(transactions, key=lambda one: one.began)
        for transaction in transactions:
            ended_first = float("inf")
            for other in by_begin:
                if other.began > ended_first:
                    break
                if other.began > transaction.ended:
                    self._add(transaction.id, other.id, "rt")
                    ended_first = min(ended_first, other.ended)

    def _add(self, before: str, after: str, kind: Kind) -> None:
        if before != after:
            self.edges[before][after].add(kind)

    def after(self, transaction: str, kinds: set[Kind]) -> Iterator[str]:
        return (other for other, found in self.edges.get(transaction, {}).items() if found & kinds)


_LEVELS: tuple[tuple[str, set[Kind]], ...] = (
    ("G0", {"ww"}),
    ("G1c", {"ww", "wr"}),
    ("G-single", {"ww", "wr"}),  # and one rw
    ("G2", {"ww", "wr", "rw"}),
)
_REAL_TIME: set[Kind] = {"rt"}


def _cycles(graph: _Graph) -> list[Anomaly]:
    """Return one cycle of each strongly connected component, by its most serious name."""
    return [_worst_cycle(graph, set(component)) for component in _components(graph)]


def _worst_cycle(graph: _Graph, inside: set[str]) -> Anomaly:
    for name, kinds in _LEVELS:
        closing: Kind | None = "rw" if name == "G-single" else None
        if cycle := _cycle(graph, inside, kinds, closing):
            return _anomaly(graph, name, cycle)
        if cycle := _cycle(graph, inside, kinds | _REAL_TIME, closing):
            return _anomaly(graph, f"{name} in real time", cycle)
    raise EngineBug(f"{sorted(inside)[:5]} depend on each other, and no cycle was found")


def _anomaly(graph: _Graph, name: str, cycle: list[str]) -> Anomaly:
    parts = [cycle[0]]
    for before, after in zip(cycle, [*cycle[1:], cycle[0]], strict=True):
        parts.append(f"-{'/'.join(sorted(graph.edges[before][after]))}-> {after}")
    return Anomaly(name, tuple(cycle), " ".join(parts))


def _cycle(graph: _Graph, inside: set[str], kinds: set[Kind], closing: Kind | None) -> list[str]:
    """Return a shortest cycle of these kinds of edges. With `closing`, one edge of that kind closes the cycle."""
    best: list[str] = []
    for start in sorted(inside):
        for after in graph.after(start, {closing} if closing else kinds):
            path = _path(graph, after, start, inside, kinds) if after in inside else []
            if path and (not best or len(path) < len(best)):
                best = path
    return best


def _path(graph: _Graph, start: str, end: str, inside: set[str], kinds: set[Kind]) -> list[str]:
    """Return the transactions on a shortest way, as a cycle: the end of the way comes first."""
    came_from: dict[str, str] = {start: ""}
    waiting = deque([start])
    while waiting:
        here = waiting.popleft()
        if here == end:
            way = []
            while here:
                way.append(here)
                here = came_from[here]
            return [way[0], *reversed(way[1:])]
        for other in graph.after(here, kinds):
            if other in inside and other not in came_from:
                came_from[other] = here
                waiting.append(other)
    return []


def _components(graph: _Graph) -> Iterator[list[str]]:
    """Return the strongly connected components with more than one transaction (Tarjan's algorithm)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    for root in list(graph.edges):
        if root in index:
            continue
        work: list[tuple[str, Iterator[str]]] = [(root, iter(tuple(graph.edges.get(root, {}))))]
        index[root] = low[root] = len(index)
        stack.append(root)
        on_stack.add(root)
        while work:
            here, others = work[-1]
            for other in others:
                if other not in index:
                    index[other] = low[other] = len(index)
                    stack.append(other)
                    on_stack.add(other)
                    work.append((other, iter(tuple(graph.edges.get(other, {})))))
                    break
                if other in on_stack:
                    low[here] = min(low[here], index[other])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[here])
                if low[here] == index[here]:
                    component = list(_popped(stack, on_stack, here))
                    if len(component) > 1:
                        yield component


def _popped(stack: list[str], on_stack: set[str], last: str) -> Iterable[str]:
    while True:
        one = stack.pop()
        on_stack.discard(one)
        yield one
        if one == last:
            return
