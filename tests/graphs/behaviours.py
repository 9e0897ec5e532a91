"""What graphs do, one behaviour each, whatever the order in which steps end: small graphs, and what must come of them.

W1 to W33 are the numbers of the list that graphs were designed after. Beside what is here: the pure machine, its
tokens, and results that are late or come twice are in test_machine.py (W1, W2, W5, W6, W7), definitions and what is
wrong with them in test_definitions.py (W3, W4, W17), kinds of node and prompts in test_kinds.py and test_llm.py (W26,
W27), expressions in test_expressions.py (W15), commits in test_commits.py (W33).
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from msgspec import Struct

from perdure import Retry, current_step, resource, sleep, step, workflow
from perdure.graph import (
    END,
    TERMINATE,
    Graph,
    GraphLimits,
    all_of,
    any_of,
    append,
    assign,
    child,
    collect,
    keyed,
    last_wins,
    m_of,
    merge_object,
    terminate,
    timer,
    wait,
)
from perdure.testing import VirtualClock

JITTER_S = 3.0


class Jitter:
    """Makes steps take their time, drawn from a seed: so they end in any order, which is the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def seconds(self, key: str) -> float:
        return Random(f"{self.seed}/{key}").random() * JITTER_S


async def _take_time() -> None:
    this = current_step()
    await resource(VirtualClock).sleep(resource(Jitter).seconds(this.idempotency_key))


@step(retry=Retry.never())
async def work(value: Any) -> Any:
    await _take_time()
    return value


@step(retry=Retry.never())
async def refuse(value: Any) -> Any:
    await _take_time()
    if value == "bad":
        raise ValueError("it is bad")
    return value


@step(retry=Retry(attempts=3, jitter=0))
async def flaky(value: Any) -> Any:
    await _take_time()
    if current_step().attempt < 3:
        raise OSError("not yet")
    return value


@step(retry=Retry.never())
async def make(name: str) -> str:
    current_step().stage(name, {"made": name})
    await _take_time()
    return name


@workflow(name="behaviours.double")
async def double(number: int) -> int:
    await sleep(1)
    if number < 0:
        raise ValueError("negative")
    worked: int = await work(number)
    return 2 * worked


class Behaviour(Struct, kw_only=True):
    """`expected` is a result, or says whether one is right; `fails` is the type of what a run fails with."""

    number: str
    make: Callable[[Graph[Any, Any]], None]
    input: Any = None
    expected: Any = None
    fails: str | None = None
    events: tuple[tuple[str, Any], ...] = ()
    options: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return self.make.__name__

    def graph(self) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph(self.name, **self.options)
        self.make(graph)
        return graph.build()

    def check(self, outcome: Any) -> None:
        """Raises AssertionError."""
        kind, value = outcome
        if self.fails is not None:
            assert (kind, value) == ("failed", self.fails), f"{self.name}: {outcome}"
            return
        assert kind == "succeeded", f"{self.name}: {outcome}"
        is_right = self.expected(value) if callable(self.expected) else value == self.expected
        assert is_right, f"{self.name}: {value!r}"


BEHAVIOURS: list[Behaviour] = []


def behaviour(number: str, **about: Any) -> Callable[[Callable[[Graph[Any, Any]], None]], Callable[..., None]]:
    def add(make: Callable[[Graph[Any, Any]], None]) -> Callable[..., None]:
        BEHAVIOURS.append(Behaviour(number=number, make=make, **about))
        return make

    return add


def spread(graph: Graph[Any, Any], join: Any, *merges: Any, does: Any = work, **options: Any) -> None:
    graph.node("begin", assign({}))
    graph.node("work", does, input={"value": "branch.item"}, **options)
    graph.node("meet", work, input={"value": "has(state.got) ? state.got : null"})
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=join, merge=merges)
    graph.output("nodes.meet")


# ---------------------------------------------------------------------------------------------------------------------
# Tokens


