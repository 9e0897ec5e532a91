"""Joins against a model of a few lines: who has arrived is counted by branch, however many tokens a branch has.

Every branch of a fork comes apart once more, and its tokens go on to the join of the outer fork, end, or fail, in any
order. The model knows sets of branches; the machine must go on, fail or wait exactly when it does.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal

from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import JoinFailed
from perdure.graph import Graph, all_of, any_of, assign, keyed, m_of
from perdure.models.graphs.decisions import Decisions
from perdure.models.graphs.machine import Machine
from perdure.models.graphs.plan import Plan
from perdure.models.graphs.tokens import Token

Act = Literal["arrive", "end", "fail"]
Need = int | None  # None: all of them
acts: st.SearchStrategy[Act] = st.sampled_from(["arrive", "arrive", "end", "fail"])


@cache
def plan_of(ways: int, need: Need, laps: int) -> Plan:
    """begin -> part (a branch per item) -> way0, way1, … -> meet, and back, so often."""
    graph: Graph[Any, Any] = Graph("joined")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("meet", assign({}), otherwise="end")
    join = all_of("begin") if need is None else any_of("begin") if need == 1 else m_of(need, "begin")
    graph.edge("begin", "part", foreach="input")
    for number in range(ways):
        way = f"way{number}"
        graph.node(way, assign({}), on_error="branch_error", otherwise="end")
        graph.edge("part", way)
        graph.edge(way, "meet", when="branch.output == 'arrive'", join=join, merge=keyed("state.got"))
    graph.edge("meet", "begin", limit=laps)
    graph.output("state.got")
    return graph.build()._draft.built()


class Model:
    """What a join has to do, from which branches have arrived, failed, and are under way."""

    def __init__(self, branches: int, ways: int, need: Need) -> None:
        self.tokens = [ways] * branches
        self.arrived: set[int] = set()
        self.failed: set[int] = set()
        self.need = need

    def tell(self, branch: int, act: Act) -> None:
        self.tokens[branch] -= 1
        if act == "fail":
            self.failed.add(branch)
        elif act == "arrive":
            self.arrived.add(branch)

    @property
    def counted(self) -> set[int]:
        return self.arrived - self.failed

    def outcome(self) -> Literal["waits", "goes on", "fails"]:
        live = {branch for branch, count in enumerate(self.tokens) if count}
        if self.need is None:
            if live:
                return "waits"
            return "fails" if self.failed and not self.counted else "goes on"
        if len(self.counted) >= self.need:
            return "goes on"
        coming = live - self.failed - self.counted
        return "fails" if len(self.counted) + len(coming) < self.need else "waits"

    def keys(self) -> set[str]:
        return {str(branch) for branch in (self.counted | self.failed if self.need is None else self.counted)}


class Story:
    """One lap of the machine beside the model, told the same."""

    def __init__(self, branches: int, ways: int, need: Need, laps: int) -> None:
        self.branches, self.ways, self.need = branches, ways, need
        self.machine = Machine(plan_of(ways, need, laps), [None] * branches)
        self.limits = dict.fromkeys(range(100), laps)
        self.begun = self._done(self.machine.begin(), "begin")

    def _done(self, decided: Decisions, node: str) -> Decisions:
        [token] = decided.run
        assert token.node == node
        return self.machine.completed(token.id, None)

    def lap(self, moves: list[tuple[int, Act]]) -> Decisions | None:
        """Branches come apart, and their tokens move; what the join decided, or None if it waits still."""
        decided = self.begun
        model = Model(self.branches, self.ways, self.need)
        open_tokens: dict[int, list[Token]] = {branch: [] for branch in range(self.branches)}
        for part in decided.run:
            assert part.node == "part"
            for token in self.machine.completed(part.id, None).run:
                open_tokens[part.index].append(token)
        for branch, act in self._all(moves):
            if not open_tokens[branch]:
                continue
            token = open_tokens[branch].pop()
            model.tell(branch, act)
            decided = self._tell(token, act)
            expected = model.outcome()
            if expected == "waits":
                assert not decided.ended
                assert not decided.run
                continue
            if expected == "fails":
                assert decided.ended
                assert isinstance(decided.failure, JoinFailed)
                return None
            assert not decided.ended
            [meet] = decided.run
            assert meet.node == "meet"
            assert set(meet.scope.read("state.got")) == model.keys()
            assert set(decided.cancel) == {one.id for rest in open_tokens.values() for one in rest}
            for late in (one for rest in open_tokens.values() for one in rest):  # It goes on once, whoever comes late.
                again = self._tell(late, "arrive")
                assert (again.run, again.ended) == ([], False)
            return decided
        raise AssertionError("all tokens have ended, and the join still waits")

    def _all(self, moves: list[tuple[int, Act]]) -> list[tuple[int, Act]]:
        """The moves, and after them those that let every token end."""
        rest: list[tuple[int, Act]] = [(branch, "end") for branch in range(self.branches) for _ in range(self.ways)]
        return [(branch % self.branches, act) for branch, act in moves] + rest

    def _tell(self, token: Token, act: Act) -> Decisions:
        if act == "fail":
            about = {"type": "ValueError", "message": "no", "node": token.node}
            return self.machine.failed(token.id, ValueError("no"), about)
        return self.machine.completed(token.id, act)


@settings(max_examples=300, deadline=None)
@given(
    branches=st.integers(1, 4),
    ways=st.integers(1, 3),
    need=st.sampled_from([1, 2, 3, None]),
    laps=st.lists(st.lists(st.tuples(st.integers(0, 3), acts), max_size=12), min_size=1, max_size=4),
)
@example(branches=2, ways=2, need=2, laps=[[(0, "arrive"), (0, "arrive"), (1, "arrive")]])
@example(branches=3, ways=2, need=2, laps=[[(0, "arrive"), (0, "arrive"), (1, "end"), (2, "arrive")]])
@example(branches=2, ways=2, need=None, laps=[[(0, "arrive"), (0, "arrive"), (1, "arrive")]])
@example(branches=2, ways=2, need=None, laps=[[(0, "fail"), (0, "arrive"), (1, "arrive")]])
@example(branches=2, ways=2, need=2, laps=[[(0, "arrive"), (0, "fail"), (1, "arrive"), (1, "arrive")]])
def test_a_join_counts_each_branch_once(
    branches: int, ways: int, need: Need, laps: list[list[tuple[int, Act]]]
) -> None:
    if need is not None and need > branches:
        need = branches
    story = Story(branches, ways, need, len(laps))
    last: list[tuple[int, Act]] = [(branch, "arrive") for branch in range(branches)]
    for number, moves in enumerate([*laps, last]):
        decided = story.lap(moves)
        if decided is None:
            return
        [meet] = decided.run
        decided = story.machine.completed(meet.id, None)
        if number == len(laps):  # The limit of the way back holds, through all the forks and joins.
            assert decided.ended
            assert decided.failure is None
        else:
            assert max(decided.run[0].laps.values()) == number + 1
            story.begun = story._done(decided, "begin")


def test_a_branch_whose_tokens_arrive_twice_is_not_two_branches() -> None:
    """The smallest story in which to count tokens, and not branches, would be wrong."""
    story = Story(2, 2, 2, 1)
    tokens = [token for part in story.begun.run for token in story.machine.completed(part.id, None).run]
    first, again, other, _ = sorted(tokens, key=lambda token: (token.fork.index, token.index))
    assert not story.machine.completed(first.id, "arrive").run
    assert not story.machine.completed(again.id, "arrive").run
    [meet] = story.machine.completed(other.id, "arrive").run
    assert meet.node == "meet"
    assert set(meet.scope.read("state.got")) == {"0", "1"}


def test_what_a_fork_costs_is_linear_in_its_branches() -> None:
    """Counted in tokens that are made, moved and ended, not in time."""

    def work(branches: int) -> int:
        story = Story(branches, 2, None, 1)
        story.lap([(branch, "arrive") for branch in range(branches) for _ in range(2)])
        return story.machine.tokens.work

    few, many, most = work(10), work(110), work(210)
    assert most - many == many - few
