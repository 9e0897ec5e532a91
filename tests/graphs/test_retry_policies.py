"""Retry policies in definitions: how pauses grow, and which errors are worth another attempt."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest

from perdure import Retry, current_step, resource, step
from perdure.errors import HttpFailed, InvalidDefinition, RunFailed
from perdure.graph import Graph, action, http
from perdure.testing import Environment, VirtualClock
from perdure.testing.environment import StoreSource

attempts: list[int] = []  # when each attempt was made, in seconds of the environment's clock


class Flooded(Exception):
    """What a user's own library raises."""


@step(retry=Retry.never())
async def stumble(kind: str) -> None:
    attempts.append(resource(VirtualClock).now() // 1_000_000)
    if kind == "flooded":
        raise Flooded("too much water")
    if kind == "mixed" and current_step().attempt > 1:
        raise ValueError("and then another")
    raise OSError("no connection")


def graph_of(retry: Retry | None) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("retried")
    graph.node("go", stumble, input={"kind": "input"}, retry=retry)
    return graph


async def pauses(graph: Graph[Any, Any], source: StoreSource, kind: str = "lost") -> list[int]:
    """The whole seconds between attempts."""
    attempts.clear()
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed):
            await env.engine.run(graph(kind))
    return [later - earlier for earlier, later in pairwise(attempts)]


def policy(**more: Any) -> Retry:
    return Retry(attempts=5, initial=timedelta(seconds=2), jitter=0, **more)


@pytest.mark.parametrize(
    ("backoff", "expected"), [("none", [2, 2, 2, 2]), ("linear", [2, 4, 6, 8]), ("exponential", [2, 4, 8, 16])]
)
async def test_pauses_grow_as_the_backoff_says(source: StoreSource, backoff: Any, expected: list[int]) -> None:
    graph = graph_of(policy(backoff=backoff))
    assert await pauses(graph, source) == expected
    assert Graph.parse(graph.dump()).dump() == graph.dump()


async def test_no_pause_is_longer_than_the_maximum(source: StoreSource) -> None:
    assert await pauses(graph_of(policy(backoff="linear", maximum=timedelta(seconds=5))), source) == [2, 4, 5, 5]


@pytest.mark.parametrize(
    ("kind", "lists", "tries"),
    [
        ("lost", {"retry_on": (OSError,)}, 5),
        ("flooded", {"retry_on": (OSError,)}, 1),
        ("flooded", {"retry_on": (Flooded,)}, 5),
        ("lost", {"give_up_on": (OSError,)}, 1),
        ("lost", {"give_up_on": (Flooded,)}, 5),
        ("lost", {"retry_on": (OSError,), "give_up_on": (ConnectionError,)}, 5),
        ("mixed", {"give_up_on": (ValueError,)}, 2),
    ],
)
async def test_only_retryable_errors_are_tried_again(
    source: StoreSource, kind: str, lists: dict[str, Any], tries: int
) -> None:
    graph = graph_of(policy(**lists))
    assert len(await pauses(graph, source, kind)) == tries - 1
    read = Graph.parse(graph.dump(), objects={"stumble": stumble})
    assert read.fingerprint == graph.fingerprint
    assert len(await pauses(read, source, kind)) == tries - 1


async def test_a_policy_in_a_text(source: StoreSource) -> None:
    graph = Graph.parse(
        """
        graph: texted
        nodes:
          go:
            kind: function
            function: stumble
            input: {kind: input}
            retry: {attempts: 3, initial: 3, jitter: 0, backoff: linear, retry_on: [OSError, HttpFailed],
                    give_up_on: ["json:JSONDecodeError", flooded]}
        """,
        objects={"stumble": stumble, "flooded": Flooded},
    )
    assert await pauses(graph, source) == [3, 6]
    assert await pauses(graph, source, "flooded") == []


async def test_an_actions_record_has_such_a_policy_too(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("acting")
    graph.node("go", action("stumble"))
    body = {
        "kind": "function",
        "function": f"{stumble.function.__module__}:stumble",
        "input": {"kind": "'flooded'"},
        "retry": {"attempts": 9, "give_up_on": [f"{Flooded.__module__}:Flooded"]},
    }
    attempts.clear()
    async with Environment([graph], source) as env:
        await env.engine.records.put("action", "stumble", body)
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph())
        assert isinstance(failed.value.__cause__, Flooded)
    assert len(attempts) == 1


async def test_requests_can_give_up_on_their_own_errors(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("asking")
    graph.node("go", http("'http://127.0.0.1:1/'"), retry=Retry(attempts=4, give_up_on=(HttpFailed,)))
    assert '"give_up_on": [\n          "HttpFailed"\n        ]' in graph.dump("json")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph())
        with pytest.raises(RunFailed):
            await run.result()
        assert [entry.attempts for entry in (await env.engine.handle(run.id).history()).journal] == [1]


def test_a_policy_without_lists_leaves_the_fingerprint_as_it_was() -> None:
    plain = graph_of(Retry(attempts=4))
    assert "backoff" not in plain.dump("json")
    assert "retry_on" not in plain.dump("json")
    assert plain.fingerprint != graph_of(Retry(attempts=4, backoff="none")).fingerprint
    assert plain.fingerprint != graph_of(Retry(attempts=4, give_up_on=(OSError,))).fingerprint


@pytest.mark.parametrize(
    ("retry", "why"),
    [
        ("{retry_on: [Flod]}", "node 'go', retry.retry_on[0]: there is no 'Flod'"),
        ("{give_up_on: [OSError, 'json:Nothing']}", "node 'go', retry.give_up_on[1]: there is no 'json:Nothing' here"),
        (
            "{retry_on: ['json:loads']}",
            "node 'go', retry.retry_on[0]: 'json:loads' is no step or workflow, nor an exception",
        ),
        ("{multiplier: 0.5}", "node 'go', retry: Retry(multiplier=0.5, jitter=0.1)"),
        ("{backoff: random}", "Invalid enum value 'random'"),
    ],
)
def test_what_is_wrong_with_a_policy_is_said_with_its_place(retry: str, why: str) -> None:
    node = "{kind: function, function: stumble, input: {kind: input}, retry: " + retry + "}"
    text = f"graph: bad\nnodes:\n  go: {node}\n"
    with pytest.raises(InvalidDefinition) as wrong:
        Graph.parse(text, objects={"stumble": stumble})
    assert why in str(wrong.value)


def test_a_policy_says_what_backoffs_there_are() -> None:
    with pytest.raises(InvalidDefinition, match="backoff must be one of none, linear, exponential"):
        Retry(backoff="square")  # type: ignore[arg-type]
