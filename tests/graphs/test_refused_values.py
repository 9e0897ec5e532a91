"""What a definition says that no run could do is refused when the graph is built, with its place."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from perdure.errors import InvalidDefinition
from perdure.graph import Graph, all_of, assign, human, timer, wait

FOREVER = [1e13, 1e12]


def refused(graph: Graph[Any, Any], place: str) -> str:
    with pytest.raises(InvalidDefinition) as error:
        graph.build()
    assert str(error.value).startswith(place), str(error.value)
    return str(error.value)


@pytest.mark.parametrize("seconds", FOREVER)
def test_times_that_are_longer_than_any_run_lives(seconds: float) -> None:
    """They were found by the store, or by the run that was to wait so long."""
    graph: Graph[Any, Any] = Graph("napping")
    graph.node("nap", timer(seconds))
    refused(graph, "graph 'napping', node 'nap', seconds: Expected `float` < 31622400000")

    for node in (wait("paid"), human("desk")):
        graph = Graph("waiting")
        graph.node("ask", node, timeout=seconds)
        refused(graph, "graph 'waiting', node 'ask', timeout: Expected `float` < 31622400000")

    graph = Graph("whole", timeout=seconds)
    graph.node("only", assign({}))
    refused(graph, "graph 'whole', timeout: Expected `float` < 31622400000")

    graph = Graph("joined")
    graph.node("begin", assign({}))
    graph.node("part", assign({}))
    graph.node("meet", assign({}))
    graph.edge("begin", "part", spawn=2)
    graph.edge("part", "meet", join=all_of(timeout=seconds))
    refused(graph, "graph 'joined', edge part -> meet, join.timeout: Expected `float` < 31622400000")

    graph = Graph("looping")
    graph.node("spin", assign({}))
    graph.edge("spin", "spin", limit_timeout=seconds)
    refused(graph, "graph 'looping', edge spin -> spin, limit_timeout: Expected `float` < 31622400000")


@pytest.mark.parametrize("seconds", [1e300, 1e18, -1.0, float("inf"), float("nan")])
def test_times_that_are_no_durations_at_all(seconds: float) -> None:
    """No timedelta can be that. The call that is given one refuses it, before there is a graph to build."""
    graph: Graph[Any, Any] = Graph("timed")
    graph.node("spin", assign({}))
    calls: dict[str, Callable[[], object]] = {
        "timer(): duration": lambda: timer(seconds),
        "node(): timeout": lambda: graph.node("ask", wait("paid"), timeout=seconds),
        "Graph(): timeout": lambda: Graph("whole", timeout=seconds),
        "all_of(): timeout": lambda: all_of(timeout=seconds),
        "edge(): limit_timeout": lambda: graph.edge("spin", "spin", limit_timeout=seconds),
    }
    for place, call in calls.items():
        with pytest.raises(InvalidDefinition, match=re.escape(f"{place} is a duration")):
            call()


@pytest.mark.parametrize("name", ["", "x" * 501, "a\0b"])
def test_names_that_no_event_has(name: str) -> None:
    graph: Graph[Any, Any] = Graph("listening")
    graph.node("listen", wait(name))
    assert "1 to 500 characters" in refused(graph, "graph 'listening', node 'listen', event: an event's name")


def test_paths_that_nest_deeper_than_values_may() -> None:
    """A write to one that is deep enough overflowed the stack."""
    graph: Graph[Any, Any] = Graph("deep")
    graph.node("write", assign({"state." + ".".join("x" * 1_500): "1"}))
    refused(graph, "graph 'deep', node 'write', values.state.x.x")
