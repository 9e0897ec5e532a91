"""The pure machine: whatever the graph, and in whatever order nodes end, joins go on once and nothing hangs."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import JoinFailed
from perdure.graph import END, Graph, all_of, any_of, append, assign, m_of
from perdure.models.graphs.context import Scope
from perdure.models.graphs.decisions import Decisions, TimerKey
from perdure.models.graphs.machine import Machine
from perdure.models.graphs.merges import Merge
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.rules_versions import MERGES_RULES
from perdure.models.graphs.sizes import Sizes
from perdure.models.graphs.spec import JoinSpec, MergeSpec
from perdure.models.graphs.tokens import Token

COMPLETE = (
    all_of(),
    any_of(on_early="let_finish"),
    any_of(on_early="late_merge"),
    m_of(2, on_early="let_finish"),
)
LISTS = {f"items{size}": list(range(size)) for size in range(5)}

ALONE = ("n_task", "n_flaky", "n_failing")  # nodes to be exclusive, where some are

# A block is a task, a sequence, a split, a list to go through, or a loop: nested lists, so that hypothesis can shrink.
Block = Any
needs = st.sampled_from(
    [
        all_of(),
        all_of(timeout=1),
        all_of(timeout=1, on_timeout="proceed"),
        any_of(),
        any_of(on_early="let_finish"),
        any_of(on_early="late_merge"),
        m_of(2),
        m_of(2, on_early="let_finish"),
        m_of(2, on_early="late_merge", timeout=1, on_timeout="proceed"),
    ]
)
blocks: st.SearchStrategy[Block] = st.recursive(
    st.sampled_from(["task", "flaky", "quitting", "failing", "ending"]).map(lambda name: [name]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: ["sequence", *parts]),
        st.tuples(needs, st.lists(inner, min_size=2, max_size=3)).map(lambda drawn: ["split", drawn[0], *drawn[1]]),
        st.tuples(needs, st.integers(0, 4), inner).map(lambda drawn: ["foreach", *drawn]),
        st.tuples(st.integers(1, 3), inner).map(lambda drawn: ["loop", *drawn]),
    ),
    max_leaves=8,
)


keeps = st.sampled_from([None, False, True])


class Drawing:
    """A graph from a block. `joins` has the fork of every node to which a join leads, and what it needs."""

    def __init__(self, block: Block, keep: bool | None = None) -> None:
        self.graph: Graph[Any, Any] = Graph("drawn")
        self.joins: dict[str, tuple[str, Any]] = {}
        self._count = self._depth = 0
        first, last = self._draw(block)
        self._node("start")
        self.graph.edge("n_start", first)
        self.graph._draft.start = "n_start"
        self.graph.edge(last, self._node("end"))
        self.exclusive = [] if keep is None else [name for name in self.graph._draft.nodes if name.startswith(ALONE)]
        if keep is not None and self.exclusive:
            self.graph.exclusive(self.exclusive, keep=keep)

    def plan(self) -> Plan:
        return self.graph.build()._draft.built()

    def _node(self, name: str, **options: Any) -> str:
        return self.graph.node(f"n_{name}", assign({}), **options).name

    def _draw(self, block: Block) -> tuple[str, str]:
        self._count += 1
        name = f"{block[0]}{self._count}"
        match block:
            case ["task"]:
                node = self._node(name)
                return node, node
            case ["flaky"]:
                node, after = self._node(name), self._node(f"{name}_after")
                self.graph.edge(node, after)
                self.graph.edge(node, after, on_error=True)
                return node, after
            case ["quitting"]:  # Its token ends here when the node's result says so.
                node, after = self._node(name), self._node(f"{name}_after")
                self.graph.edge(node, after, when=f"nodes.{node}")
                self.graph.edge(node, END, priority=1)
                return node, after
            case ["failing"]:  # Its branch takes the error, if it is in one.
                node = self._node(name, on_error="branch_error" if self._depth else None)
                return node, node
            case ["ending"]:  # It ends the rest of its fork.
                node, after = self._node(name), self._node(f"{name}_after")
                self.graph.edge(node, after, cancel="*")
                return node, after
            case ["sequence", *parts]:
                ends = [self._draw(part) for part in parts]
                for (_, last), (first, _) in pairwise(ends):
                    self.graph.edge(last, first)
                return ends[0][0], ends[-1][1]
            case ["split", need, *parts]:
                fork, meet = self._node(name), self._node(f"{name}_meet")
                for part in parts:
                    first, last = self._inside(part)
                    self.graph.edge(fork, first)
                    self._join(last, meet, fork, need)
                return fork, meet
            case ["foreach", need, size, part]:
                fork, meet = self._node(name), self._node(f"{name}_meet")
                first, last = self._inside(part)
                self.graph.edge(fork, first, foreach=f"input.items{size}")
                self._join(last, meet, fork, need)
                return fork, meet
            case ["loop", laps, part]:
                first, last = self._draw(part)
                turn = self._node(name)
                self.graph.edge(last, turn)
                self.graph.edge(turn, first, limit=laps)
                after = self._node(f"{name}_after")
                self.graph.edge(turn, after, priority=1)
                return first, after
            case _:
                raise AssertionError(block)

    def _inside(self, block: Block) -> tuple[str, str]:
        self._depth += 1
        ends = self._draw(block)
        self._depth -= 1
        return ends

    def _join(self, last: str, meet: str, fork: str, need: Any) -> None:
        self.joins[meet] = (fork, need)
        join = msgspec.structs.replace(need, fork=fork)
        self.graph.edge(last, meet, join=join, merge=append("state.met", source="branch.index"))


class Story:
    """Drives a machine to its end in a random order, and remembers what ran."""

    def __init__(self, plan: Plan, seed: int) -> None:
        self.ran: Counter[str] = Counter()
        self.machine = Machine(plan, LISTS)
        self.open: dict[int, Token] = {}
        self.timers: set[TimerKey] = set()
        self.end: Decisions | None = None
        self._random = random.Random(seed)
        self._take(self.machine.begin())
        told = 0
        while self.end is None:
            assert self.open, "nothing runs, and the run has not ended"
            if self.timers and self._random.random() < 0.1:
                key = self._random.choice(sorted(self.timers))
                self.timers.remove(key)
                self._take(self.machine.due(key))
                continue
            token_id = self._random.choice(sorted(self.open))
            token = self.open.pop(token_id)
            self._tell(token)
            told += 1
            assert told < 100_000
            if self.end is None:
                again = self.machine.completed(token_id, True)  # Twice, or late: it changes nothing.
                assert (again.run, again.cancel, again.ended) == ([], [], False)

    def _tell(self, token: Token) -> None:
        may_fail = token.node.startswith(("n_flaky", "n_failing"))
        if may_fail and not token.node.endswith("after") and self._random.random() < 0.5:
            about = {"type": "ValueError", "message": "no", "node": token.node}
            self._take(self.machine.failed(token.id, ValueError("no"), about))
        else:
            self._take(self.machine.completed(token.id, self._random.random() < 0.6))

    def _take(self, decided: Decisions) -> None:
        if decided.ended:
            self.end = decided
            return
        for token_id in decided.cancel:
            self.open.pop(token_id, None)
        for key in decided.timers_dropped:
            self.timers.remove(key)
        for key, _ in decided.timers:
            assert key not in self.timers
            self.timers.add(key)
        assert self.timers == set(self.machine._moves.joins.timed)
        for token in decided.run:
            assert token.id not in self.open
            self.open[token.id] = token
            self.ran[token.node] += 1
        turns, tokens = self.machine.tokens.turns, self.machine.tokens.by_id
        waiting = {id for id, token in tokens.items() if turns is not None and turns.is_waiting(token)}
        assert set(self.open) == set(tokens) - waiting
        assert turns is None or sum(token.node.startswith(ALONE) for token in self.open.values()) <= 1
        assert turns is None or len(turns) <= len(tokens)


@settings(max_examples=200, deadline=None)
@given(block=blocks, seed=st.integers(0, 10_000), keep=keeps)
def test_every_run_ends_and_no_join_goes_on_more_often_than_its_fork_came_apart(
    block: Block, seed: int, keep: bool | None
) -> None:
    drawing = Drawing(block, keep)
    story = Story(drawing.plan(), seed)
    for meet, (fork, _) in drawing.joins.items():
        assert story.ran[meet] <= story.ran[fork]
    assert story.ran["n_end"] <= 1


def only(block: Block, *joins: JoinSpec) -> bool:
    """Whether a block has no other joins than these, no tokens that end before them, and branches enough."""
    if block[0] == "foreach" and block[2] == 1 and block[1].need == 2:
        return False
    return all(
        only(part, *joins)
        if isinstance(part, list)
        else part in joins
        if isinstance(part, JoinSpec)
        else part not in ("quitting", "failing", "ending")
        for part in block
    )


@settings(max_examples=200, deadline=None)
@given(block=blocks.filter(lambda block: only(block, *COMPLETE)), seed=st.integers(0, 10_000), keep=keeps)
def test_where_no_token_quits_every_fork_meets_exactly_once(block: Block, seed: int, keep: bool | None) -> None:
    drawing = Drawing(block, keep)
    story = Story(drawing.plan(), seed)
    assert story.end is not None
    assert story.end.failure is None
    assert story.ran["n_end"] == 1
    for meet, (fork, _) in drawing.joins.items():
        assert story.ran[meet] == story.ran[fork]


@settings(max_examples=100, deadline=None)
@given(block=blocks, seed=st.integers(0, 10_000), keep=keeps)
def test_the_same_story_gives_the_same_decisions(block: Block, seed: int, keep: bool | None) -> None:
    plan = Drawing(block, keep).plan()
    once, again = Story(plan, seed), Story(plan, seed)
    assert once.ran == again.ran
    assert once.end is not None
    assert again.end is not None
    assert (once.end.output, str(once.end.failure)) == (again.end.output, str(again.end.failure))


def test_late_outputs_are_added_in_place_until_somebody_reads_them() -> None:
    """A thousand branches that come late copy the list once. What was read before stays as it was."""
    scope, sizes = Scope(), Sizes(1_000_000, MERGES_RULES)
    merge = Merge(MergeSpec(target="state.deep.got", strategy="append"), "place", None)
    other = Merge(MergeSpec(target="state.deep.keyed", strategy="keyed"), "place", None)
    merge.apply({0: "first"}, scope, sizes)
    read = scope.read("state.deep.got")
    for index in range(1, 4):
        merge.add_late(index, index, scope, sizes)
        other.add_late(index, index, scope, sizes)
    assert read == ["first"]
    grown = scope.grown("state.deep.got", list)
    for index in range(4, 1_000):
        merge.add_late(index, index, scope, sizes)
        other.add_late(index, index, scope, sizes)
    assert scope.grown("state.deep.got", list) is grown
    read = Scope(scope).read("state.deep")  # from a branch below
    merge.add_late(1_000, [1_000, 1_001], scope, sizes)
    other.add_late(1_000, "last", scope, sizes)
    assert read == {"got": ["first", *range(1, 1_000)], "keyed": {str(index): index for index in range(1, 1_000)}}
    assert scope.read("state.deep.got") == ["first", *range(1, 1_002)]
    assert scope.read("state.deep.keyed")["1000"] == "last"
    whole = scope.whole("state")
    merge.add_late(1_001, "after", scope, sizes)
    assert whole["deep"]["got"][-1] == 1_001
    scope.write("state.deep", {"got": "no list"})
    with pytest.raises(JoinFailed, match="append needs a list"):
        merge.add_late(1_002, "too late", scope, sizes)
