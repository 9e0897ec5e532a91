"""Definitions are kept with their runs: read back, drawn and told of when the code has changed or is not here."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import count, pairwise
from typing import Any

import msgspec
import pytest

from perdure import Client, Engine, Limits, NamedEvent, Retry, publish, runtime, step, workflow
from perdure.api.graph_runs import _graph_run
from perdure.errors import InvalidArguments, InvalidDefinition, Misuse, RunFailed, RunNotFound, StoreBusy
from perdure.graph import Graph, add_kind, all_of, assign, child, collect, human, reduce_with, wait
from perdure.models.functions.commands import Output
from perdure.models.functions.context import require_loop
from perdure.models.functions.publications import add_output_nowait
from perdure.models.graphs import define
from perdure.models.graphs.runner import interpret
from perdure.models.graphs.stored_definitions import KEY
from perdure.ports import Store
from perdure.storage.memory import MemoryDatabase, MemoryStore
from perdure.testing import CRASH_POINTS, Environment, Fault, run_with_crashes
from perdure.testing.environment import StoreSource
from tests.crash.ledger import Ledger
from tests.graphs.behaviours import BEHAVIOURS, Behaviour, Jitter, double
from tests.graphs.programs import PROGRAMS
from tests.graphs.test_behaviours import outcome

NUMBERS = count()


class Wish(msgspec.Struct):
    text: str


@step(retry=Retry.never())
async def same(value: Any) -> Any:
    return value


@step(name="same", retry=Retry.never())
async def refuse() -> Any:
    raise ValueError("not yet")


@workflow(name="small")
async def small_one(value: int) -> int:
    return value + 1


def total(values: list[int]) -> int:
    return sum(values)


def first() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("changing", input=Wish)
    graph.node("begin", same, input={"value": "input.text"})
    graph.node("stay", wait("go"))
    graph.node("last", same, input={"value": "nodes.stay"})
    graph.edge("begin", "stay")
    graph.edge("stay", "last")
    return graph


def second() -> Graph[Any, Any]:
    """The same name and version, and other nodes."""
    graph: Graph[Any, Any] = Graph("changing", input=Wish)
    graph.node("other", same, input={"value": "input.text"})
    graph.node("another", same, input={"value": "'x'"})
    graph.edge("other", "another")
    return graph


async def test_a_run_is_told_of_by_the_definition_that_it_was_started_with(
    source: StoreSource, make_store: Callable[[], Store]
) -> None:
    old, new = first(), second()
    async with Environment([old], source) as env:
        run = await env.engine.start(old(Wish("tea")), id="r")
        await env.settle()
        await env.engine.send(NamedEvent("go", "now"), to="r")
        await run.result()
        view = await env.engine.handle("r").definition()
        assert (view.workflow, view.is_current, view.digest) == ("changing", True, old.digest)
        drawn, tokens = await env.engine.handle("r").drawing(), await env.engine.handle("r").tokens()
        events = await env.engine.handle("r").graph_events()
    async with Engine(make_store(), workflows=[new]) as engine:
        changed = await engine.handle("r").definition()
        assert changed == msgspec.structs.replace(view, is_current=False)
        assert list(changed.definition["nodes"]) == ["begin", "stay", "last"]
        assert await engine.handle("r").tokens() == tokens
        assert await engine.handle("r").graph_events() == events
        assert await engine.handle("r").drawing() == drawn
        assert "node_begin" in await engine.handle("r").drawing("mermaid")
        await engine.run(new(Wish("x")), id="n")
        assert list((await engine.handle("n").definition()).definition["nodes"]) == ["other", "another"]


async def test_who_has_no_code_at_all_can_draw_a_run(source: StoreSource, make_store: Callable[[], Store]) -> None:
    graph = first()
    async with Environment([graph], source) as env, Client(make_store()) as client:
        await env.engine.start(graph(Wish("tea")), id="r")
        await env.settle()
        assert (await client.handle("r").definition()).is_current is None
        assert await client.handle("r").tokens() == await env.engine.handle("r").tokens()
        assert await client.handle("r").drawing() == await env.engine.handle("r").drawing()
        with pytest.raises(RunNotFound):
            await client.handle("nobody").definition()


async def test_a_run_of_which_nothing_is_stored_has_the_definition_of_the_code(
    source: StoreSource, make_store: Callable[[], Store]
) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @step
    async def stay() -> None:
        begun.set()
        await go_on.wait()

    graph: Graph[Any, Any] = Graph("early")
    graph.node("stay", stay)
    async with Environment([graph], source) as env, Client(make_store()) as client:
        run = await env.engine.start(graph(), id="r")
        await begun.wait()
        assert (await env.engine.handle("r").definition()).is_current is True
        with pytest.raises(Misuse, match="which is not known here"):
            await client.handle("r").definition()
        go_on.set()
        await run.result()
        assert (await client.handle("r").definition()).digest == graph.digest


async def test_a_run_that_waits_in_its_first_node_remembers_its_definition(
    source: StoreSource, make_store: Callable[[], Store]
) -> None:
    def early(**more: Any) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("early", **more)
        graph.node("stay", wait("go"))
        return graph

    old, new = early(), early(timeout=60)
    async with Environment([old], source) as env, Client(make_store()) as client:
        await env.engine.start(old(), id="r")
        await env.settle()
        assert (await client.handle("r").definition()).digest == old.digest
        tokens = await env.engine.handle("r").tokens()
    async with Engine(make_store(), workflows=[new]) as engine:
        view = await engine.handle("r").definition()
        assert (view.is_current, view.digest) == (False, old.digest)
        assert await engine.handle("r").tokens() == tokens


async def test_a_run_that_ends_at_once_remembers_its_definition(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("quick")
    graph.node("only", assign({"output.done": "true"}))
    async with Environment([graph], source) as env, Environment([], source, clock=env.clock) as other:
        await env.engine.run(graph(), id="r")
        assert (await other.engine.handle("r").definition()).digest == graph.digest
        assert [token.state for token in (await other.engine.handle("r").tokens()).tokens] == ["completed"]
        await env.check()


@pytest.mark.parametrize("kept", [0, 1, 3])
async def test_a_retry_with_a_changed_definition_is_told_of_by_that(
    kept: int, source: StoreSource, make_store: Callable[[], Store]
) -> None:
    """The run failed after as many entries as are kept; the definition that mends it has a node more."""
    old, new = mended(kept, fails=True), mended(kept, fails=False)
    async with Environment([old], source) as env:
        run = await env.engine.start(old(), id="r")
        with pytest.raises(RunFailed):
            await run.result()
        assert (await env.engine.handle("r").definition()).digest == old.digest
    async with Environment([new], source) as env:
        retried = await env.engine.handle("r").retry()
        assert await retried.result() == {"got": 7}
        view = await env.engine.handle("r").definition()
        assert (view.is_current, view.digest) == (True, new.digest)
        nodes = [token.node for token in (await env.engine.handle("r").tokens()).tokens]
        assert nodes == ["report"]
        events = (await env.engine.handle("r").graph_events()).events
        assert events[-1].kind == "run_completed"
        await env.engine.handle("r").drawing()
        await env.check()
    async with Client(make_store()) as client:
        assert (await client.handle("r").definition()).digest == new.digest


async def test_a_crash_after_a_retry_does_not_change_which_definition_counts(fresh: Callable[[], StoreSource]) -> None:
    """The process that retries the run has the mended definition; it dies at each of its commits."""
    old, new = mended(2, fails=True), mended(2, fails=False)
    sources: list[StoreSource] = []

    async def failed(source: StoreSource) -> StoreSource:
        async with Environment([old], source) as env:
            with pytest.raises(RunFailed):
                await (await env.engine.start(old(), id="r")).result()
        return source

    async def scenario(env: Environment) -> Any:
        view = await env.engine.runs.get("r")
        assert view is not None
        if view.status == "failed":
            await env.engine.handle("r").retry()
        await env.engine.handle("r").result()
        tokens = await env.engine.handle("r").tokens()
        return (await env.engine.handle("r").definition()).digest, [token.node for token in tokens.tokens]

    for point in CRASH_POINTS:
        for commit in count(1):
            sources.append(await failed(fresh()))
            fault = Fault(point, commit)
            async with Environment([new], sources[-1], fault=fault) as env:
                assert await env.survive(scenario) == (new.digest, ["report"])
                await env.check()
            if fault.commits < commit:
                break
    assert len(sources) > 2 * len(CRASH_POINTS)


def mended(kept: int, *, fails: bool, name: str = "mended") -> Graph[Any, Any]:
    """Nodes that succeed, one that fails, and if it does not, another one behind it."""
    graph: Graph[Any, Any] = Graph(name)
    for number in range(kept):
        graph.node(f"kept_{number}", same, input={"value": "1"})
    if fails:
        graph.node("try_it", refuse)
    else:
        graph.node("try_it", same, input={"value": "7"})
    names = [*(f"kept_{number}" for number in range(kept)), "try_it"]
    if not fails:
        graph.node("more", same, input={"value": "nodes.try_it"})
        graph.node("report", assign({"output.got": "nodes.more"}))
        names += ["more", "report"]
    for before, after in pairwise(names):
        graph.edge(before, after)
    return graph


async def test_other_runs_have_no_definition(source: StoreSource) -> None:
    async with Environment([small_one], source) as env:
        await env.engine.run(small_one(1), id="f")
        with pytest.raises(Misuse, match="run 'f' has the model 'function'"):
            await env.engine.handle("f").definition()


async def test_the_definition_is_no_published_value_of_the_user(source: StoreSource) -> None:
    @workflow
    async def bold() -> None:
        await publish(KEY, 1)

    graph = first()
    async with Environment([graph, bold], source) as env:
        await env.engine.start(graph(Wish("tea")), id="r")
        await env.settle()
        assert await env.engine.handle("r").published() == {}
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(bold())
        assert isinstance(failed.value.__cause__, InvalidArguments)


async def test_each_definition_is_kept_once(source: StoreSource, make_store: Callable[[], Store]) -> None:
    old, new = first(), second()
    for graph in (old, new, first(), old):
        async with Engine(make_store(), workflows=[graph]):
            pass
    async with Client(make_store()) as client:
        kept = await client.records.list("graph")
        assert {(one.name, one.version) for one in kept} == {(old.digest, 1), (new.digest, 1)}


async def test_a_graph_that_comes_later_is_kept_too(make_store: Callable[[], Store]) -> None:
    async with Engine(make_store(), workflows=[]) as engine:
        engine.session.workflows._given = (
            None  # It takes what is defined from now on, and not what other tests have defined.
        )
        graph: Graph[Any, Any] = Graph(f"late_comer_{next(NUMBERS)}")
        graph.node("go", same, input={"value": 1})
        await engine.run(graph(), id="r")
        async with Client(make_store()) as client:
            assert (await client.handle("r").definition()).workflow == graph.name


async def test_it_costs_a_run_no_commit(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("cheap")
    graph.node("go", same, input={"value": 1})
    ledger = Ledger()
    async with Environment([graph], source, watch=ledger.watch) as env:
        before = len(ledger.batches)
        await env.engine.run(graph(), id="r")
        await env.settle()
        assert len(ledger.batches) - before == 2
        assert (await env.engine.handle("r").definition()).digest == graph.digest


async def test_a_crash_at_any_commit_leaves_the_run_its_definition(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("mortal")
    graph.node("a", same, input={"value": 1})
    graph.node("b", same, input={"value": 2})
    graph.edge("a", "b")

    async def scenario(env: Environment) -> Any:
        await (await env.engine.start(graph(), id="r")).result()
        _, stored, _ = await _graph_run(env.engine.session, "r")
        return stored, (await env.engine.handle("r").definition()).is_current

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == (graph.digest, True)


@pytest.mark.parametrize("published", [True, False])
async def test_a_run_whose_outline_has_no_digest_published_it_or_remembers_none(
    source: StoreSource, make_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch, published: bool
) -> None:
    graph = first()
    outline = msgspec.structs.replace(graph.outline, digest="")
    monkeypatch.setattr(graph, "outline", outline)

    async def as_before(plan: Any, input: Any) -> Any:
        if published:
            add_output_nowait(require_loop("a graph"), Output(KEY, f'"{graph.digest}"', False))
        return await interpret(plan, input)

    monkeypatch.setattr(define, "interpret", as_before)
    async with Environment([graph], source) as env, Client(make_store()) as client:
        await env.engine.start(graph(Wish("tea")), id="r")
        await env.settle()
        assert (await env.engine.handle("r").definition()).digest == graph.digest
        if published:
            assert (await client.handle("r").definition()).digest == graph.digest
        else:
            with pytest.raises(Misuse, match="which is not known here"):
                await client.handle("r").definition()


def test_kinds_of_ones_own_children_and_reducers_need_no_code() -> None:
    sql = add_kind("sql_of_stored", same)
    graph: Graph[Any, Any] = Graph("rich", input=Wish, output=Wish)
    graph.node("ask", sql(input={"value": "input.text"}), retry=Retry(attempts=2, give_up_on=(OSError,)))
    graph.node("kid", child(small_one), input={"value": 1})
    graph.node("person", human(schema=Wish))
    graph.node("meet", assign({}))
    graph.edge("ask", "kid", foreach="[1, 2]")
    graph.edge("kid", "meet", join=all_of(), merge=[reduce_with(total, "state.sum"), collect("state.all")])
    graph.edge("meet", "person")
    back = Graph.read_back(graph.kept())
    assert list(back.definition.nodes) == ["ask", "kid", "person", "meet"]
    assert back.definition.nodes["kid"].workflow == "small"
    assert "meet" in back.to_mermaid()
    with pytest.raises(InvalidDefinition, match="has no nodes"):
        Graph.read_back(msgspec.structs.replace(graph.kept(), definition={"graph": "x"}))


@pytest.mark.parametrize(("make", "expected"), PROGRAMS)
async def test_every_program_is_told_the_same_without_its_code(
    make: Callable[[], Graph[Any, Any]], expected: Any
) -> None:
    graph = make().build()
    source = partial(MemoryStore, MemoryDatabase())
    async with Environment([graph], source) as env, Client(source(), poll_s=None) as client:
        assert await (await env.engine.start(graph(), id="r")).result() == expected
        assert await client.handle("r").graph_events() == await env.engine.handle("r").graph_events()


@pytest.mark.parametrize("one", BEHAVIOURS, ids=lambda one: f"{one.number}-{one.name}")
async def test_every_behaviour_is_told_the_same_without_its_code(one: Behaviour) -> None:
    graph = one.graph()
    source = partial(MemoryStore, MemoryDatabase())
    async with Environment([graph, double], source, resources={Jitter: lambda: Jitter(1)}) as env:
        one.check(await outcome(env, one, graph, "one"))
        await env.settle()
        async with Client(source(), poll_s=None) as client:
            assert await client.handle("one").tokens() == await env.engine.handle("one").tokens()
            assert await client.handle("one").graph_events() == await env.engine.handle("one").graph_events()


async def test_a_definition_that_is_lost_is_said_to_be(
    source: StoreSource, make_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unable(*_: Any, **__: Any) -> int:
        raise StoreBusy("not now")

    graph = first()
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "put_record", unable)
        async with Environment([graph], source) as env:  # It opens all the same.
            await env.engine.start(graph(Wish("tea")), id="r")
            await env.settle()
            assert (await env.engine.handle("r").definition()).is_current is True
    async with Client(make_store()) as client:
        with pytest.raises(Misuse, match=r"the definition of run 'r' .* is not in the store; pass the graph"):
            await client.handle("r").definition()
        assert (await client.handle("r").tokens(graph=graph)).nodes["begin"].completed == 1


def large(size: int) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("large", input=Wish)
    graph.node("begin", same, input={"value": "input.text"})
    graph.node("stay", wait("go"))
    graph.node("long", same, input={"value": "size('" + "x" * size + "')"})
    graph.edge("begin", "stay")
    graph.edge("stay", "long")
    return graph


async def test_a_low_limit_for_values_does_not_bind_definitions(
    source: StoreSource, make_store: Callable[[], Store], caplog: pytest.LogCaptureFixture
) -> None:
    graph = large(9_000)
    async with Environment([graph], source, limits=Limits(payload_bytes_max=2_000)) as env:
        await env.engine.start(graph(Wish("tea")), id="r")
        await env.settle()
    async with Client(make_store()) as client:
        assert [*(await client.handle("r").definition()).definition["nodes"]] == ["begin", "stay", "long"]
    assert caplog.records == []


async def test_a_definition_that_is_too_large_is_named_and_keeps_nothing_from_running(
    source: StoreSource,
    make_store: Callable[[], Store],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runtime, "PAYLOAD_MAX_BYTES", 2_000)
    graph, other = large(9_000), first()
    async with Environment([graph, other], source, limits=Limits(payload_bytes_max=2_000)) as env:
        run = await env.engine.start(graph(Wish("tea")), id="r")
        await env.engine.start(other(Wish("tea")), id="other")
        await env.settle()
        assert (await run.tokens()).nodes["begin"].completed == 1
        await run.send(NamedEvent("go"))
        await run.result()
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert "the definition of <graph 'large' at " in record.message
    assert "more than the limit of 2,000" in record.message
    assert "raise payload_bytes_max" in record.message
    async with Client(make_store()) as client:
        with pytest.raises(Misuse, match="is not in the store; pass the graph"):
            await client.handle("r").definition()
        assert [*(await client.handle("other").definition()).definition["nodes"]] == ["begin", "stay", "last"]
