"""A run keeps to the definition that it began with, whichever way that is written."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from perdure import Retry, step
from perdure.graph import Graph, GraphLimits, all_of, append, assign, timer
from perdure.kernel.rows import DEFINITION
from perdure.kernel.runs import Hold
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource


class Question(msgspec.Struct):
    topic: str


@step
async def plan(topic: str) -> list[str]:
    return [topic, topic]


@step
async def find(query: str) -> str:
    return query.upper()


def research(**changes: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("research", input=Question, **changes.get("graph", {}))
    graph.node("plan", plan, **changes.get("plan", {}))
    graph.node("search", find, input={"query": "branch.item"}, **changes.get("search", {}))
    graph.node("nap", timer(changes.get("nap", 60)))
    graph.node("write", assign(changes.get("values", {"output.text": "state.notes"})))
    graph.edge("plan", "search", foreach="nodes.plan", **changes.get("apart", {}))
    graph.edge("search", "nap", join=changes.get("join", all_of()), merge=append("state.notes"))
    graph.edge("nap", "write", **changes.get("last", {}))
    return graph


YAML = """
graph: research
version: ""
description: another one
start: plan
input_schema: tests.graphs.test_fingerprints:Question
limits: {tokens: 20000, in_a_row: 100000}
nodes:
  write: {kind: set, values: {output.text: state.notes}, on_error: fail_run}
  plan: {kind: function, function: "tests.graphs.test_fingerprints:plan", otherwise: error}
  search:
    kind: function
    description: finds it
    function: tests.graphs.test_fingerprints:find
    input: {query: branch.item}
    output: {}
  nap: {kind: timer, seconds: 60}
edges:
  - {from: [plan], to: search, foreach: nodes.plan, priority: 0, on_error: false}
  - from: [search]
    to: nap
    join: {need: all, fork: plan, on_early: cancel, on_timeout: fail}
    merge: [{strategy: append, target: state.notes}]
  - {from: nap, to: write, cancel: []}