@behaviour("W8", expected=[[0, 0], [0, 1], [1, 0], [1, 1]])
def a_branch_knows_its_path(graph: Graph[Any, Any]) -> None:
    graph.node("outer", assign({}))
    graph.node("inner", assign({}))
    graph.node("work", work, input={"value": ["branch.parent.index", "branch.index"]})
    graph.node("row", assign({}))
    graph.node("table", assign({}))
    graph.edge("outer", "inner", spawn=2)
    graph.edge("inner", "work", spawn=2)
    graph.edge("work", "row", join=all_of(), merge=collect("state.row"))
    graph.edge("row", "table", join=all_of(), merge=append("state.table", source="state.row"))
    graph.output("state.table")


@behaviour("W9", expected=[[0, 4, "a"], [1, 4, "b"], [2, 4, "x"], [3, 4, "y"]])
def the_branches_of_edges_that_fire_together_are_counted_through(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("left", work, input={"value": "[branch.index, branch.total, branch.item]"})
    graph.node("right", work, input={"value": "[branch.index, branch.total, branch.item]"})
    graph.node("meet", assign({}))
    graph.edge("begin", "left", foreach="['a', 'b']")
    graph.edge("begin", "right", foreach="['x', 'y']")
    graph.edge(["left", "right"], "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


@behaviour("W10", expected=[["a", 0, 3], ["b", 1, 3]])
def what_follows_a_join_is_in_the_outer_branch_again_with_its_laps(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("lap", assign({"state.laps": "has(state.laps) ? state.laps + 1 : 1"}))
    graph.node("inner", work, input={"value": "branch.index"})
    graph.node("row", work, input={"value": "[branch.item, branch.index, state.laps]"})
    graph.node("meet", assign({}))
    graph.edge("begin", "lap", foreach="['a', 'b']")
    graph.edge("lap", "inner", spawn=2)
    graph.edge("inner", "row", join=all_of())
    graph.edge("row", "lap", limit=2)
    graph.edge("row", "meet", priority=1, join=all_of("begin"), merge=collect("state.got"))
    graph.output("state.got")


# ---------------------------------------------------------------------------------------------------------------------
# Routing


def _choose(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": "input"})
    for name in ("never", "one", "two", "later"):
        graph.node(name, work, input={"value": f"'{name}'"}, output={f"output.{name}": "true"})
    graph.edge("begin", "never", priority=1, when="nodes.begin > 100")
    graph.edge("begin", "one", priority=2, when="nodes.begin > 1")
    graph.edge("begin", "two", priority=2, when="nodes.begin > 2")
    graph.edge("begin", "later", priority=3)


@behaviour("W11", input=3, expected={"one": True, "two": True})
def all_matches_of_the_first_tier_fire(graph: Graph[Any, Any]) -> None:
    _choose(graph)


@behaviour("W11", input=0, expected={"later": True})
def a_later_tier_fires_when_none_before_it_matches(graph: Graph[Any, Any]) -> None:
    _choose(graph)


@behaviour("W12", fails="NoMatchingEdge")
def no_match_is_an_error(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": 1})
    graph.node("next", assign({}))
    graph.edge("begin", "next", when="nodes.begin == 2")


@behaviour("W12", expected={"began": 1})
def no_match_ends_the_token_where_the_node_says_so(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": 1}, output={"output.began": "nodes.begin"}, otherwise="end")
    graph.node("next", assign({}))
    graph.edge("begin", "next", when="nodes.begin == 2")


@behaviour("W13", expected=[0, 1, 2])
def a_number_of_tokens(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("work", work, input={"value": "branch.index"})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", spawn=3)
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


@behaviour("W13", input=["c", "a", "b"], expected=["c", "a", "b"])
def one_token_per_element_in_the_order_of_the_list(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"))


@behaviour("W13", input=[], expected=[])
def an_empty_list_goes_to_the_join(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"))


@behaviour("W13", input={"no": "list"}, fails="ExpressionFailed")
def what_is_no_list_is_an_error(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"))


@behaviour("W14", expected=["body", "body", "body", "over"])
def a_loop_ends_at_its_limit_before_its_condition_is_looked_at(graph: Graph[Any, Any]) -> None:
    graph.node(
        "body", work, input={"value": "'body'"}, output={"state.ran": "(has(state.ran) ? state.ran : []) + ['body']"}
    )
    graph.node("over", work, input={"value": "state.ran + ['over']"})
    graph.edge("body", "body", when="size(state.ran) < 3 || state.missing", limit=2)
    graph.edge("body", "over", priority=1)
    graph.output("nodes.over")


@behaviour(
    "W15",
    input={"size": 3, "name": "order-7", "tags": ["a", "b"]},
    expected=["compare", "exists", "within", "length", "both", "either", "text", "sum"],
)
def conditions_of_every_sort(graph: Graph[Any, Any]) -> None:
    conditions = {
        "compare": "input.size >= 3 && input.size != 4",
        "exists": "has(input.name) && !has(input.missing)",
        "within": "'a' in input.tags && !('c' in input.tags)",
        "length": "size(input.tags) == 2",
        "both": "input.size > 1 && input.size < 5",
        "either": "input.size > 100 || input.name == 'order-7'",
        "text": "input.name.startsWith('order') ? true : false",
        "sum": "input.size * 2 + 1 == 7",
        "wrong": "input.size > 3",
    }
    graph.node("begin", assign({}))
    graph.node("meet", assign({}))
    for name, when in conditions.items():
        graph.node(name, work, input={"value": f"'{name}'"})
        graph.edge("begin", name, when=when)
        graph.edge(name, "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


@behaviour("W16", fails="LimitExceeded", options={"limits": GraphLimits(branches=3)})
def more_branches_than_the_limit(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": 1})
    graph.node("work", work, input={"value": 1})
    graph.edge("begin", "work", spawn=4)


# ---------------------------------------------------------------------------------------------------------------------
# Joins


@behaviour("W18", input=False, expected="r")
def a_token_of_no_branch_passes_through_a_join(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("left", work, input={"value": "'l'"})
    graph.node("right", work, input={"value": "'r'"})
    graph.node("meet", work, input={"value": "nodes.right"})
    graph.edge("begin", "left", when="input")
    graph.edge("begin", "right")
    graph.edge(["left", "right"], "meet", join=all_of())
    graph.output("nodes.meet")


@behaviour("W18", input=["only"], expected=["only"])
def a_single_branch_meets_at_once(graph: Graph[Any, Any]) -> None:
    spread(graph, m_of(1), collect("state.got"))


@behaviour("W19", input=[1, 2, 3], expected=lambda got: len(got) == 1 and got[0] in (1, 2, 3))
def any_goes_on_with_the_first(graph: Graph[Any, Any]) -> None:
    spread(graph, any_of(), collect("state.got"))


@behaviour("W19", input=[1, 2, 3, 4], expected=lambda got: len(got) == 2 and set(got) < {1, 2, 3, 4})
def m_of_n_goes_on_with_m(graph: Graph[Any, Any]) -> None:
    spread(graph, m_of(2), collect("state.got"))


@behaviour("W19", input=["good", "bad", "fine"], expected=["good", "fine"])
def m_of_n_counts_those_that_succeed(graph: Graph[Any, Any]) -> None:
    spread(graph, m_of(2), collect("state.got"), does=refuse, on_error="branch_error")


@behaviour("W19", input=["bad", "good", "bad"], fails="JoinFailed")
def m_of_n_that_can_no_longer_succeed_fails_at_once(graph: Graph[Any, Any]) -> None:
    spread(graph, m_of(2), collect("state.got"), does=refuse, on_error="branch_error")


@behaviour("W20", input=[1, 2, 3, 4, 5], expected={"times": 1, "ended": 5})
def any_goes_on_exactly_once_however_many_arrive(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("work", work, input={"value": "branch.item"})
    graph.node("meet", assign({"state.times": "has(state.times) ? state.times + 1 : 1"}))
    graph.node("rest", timer(60))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=any_of(on_early="late_merge"), merge=append("state.got"))
    graph.edge("meet", "rest")
    graph.output({"times": "state.times", "ended": "size(state.got)"})


@behaviour("W20", input=[1, 2, 3], expected=lambda got: len(got) == 1)
def those_who_are_late_may_finish_and_change_nothing(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("work", work, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.node("rest", timer(60))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=any_of(on_early="let_finish"), merge=append("state.got"))
    graph.edge("meet", "rest")
    graph.output("state.got")


def _naps(graph: Graph[Any, Any], join: Any) -> None:
    graph.node("begin", assign({}))
    graph.node("nap", timer("branch.item"))
    graph.node("meet", work, input={"value": "state.got"})
    graph.edge("begin", "nap", foreach="input")
    graph.edge("nap", "meet", join=join, merge=collect("state.got", source="branch.item"))
    graph.output("nodes.meet")


@behaviour("W21", input=[5, 10, 100], fails="JoinFailed")
def a_join_times_out_from_the_first_arrival(graph: Graph[Any, Any]) -> None:
    _naps(graph, all_of(timeout=20))


@behaviour("W21", input=[50, 55, 60], expected=[50, 55, 60])
def the_time_before_the_first_arrival_does_not_count(graph: Graph[Any, Any]) -> None:
    _naps(graph, all_of(timeout=20))


@behaviour("W21", input=[5, 100, 10], expected=[5, 10])
def a_join_that_timed_out_proceeds_with_what_is_there(graph: Graph[Any, Any]) -> None:
    _naps(graph, all_of(timeout=20, on_timeout="proceed"))


@behaviour("W22", input=[[1], [2, 3]], expected=[1, 2, 3])
def append_flattens_lists(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), append("state.got"))


@behaviour("W22", input=[[1], [2, 3]], expected=[[1], [2, 3]])
def collect_never_flattens(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"))


@behaviour("W22", input=[{"a": 1, "b": 1}, {"b": 2}], expected={"a": 1, "b": 2})
def of_equal_fields_the_later_branch_counts_whatever_came_last(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), merge_object("state.got"))


@behaviour("W22", input=["x", "y"], expected={"0": "x", "1": "y"})
def keyed_by_branch(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), keyed("state.got"))


@behaviour("W22", input=["x", "y", "z"], expected="z")
def the_highest_index_wins_whatever_came_last(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), last_wins("state.got"))


@behaviour("W22", input=[{"a": {"b": 1}}, {"a": {"b": 2}}], expected=[1, 2])
def a_part_of_each_output(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got", source="branch.output.a.b"))


@behaviour("W23", input=["good", "bad"], fails="ValueError")
def a_failed_branch_fails_the_run(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"), does=refuse)


@behaviour(
    "W23",
    input=["good", "bad"],
    expected=[
        "good",
        {"error": {"type": "ValueError", "message": "it is bad", "node": "work", "index": 1, "item": "bad"}},
    ],
)
def the_error_of_a_branch_is_its_output(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"), does=refuse, on_error="branch_error")


@behaviour("W23", input=["bad", "bad"], fails="JoinFailed")
def all_branches_failed_is_a_failure(graph: Graph[Any, Any]) -> None:
    spread(graph, all_of(), collect("state.got"), does=refuse, on_error="branch_error")


# What the original got wrong.


@behaviour("W20", expected=[[11, 12, 13, 14], [21, 22, 23, 24], [31, 32, 33, 34]])
def nested_forks_through_the_same_edge_do_not_mix(graph: Graph[Any, Any]) -> None:
    graph.node("outer", assign({}))
    graph.node("inner", work, input={"value": "branch.item"})
    graph.node("work", work, input={"value": "branch.parent.item * 10 + branch.item"})
    graph.node("row", work, input={"value": "state.row"})
    graph.node("table", assign({}))
    graph.edge("outer", "inner", foreach="[1, 2, 3]")
    graph.edge("inner", "work", foreach="[1, 2, 3, 4]")
    graph.edge("work", "row", join=all_of(), merge=collect("state.row"))
    graph.edge("row", "table", join=all_of(), merge=collect("state.table"))
    graph.output("state.table")


@behaviour("W20", expected=[11, 12, 21, 22, 31, 32])
def a_fork_in_a_loop_meets_in_each_of_three_laps(graph: Graph[Any, Any]) -> None:
    graph.node("lap", assign({"state.lap": "has(state.lap) ? state.lap + 1 : 1"}))
    graph.node("work", work, input={"value": "state.lap * 10 + branch.item"})
    graph.node("meet", work, input={"value": "state.lap"})
    graph.node("over", assign({}))
    graph.edge("lap", "work", foreach="[1, 2]")
    graph.edge("work", "meet", join=all_of(), merge=append("state.got"))
    graph.edge("meet", "lap", limit=2)
    graph.edge("meet", "over", priority=1)
    graph.output("state.got")


@behaviour("W20", expected=["a3", "b3"])
def the_nodes_of_a_branch_count_once(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("one", work, input={"value": "branch.item + '1'"})
    graph.node("two", work, input={"value": "branch.item + '2'"})
    graph.node("three", work, input={"value": "branch.item + '3'"})
    graph.node("meet", assign({}))
    graph.edge("begin", "one", foreach="['a', 'b']")
    graph.edge("one", "two")
    graph.edge("two", "three")
    graph.edge("three", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


@behaviour("W20", expected={"times": 1, "got": 2})
def several_tokens_in_one_branch_are_waited_for_and_it_counts_once(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("part", work, input={"value": "branch.item"})
    graph.node("left", work, input={"value": "'l'"})
    graph.node("right", work, input={"value": "'r'"})
    graph.node("meet", assign({"state.times": "has(state.times) ? state.times + 1 : 1"}))
    graph.edge("begin", "part", foreach="['a', 'b']")
    graph.edge("part", "left")
    graph.edge("part", "right")
    graph.edge(["left", "right"], "meet", join=all_of("begin"), merge=collect("state.got"))
    graph.output({"times": "state.times", "got": "size(state.got)"})


@behaviour("W19", input=[1, 2, 3, 4], expected=[3, 4])
def branches_that_end_before_the_join_are_not_waited_for(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("work", work, input={"value": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", when="nodes.work > 2", join=all_of("begin"), merge=collect("state.got"))
    graph.edge("work", END, priority=1)
    graph.output("state.got")


# ---------------------------------------------------------------------------------------------------------------------
# Data


@behaviour("W24", input=[1, 2, 3], expected={"got": [10, 20, 30], "shared": "before"})
def branches_keep_what_they_write_to_themselves(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({"state.own": "'before'"}))
    graph.node("mark", work, input={"value": "branch.item * 10"}, output={"state.own": "nodes.mark"})
    graph.node("read", work, input={"value": "state.own"})
    graph.node("meet", assign({}))
    graph.edge("begin", "mark", foreach="input")
    graph.edge("mark", "read")
    graph.edge("read", "meet", join=all_of(), merge=collect("state.got"))
    graph.output({"got": "state.got", "shared": "state.own"})


@behaviour("W25", input={"a": 1, "b": {"c": 2}}, expected={"sum": 3, "list": [1, {"deep": 2}]})
def inputs_and_outputs_are_mapped(graph: Graph[Any, Any]) -> None:
    graph.node("pair", work, input={"value": ["input.a", {"deep": "input.b.c"}]}, output={"state.pair": "nodes.pair"})
    graph.node("sum", work, input={"value": "state.pair[0] + state.pair[1].deep"}, output={"output.sum": "nodes.sum"})
    graph.edge("pair", "sum")
    graph.output({"sum": "output.sum", "list": "state.pair"})


@behaviour("W25", expected={})
def a_graph_that_maps_no_output_has_an_empty_one(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": 1})


@behaviour("W27", expected="there")
def a_node_is_tried_again(graph: Graph[Any, Any]) -> None:
    graph.node("work", flaky, input={"value": "'there'"})
    graph.output("nodes.work")


@behaviour("W28", expected="ValueError: it is bad in work")
def an_error_is_routed(graph: Graph[Any, Any]) -> None:
    graph.node("work", refuse, input={"value": "'bad'"})
    graph.node("rescue", work, input={"value": "error.type + ': ' + error.message + ' in ' + error.node"})
    graph.edge("work", "rescue", on_error=True, when="error.type == 'ValueError'")
    graph.output("nodes.rescue")


@behaviour("W28", fails="ValueError")
def an_error_that_nothing_takes_fails_the_run(graph: Graph[Any, Any]) -> None:
    graph.node("work", refuse, input={"value": "'bad'"})
    graph.node("rescue", assign({}))
    graph.edge("work", "rescue", on_error=True, when="error.type == 'KeyError'")


@behaviour("W29", expected="published")
def artifacts_of_a_run_that_succeeds(graph: Graph[Any, Any]) -> None:
    graph.node("make", make, input={"name": "'published'"})
    graph.node("after", work, input={"value": "nodes.make"})
    graph.edge("make", "after")
    graph.output("nodes.after")


@behaviour("W29", fails="ValueError")
def artifacts_of_a_run_that_fails(graph: Graph[Any, Any]) -> None:
    graph.node("make", make, input={"name": "'unpublished'"})
    graph.node("after", refuse, input={"value": "'bad'"})
    graph.edge("make", "after")


@behaviour("W30", expected={"left": True, "right": True})
def a_run_is_complete_when_no_token_is_left(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    for name in ("left", "right"):
        graph.node(name, work, input={"value": "true"}, output={f"output.{name}": f"nodes.{name}"})
        graph.edge("begin", name)


@behaviour("W30", expected={"stopped": True})
def a_run_can_be_ended_before(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("never", wait("never"))
    graph.node("stop", work, input={"value": "true"}, output={"output.stopped": "nodes.stop"})
    graph.edge("begin", "never")
    graph.edge("begin", "stop")
    graph.edge("stop", TERMINATE)


@behaviour("W30", fails="Terminated")
def a_run_can_be_ended_as_a_failure(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": 1})
    graph.node("stop", terminate("failed", "'enough'"))
    graph.edge("begin", "stop")


@behaviour("W31", input=[1, 2], expected=[2, 4])
def children_in_branches(graph: Graph[Any, Any]) -> None:
    graph.node("begin", assign({}))
    graph.node("child", child(double), input={"number": "branch.item"})
    graph.node("meet", assign({}))
    graph.edge("begin", "child", foreach="input")
    graph.edge("child", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")


@behaviour("W31", fails="ChildFailed")
def the_failure_of_a_child_is_propagated(graph: Graph[Any, Any]) -> None:
    graph.node("child", child(double), input={"number": -1})


@behaviour("W31", expected="ValueError")
def the_failure_of_a_child_is_caught(graph: Graph[Any, Any]) -> None:
    graph.node("child", child(double, on_failure="catch"), input={"number": -1})
    graph.output("nodes.child.error.type")


@behaviour("W32", fails="GraphTimedOut", options={"timeout": 100})
def a_run_that_takes_too_long_fails(graph: Graph[Any, Any]) -> None:
    graph.node("never", wait("never"))


@behaviour("W32", expected="GraphTimedOut")
def a_node_that_takes_too_long_fails(graph: Graph[Any, Any]) -> None:
    graph.node("never", wait("never"), timeout=100)
    graph.node("late", work, input={"value": "error.type"})
    graph.edge("never", "late", on_error=True)
    graph.output("nodes.late")


@behaviour("W32", fails="GraphTimedOut")
def a_child_that_takes_too_long_is_cancelled_and_its_node_fails(graph: Graph[Any, Any]) -> None:
    graph.node("child", child(double), input={"number": 1}, timeout=0.5)


@behaviour("W33", expected=["ann", "bob"], events=(("told", {"to": "bob"}), ("told", {"to": "ann"})))
def each_branch_hears_its_own_event(graph: Graph[Any, Any]) -> None:
    graph.node("begin", work, input={"value": ["'ann'", "'bob'"]})
    graph.node("hear", wait("told", where={"to": "branch.item"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "hear", foreach="nodes.begin")
    graph.edge("hear", "meet", join=all_of(), merge=collect("state.got", source="nodes.hear.to"))
    graph.output("state.got")