"""


def test_python_yaml_and_json_have_one_fingerprint() -> None:
    graph = research()
    assert Graph.parse(YAML).fingerprint == graph.fingerprint
    assert Graph.parse(graph.dump("yaml")).fingerprint == graph.fingerprint
    assert Graph.parse(graph.dump("json")).fingerprint == graph.fingerprint
    assert Graph.parse(Graph.parse(YAML).dump("json")).fingerprint == graph.fingerprint


def test_a_retry_policy_of_defaults_is_the_same_with_and_without_them() -> None:
    bare = YAML.replace("    output: {}\n", "    retry: {attempts: 4}\n")
    full = YAML.replace("    output: {}\n", "    retry: {attempts: 4, initial: 0.1, maximum: 300, jitter: 0.1}\n")
    assert Graph.parse(bare).fingerprint == Graph.parse(full).fingerprint != research().fingerprint
    assert Graph.parse(bare).fingerprint == research(search={"retry": Retry(attempts=4)}).fingerprint


def test_a_function_that_is_handed_in_by_another_name_is_the_same_function() -> None:
    text = YAML.replace("tests.graphs.test_fingerprints:find", "finder")
    assert Graph.parse(text, objects={"finder": find}).fingerprint == research().fingerprint


@pytest.mark.parametrize(
    "changes",
    [
        {"graph": {"description": "new"}},
        {"graph": {"limits": GraphLimits(tokens=7)}},
        {"search": {"description": "new"}},
        {"search": {"retry": Retry(attempts=9)}},
    ],
)
def test_what_changes_nothing_that_follows_is_nothing_that_runs_keep_to(changes: dict[str, Any]) -> None:
    changed, plain = research(**changes).outline, research().outline
    assert (changed.fingerprint, changed.parts) == (plain.fingerprint, plain.parts)


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"nap": 61}, "~ node 'nap'"),
    ({"values": {"output.text": "'other'"}}, "~ node 'write'"),
    ({"search": {"on_error": "branch_error"}}, "~ node 'search'"),
    ({"apart": {"when": "true"}}, "~ edge plan -> search"),
    ({"last": {"priority": 1}}, "~ edge nap -> write"),
    ({"graph": {"timeout": 90_000}}, "+ timeout"),
]


@pytest.mark.parametrize(("changes", "difference"), CHANGES)
def test_what_changes_what_follows_is_another_definition(changes: dict[str, Any], difference: str) -> None:
    assert research(**changes).fingerprint != research().fingerprint
    assert research().outline.differences(research(**changes).outline) == [difference]


async def left_behind(source: StoreSource, graph: Graph[Any, Any], seconds: float = 0) -> Any:
    """A run that waits at `nap`; the clock at which it does."""
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(Question(topic="tides")), id="r-1")
        await env.quiet()
        await env.advance(seconds)
        return env.clock


async def hold_of(env: Environment) -> Hold | None:
    view = await env.engine.runs.get("r-1")
    assert view is not None
    return view.hold


async def test_a_changed_graph_blocks_the_run_until_the_old_one_is_back(source: StoreSource) -> None:
    clock = await left_behind(source, research())
    changed = research(values={"output.text": "'changed'"}, last={"when": "true"})
    async with Environment([changed], source, clock=clock, autojump_s=None) as env:
        await env.advance(timedelta(minutes=2))
        hold = await hold_of(env)
        assert hold is not None
        assert hold.kind == "blocked"
        assert "'research' is not the definition that the run began with" in hold.reason
        assert "deploy that definition again" in hold.reason
        assert hold.details.splitlines() == ["~ node 'write'", "~ edge nap -> write"]
        await env.check()
        clock = env.clock
    async with Environment([changed], source, clock=clock, autojump_s=None) as env:  # Nobody claims it in vain.
        await env.advance(timedelta(minutes=2))
        assert await hold_of(env) == hold
        clock = env.clock
    async with Environment([Graph.parse(YAML)], source, clock=clock) as env:
        assert await env.engine.handle("r-1").result() == {"text": ["TIDES", "TIDES"]}
        await env.check()


async def test_a_run_that_waits_at_its_first_node_is_compared_too(source: StoreSource) -> None:
    def waiting(seconds: float) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("waiting", input=Question)
        graph.node("nap", timer(seconds))
        return graph

    clock = await left_behind(source, waiting(60))
    async with Environment([waiting(61)], source, clock=clock, autojump_s=None) as env:
        await env.advance(timedelta(minutes=2))
        hold = await hold_of(env)
        assert hold is not None
        assert hold.details == "~ node 'nap'"


async def test_the_definition_is_no_entry_that_people_see(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("short")
    graph.node("find", assign({}))
    async with Environment([graph, longer := research()], source) as env:
        run = await env.engine.start(graph())
        await run.result()
        assert [entry.kind for entry in (await env.engine.session.store.journal(run.id))[1]] == ["definition"]
        assert (await env.engine.handle(run.id).history()).journal == []
        run = await env.engine.start(longer(Question(topic="tides")))
        await run.result()
        assert [entry.kind for entry in (await env.engine.session.store.journal(run.id))[1]].count(DEFINITION) == 1
        history = await env.engine.handle(run.id).history()
        assert [entry.seq for entry in history.journal] == [1, 2, 3, 4]


async def test_a_retry_by_hand_takes_the_definition_of_now(source: StoreSource) -> None:
    def asking(expression: str) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("asking", input=Question)
        graph.node("plan", plan)
        graph.node("write", assign({"output.text": expression}))
        graph.edge("plan", "write")
        graph.node("nap", timer(60))
        graph.edge("write", "nap")
        return graph

    clock = await left_behind(source, asking("state.missing"))
    mended = asking("nodes.plan")
    async with Environment([mended], source, clock=clock, autojump_s=None) as env:
        assert (await env.engine.runs.get("r-1")).status == "failed"  # type: ignore[union-attr]
        await env.engine.handle("r-1").retry()
        await env.advance(timedelta(seconds=30))
        await env.check()
        clock = env.clock
    async with Environment([asking("'third'")], source, clock=clock, autojump_s=None) as env:
        await env.advance(timedelta(minutes=2))
        hold = await hold_of(env)
        assert hold is not None
        assert hold.details == "~ node 'write'"
        clock = env.clock
    async with Environment([mended], source, clock=clock) as env:
        assert await env.engine.handle("r-1").result() == {"text": ["tides", "tides"]}


async def test_runs_that_began_before_definitions_were_kept_go_on(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Graph, "outline", None)
        patched.setattr(Graph, "fingerprint", "0123456789abcdef")
        clock = await left_behind(source, research())
    async with Environment([research(values={"output.text": "'changed'"})], source, clock=clock) as env:
        assert await env.engine.handle("r-1").result() == {"text": "changed"}
        await env.check()


async def test_a_crash_at_any_commit_keeps_one_definition(fresh: Callable[[], StoreSource]) -> None:
    graph = research()

    async def scenario(env: Environment) -> Any:
        return await (await env.engine.start(graph(Question(topic="tides")), id="one")).result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == {"text": ["TIDES", "TIDES"]}
