"""Nodes that people and workers elsewhere do, and artifacts that nodes stage."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest

from perdure import Client, Retry, TaskView, step
from perdure.errors import (
    ArtifactNotFound,
    GraphTimedOut,
    InvalidAnswer,
    InvalidArguments,
    InvalidDefinition,
    RunFailed,
    TaskClosed,
    TaskFailed,
    UnstorableValue,
)
from perdure.graph import (
    Graph,
    all_of,
    any_of,
    append,
    artifact,
    assign,
    collect,
    human,
    remote,
    terminate,
    timer,
)
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource

HOUR = timedelta(hours=1)


class Approval(msgspec.Struct):
    ok: bool
    remark: str = ""


class Even(msgspec.Struct):
    number: int

    def __post_init__(self) -> None:
        if self.number % 2:
            raise ValueError("odd")


def approving(**options: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("approving")
    graph.node(
        "ask",
        human("refunds", title="Refund {{ order }} of {{ input.customer }}?", schema=Approval, **options),
        input={"order": "input.order", "total": "input.total * 2"},
        timeout=HOUR,
    )
    graph.node("paid", assign({"output.said": "nodes.ask.remark"}))
    graph.node("kept", assign({"output.said": "'no'"}))
    graph.node("late", assign({"output.said": "error.type"}))
    graph.edge("ask", "paid", when="nodes.ask.ok")
    graph.edge("ask", "kept", priority=1)
    graph.edge("ask", "late", on_error=True)
    return graph


ORDER = {"order": "o-17", "customer": "Ann", "total": 21}


async def open_tasks(env: Environment, run_id: str = "r") -> list[TaskView]:
    await env.quiet()
    return await env.engine.tasks.list(run=run_id, status="open")


async def failure_of(env: Environment, run_id: str = "r") -> BaseException:
    with pytest.raises(RunFailed) as failed:
        await env.engine.handle(run_id).result()
    assert failed.value.__cause__ is not None
    return failed.value.__cause__


# ---------------------------------------------------------------------------------------------------------------------
# People


async def test_a_person_answers_a_form(source: StoreSource) -> None:
    graph = approving()
    async with Environment([graph], source, autojump_s=None) as env:
        run = await env.engine.start(graph(ORDER), id="r")
        (form,) = await open_tasks(env)
        assert (form.queue, form.kind, form.title) == ("refunds", "human", "Refund o-17 of Ann?")
        assert form.payload == {"order": "o-17", "total": 42}
        assert form.due_at == form.created_at + HOUR
        with pytest.raises(InvalidAnswer, match=r"at \$\.ok 'yes' is not of type boolean"):
            await env.engine.tasks.answer(form.id, {"ok": "yes"})
        await env.engine.tasks.answer(form.id, {"ok": True, "remark": "fine"}, actor="eve")
        assert await run.result() == {"said": "fine"}
        (entry,) = (await env.engine.handle("r").history()).journal
        assert (entry.kind, entry.name) == ("task", "ask")
        with pytest.raises(TaskClosed, match="answered before by 'eve'"):
            await env.engine.tasks.answer(form.id, {"ok": False})
        await env.check()


async def test_a_client_answers_as_the_engine_does(source: StoreSource, make_store: Any) -> None:
    graph = approving()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(ORDER), id="r")
        await env.quiet()
        await env.engine.shutdown(grace=0)
        async with Client(make_store(), poll_s=None) as client:
            (form,) = await client.tasks.list(queue="refunds", status="open")
            await client.tasks.answer(form.id, Approval(ok=False))
        await env.restart()
        assert await env.engine.handle("r").result() == {"said": "no"}


async def test_nobody_answers_in_time_and_the_error_edge_is_taken(source: StoreSource) -> None:
    graph = approving()
    async with Environment([graph], source, autojump_s=None) as env:
        run = await env.engine.start(graph(ORDER), id="r")
        (form,) = await open_tasks(env)
        await env.advance(HOUR)
        assert await run.result() == {"said": "GraphTimedOut"}
        with pytest.raises(TaskClosed, match="withdrawn"):
            await env.engine.tasks.answer(form.id, {"ok": True})
        await env.check()


async def test_nobody_answers_in_time_and_something_else_holds(source: StoreSource) -> None:
    graph = approving(on_timeout={"ok": "input.total < 100", "remark": "'in time: ' + input.order"})
    async with Environment([graph], source) as env:
        assert await env.engine.run(graph(ORDER)) == {"said": "in time: o-17"}


async def test_without_a_route_a_deadline_fails_the_run(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("alone")
    graph.node("ask", human(), timeout=60)
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(), id="r")
        await env.advance(60)
        error = await failure_of(env)
        assert isinstance(error, GraphTimedOut)
        assert str(error).startswith("graph 'alone', node 'ask': no answer to its task in queue 'human' came within 60")


async def test_what_a_schema_cannot_say_is_found_by_the_type(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("even")
    graph.node("ask", human(schema=Even), description="{{ Even }}, please")
    async with Environment([graph], source) as env:
        await env.engine.start(graph(), id="r")
        (form,) = await open_tasks(env)
        assert form.title == "{{ Even }}, please"
        await env.engine.tasks.answer(form.id, {"number": 3})
        error = await failure_of(env)
        assert isinstance(error, UnstorableValue)
        assert "odd" in str(error)
        await env.engine.handle("r").retry()
        (form,) = await open_tasks(env)
        await env.engine.tasks.answer(form.id, {"number": 4})
        await env.engine.handle("r").result()


def each() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("each")
    graph.node("begin", assign({}))
    graph.node("ask", human("{{ branch.item }}", schema={"type": "integer"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "ask", foreach="input")
    graph.edge("ask", "meet", join=any_of(), merge=collect("state.got"))
    graph.node("last", human("last"))
    graph.edge("meet", "last")
    graph.output("state.got")
    return graph


async def test_a_branch_that_is_no_longer_needed_has_its_task_withdrawn(source: StoreSource) -> None:
    graph = each()
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(["a", "b", "c"]), id="r")
        forms = {form.queue: form for form in await open_tasks(env)}
        assert set(forms) == {"a", "b", "c"}
        await env.engine.tasks.answer(forms["b"].id, 7)
        (last,) = await open_tasks(env)
        assert {form.queue: form.status for form in await env.engine.tasks.list(run="r")} == {
            "a": "withdrawn", "b": "answered", "c": "withdrawn", "last": "open",
        }  # fmt: skip
        with pytest.raises(TaskClosed, match="withdrawn: its run 'r' no longer waits"):
            await env.engine.tasks.answer(forms["a"].id, 8)
        await env.check()
        await env.engine.tasks.answer(last.id, None)
        assert await run.result() == [7]


async def test_a_run_that_is_cancelled_withdraws_all(source: StoreSource) -> None:
    graph = each()
    async with Environment([graph], source) as env:
        await env.engine.start(graph(["a", "b"]), id="r")
        assert len(await open_tasks(env)) == 2
        await env.engine.handle("r").cancel()
        assert [form.status for form in await env.engine.tasks.list(run="r")] == ["withdrawn"] * 2
        await env.check()


# ---------------------------------------------------------------------------------------------------------------------
# Workers


def rendering() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("rendering")
    graph.node("begin", assign({"state.best": 0}))
    graph.node(
        "render", remote("gpu", schema={"type": "integer"}), input={"frame": "branch.item", "best": "state.best"}
    )
    graph.node("meet", assign({}))
    graph.edge("begin", "render", foreach="input")
    graph.edge(
        "render", "meet", join=all_of(), merge=[collect("state.numbers"), append("state.bests", source="state.best")]
    )
    graph.output({"numbers": "state.numbers", "bests": "state.bests", "best": "state.best"})
    return graph


async def work(env: Environment, worker: str, limit: int = 10) -> None:
    """Do what there is to do in the queue."""
    await env.quiet()
    for one in await env.engine.tasks.claim("gpu", worker, limit=limit):
        frame = one.payload["frame"]
        answer = {
            "result": frame * 10,
            "context_updates": {"state.best": frame, "state.by.worker": worker},
            "staged_artifacts": [
                {"name": f"frame-{frame}", "value": {"pixels": frame}, "type": "image"},
                {"name": "log", "value": f"frame {frame}"},
            ],
        }
        await env.engine.tasks.heartbeat(one.id, worker, {"at": 0.5})
        await env.engine.tasks.answer(one.id, answer, worker=worker)


async def test_workers_bring_results_updates_and_artifacts(source: StoreSource) -> None:
    graph = rendering()
    async with Environment([graph], source, autojump_s=None) as env:
        run = await env.engine.start(graph([3, 1, 2]), id="r")
        await work(env, "w-1", 2)
        with pytest.raises(ArtifactNotFound):
            await env.engine.artifacts.read("frame-3")
        await work(env, "w-2")
        # Each branch kept what its worker wrote to itself; only what the join merges is there for what follows.
        assert await run.result() == {"numbers": [30, 10, 20], "bests": [3, 1, 2], "best": 0}
        assert await env.engine.artifacts.read("frame-3") == {"pixels": 3}
        found = await env.engine.artifacts.list(run="r", name="log")
        assert sorted([await env.engine.artifacts.read(id=one.id) for one in found]) == [
            "frame 1",
            "frame 2",
            "frame 3",
        ]
        assert {(one.step, one.workflow) for one in found} == {("render", "rendering")}
        await env.check()


async def test_updates_of_a_single_token_are_the_runs(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("single")
    graph.node("work", remote("gpu"), input="input")
    graph.node("more", assign({"output.twice": "state.deep.count * 2"}))
    graph.edge("work", "more")
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(5), id="r")
        (one,) = await open_tasks(env)
        assert one.payload == 5
        await env.engine.tasks.answer(one.id, {"context_updates": {"state.deep.count": 4, "output.direct": True}})
        assert await run.result() == {"twice": 8, "direct": True}


@pytest.mark.parametrize(
    ("answer", "path"),
    [
        ({"result": "seven"}, "$.result"),
        ({}, "$"),
        ({"result": 1, "context_updates": {"input.x": 1}}, "$.context_updates.input.x"),
        ({"result": 1, "staged_artifacts": [{"name": "x"}]}, "$.staged_artifacts[0]"),
        ({"result": 1, "staged_artifacts": [{"name": "", "value": 1}]}, "$.staged_artifacts[0].name"),
        ({"result": 1, "more": 2}, "$.more"),
    ],
)
async def test_an_answer_that_does_not_fit_is_refused(source: StoreSource, answer: Any, path: str) -> None:
    graph = rendering()
    async with Environment([graph], source) as env:
        await env.engine.start(graph([1]), id="r")
        (one,) = await open_tasks(env)
        with pytest.raises(InvalidAnswer) as refused:
            await env.engine.tasks.answer(one.id, answer)
        assert refused.value.path == path
        assert len(await open_tasks(env)) == 1


async def test_an_artifact_that_cannot_be_one_leaves_nothing_of_its_answer(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("work", remote("gpu"))
    graph.node("rescue", assign({"output.why": "error.message", "output.wrote": "has(state.x)"}))
    graph.edge("work", "rescue", on_error=True)
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(), id="r")
        (one,) = await open_tasks(env)
        staged = [
            {"name": "good", "value": 1},
            {"name": "bad", "value": "{no json", "media_type": "application/json"},
        ]
        await env.engine.tasks.answer(one.id, {"context_updates": {"state.x": 1}, "staged_artifacts": staged})
        output = await run.result()
        assert output["wrote"] is False
        assert "node 'work', staged_artifacts: the artifact 'bad' is said to be JSON" in output["why"]
        assert await env.engine.artifacts.list(run="r") == []


async def test_a_worker_that_dies_gives_the_task_back_and_one_that_gives_up_fails_the_node(source: StoreSource) -> None:
    graph = rendering()
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph([1]), id="r")
        await env.quiet()
        (one,) = await env.engine.tasks.claim("gpu", "dies", lease=30)
        assert await env.engine.tasks.claim("gpu", "other") == []
        await env.advance(31)
        (again,) = await env.engine.tasks.claim("gpu", "other")
        assert again.id == one.id
        await env.engine.tasks.fail(one.id, "other", "no memory", retry=False)
        error = await failure_of(env)
        assert isinstance(error, TaskFailed)
        assert "no memory" in str(error)
        # Who retries the run has the task done anew.
        await env.engine.handle("r").retry()
        await work(env, "w-3")
        assert (await env.engine.handle("r").result())["numbers"] == [10]


# ---------------------------------------------------------------------------------------------------------------------
# Artifacts


@step(retry=Retry.never())
async def write(topic: str) -> dict[str, Any]:
    return {"text": f"All about {topic} & more.", "words": 4}


def reporting(*, fails: bool = False) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("reporting")
    graph.node("write", write)
    graph.node("text", artifact("report-{{ input.topic }}", "nodes.write.text", type="report"))
    graph.node("data", artifact("data", {"words": "nodes.write.words", "by": "'us'"}))
    graph.node(
        "page",
        artifact("page", template="<h1>{{ title }}</h1>{{ nodes.write.text }}\n", media_type="text/html"),
        input={"title": "input.topic"},
    )
    graph.edge("write", "text")
    graph.edge("text", "data")
    graph.edge("data", "page")
    graph.node("end", terminate("failed" if fails else "succeeded"))
    graph.edge("page", "end")
    graph.output({"size": "nodes.text.size", "type": "nodes.page.media_type"})
    return graph


async def test_nodes_stage_values_texts_and_templates(source: StoreSource) -> None:
    graph = reporting()
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph({"topic": "tides"}))
        assert await run.result() == {"size": 23, "type": "text/html"}
        report = await env.engine.artifacts.get("report-tides")
        assert (report.type, report.form, report.version, report.step) == ("report", "text", 1, "text")
        assert report.run_id == run.id
        assert await env.engine.artifacts.read("report-tides") == "All about tides & more."
        assert await env.engine.artifacts.read("data") == {"words": 4, "by": "us"}
        assert await env.engine.artifacts.read("page") == "<h1>tides</h1>All about tides & more.\n"
        await env.check()


async def test_a_run_that_fails_publishes_nothing(source: StoreSource) -> None:
    graph = reporting(fails=True)
    async with Environment([graph], source) as env:
        await env.engine.start(graph({"topic": "tides"}), id="r")
        await failure_of(env)
        assert await env.engine.artifacts.list(run="r", staged=True) == []
        await env.check()


async def test_branches_stage_their_own_and_a_run_that_waits_shows_them_as_staged(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("branches")
    graph.node("begin", assign({}))
    graph.node("keep", artifact("part-{{ branch.index }}", "branch.item"))
    graph.node("meet", timer(60))
    graph.edge("begin", "keep", foreach="input")
    graph.edge("keep", "meet", join=all_of(), merge=collect("state.names", source="nodes.keep.name"))
    graph.output("state.names")
    async with Environment([graph], source, autojump_s=None) as env:
        await env.engine.start(graph(["a", [1], None]), id="r")
        await env.quiet()
        assert await env.engine.artifacts.list(run="r") == []
        assert len(await env.engine.artifacts.list(run="r", staged=True)) == 3
        await env.restart()
        await env.advance(60)
        assert await env.engine.handle("r").result() == ["part-0", "part-1", "part-2"]
        assert [await env.engine.artifacts.read(f"part-{n}") for n in range(3)] == ["a", [1], None]
        await env.check()


async def test_a_run_that_is_retried_publishes_what_it_staged_once(source: StoreSource) -> None:
    tried: list[int] = []

    @step(retry=Retry.never())
    async def fails_once() -> None:
        tried.append(1)
        if len(tried) == 1:
            raise ValueError("not yet")

    graph: Graph[Any, Any] = Graph("retried")
    graph.node("early", artifact("early", "1"))
    graph.node("work", remote("gpu"))
    graph.node("late", artifact("late", "2"))
    graph.node("try", fails_once)
    graph.node("last", artifact("last", "3"))
    for one, other in [("early", "work"), ("work", "late"), ("late", "try"), ("try", "last")]:
        graph.edge(one, other)
    async with Environment([graph], source) as env:
        await env.engine.start(graph(), id="r")
        (asked,) = await open_tasks(env)
        await env.engine.tasks.answer(asked.id, {"staged_artifacts": [{"name": "brought", "value": 4}]})
        assert isinstance(await failure_of(env), ValueError)
        assert await env.engine.artifacts.list(run="r", staged=True) == []
        await env.engine.handle("r").retry()
        await env.engine.handle("r").result()
        found = await env.engine.artifacts.list(run="r")
        assert {kept.name: kept.version for kept in found} == {"early": 1, "brought": 1, "late": 1, "last": 1}
        assert len(found) == 4
        await env.check()


@pytest.mark.parametrize(("node", "why"), [
    (human("{{ input }}"), "a queue's name is a text of 1 to"),
    (human("q", title="{{ input }}" + "x" * 3000), "a title is a text of 1 to 2000 characters"),
])  # fmt: skip
async def test_a_queue_or_a_title_that_cannot_be_fails_the_node(node: Any, why: str) -> None:
    graph: Graph[Any, Any] = Graph("empty")
    graph.node("ask", node)
    async with Environment([graph]) as env:
        await env.engine.start(graph(""), id="r")
        assert str(await failure_of(env)).startswith(f"graph 'empty', node 'ask': {why}")


async def test_a_name_that_comes_out_empty_fails_the_node(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("empty")
    graph.node("keep", artifact("{{ input }}", "1"))
    async with Environment([graph], source) as env:
        await env.engine.start(graph(""), id="r")
        error = await failure_of(env)
        assert isinstance(error, InvalidArguments)
        assert "graph 'empty', node 'keep': an artifact's name is a text" in str(error)


# ---------------------------------------------------------------------------------------------------------------------
# Crashes


def everything() -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("everything")
    graph.node("early", artifact("early", "input"))
    graph.node("ask", human("people", schema={"type": "integer"}), timeout=100)
    graph.node("idle", human("nobody", on_timeout="'nobody'"), timeout=5)
    graph.node("work", remote("gpu"), input={"n": "nodes.ask"})
    graph.node("meet", artifact("sum", "{'asked': nodes.ask, 'updated': state.n, 'idle': nodes.idle}"))
    graph.edge("early", "ask")
    graph.edge("early", "idle")
    graph.edge("ask", "work")
    graph.edge(["work", "idle"], "meet", join=all_of())
    graph.output("{'asked': nodes.ask, 'updated': state.n, 'idle': nodes.idle}")
    return graph


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    graph = everything().build()

    async def scenario(env: Environment) -> Any:
        run = await env.engine.start(graph("word"), id="r")
        answers = {"people": 6, "gpu": {"context_updates": {"state.n": 7}, "staged_artifacts": [
            {"name": "extra", "value": "more"}]}}  # fmt: skip
        for queue, answer in answers.items():
            await env.quiet()
            for one in await env.engine.tasks.list(run="r", queue=queue, status="open"):
                await env.engine.tasks.answer(one.id, answer)
        result = await run.result()
        found = await env.engine.artifacts.list(run="r")
        contents = {one.name: await env.engine.artifacts.read(id=one.id) for one in found}
        assert len(found) == len(contents)
        tasks = await env.engine.tasks.list(run="r")
        return result, contents, {one.queue: one.status for one in tasks}, len(tasks)

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    told = {"asked": 6, "updated": 7, "idle": "nobody"}
    assert report.result == (
        told,
        {"early": "word", "extra": "more", "sum": told},
        {"people": "answered", "nobody": "withdrawn", "gpu": "answered"},
        3,
    )
    assert report.restarts >= report.commits


# ---------------------------------------------------------------------------------------------------------------------
# Definitions


TEXT = """
graph: text
nodes:
  ask:
    kind: human
    queue: desk-{{ input.desk }}
    title: Well?
    schema: {type: object, properties: {ok: {type: boolean}}, required: [ok]}
    timeout: 60
    on_timeout: {ok: false}
    input: {order: input.order}
  work:
    kind: remote
    queue: gpu
    input: nodes.ask
    schema: {type: integer}
  keep:
    kind: artifact
    name: result
    value: nodes.work
    type: number
  page:
    kind: artifact
    name: page
    template: "{{ nodes.work }}"
    media_type: text/html
edges:
  - {from: ask, to: work}
  - {from: work, to: keep}
  - {from: keep, to: page}
"""


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_definition_as_text_is_the_same_after_a_round(form: Any) -> None:
    graph = Graph.parse(TEXT)
    again = Graph.parse(graph.dump(form))
    assert again.definition == graph.definition
    assert again.fingerprint == graph.fingerprint
    built: Graph[Any, Any] = Graph("text")
    schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    built.node(
        "ask",
        human("desk-{{ input.desk }}", title="Well?", schema=schema, on_timeout={"ok": False}),
        timeout=60,
        input={"order": "input.order"},
    )
    built.node("work", remote("gpu", schema={"type": "integer"}), input="nodes.ask")
    built.node("keep", artifact("result", "nodes.work", type="number"))
    built.node("page", artifact("page", template="{{ nodes.work }}", media_type="text/html"))
    for one, other in [("ask", "work"), ("work", "keep"), ("keep", "page")]:
        built.edge(one, other)
    assert built.definition == graph.definition


def test_a_type_is_dumped_as_a_reference_to_it() -> None:
    graph: Graph[Any, Any] = Graph("typed")
    graph.node("ask", human(schema=Approval))
    graph.node("work", remote("gpu", schema=list[int]))
    graph.edge("ask", "work")
    nodes = msgspec.to_builtins(graph.definition)["nodes"]
    assert nodes["ask"]["schema"].endswith(":Approval")
    assert nodes["work"]["schema"] == {"type": "array", "items": {"type": "integer"}}


@pytest.mark.parametrize(
    ("node", "options", "why"),
    [
        (human(on_timeout=1), {}, "on_timeout: it has no timeout"),
        (human(""), {}, "queue: a queue's name is a text of 1 to"),
        (human(schema={"type": "what"}), {}, "schema: the schema cannot be used: at $.type there is no type 'what'"),
        (human(title="{{ nodes.none.x }}"), {}, "title: 'nodes.none' uses the result of a node 'none'"),
        (human(title="{{ x"), {}, "title: this is no template"),
        (human(), {"retry": Retry(attempts=2)}, "retry: a human node has none"),
        (human(on_timeout="nodes."), {"timeout": 1}, "on_timeout: 'nodes.' does not parse"),
        (remote("q"), {"input": {"x": "whatever.y"}}, "input.x: 'whatever.y' uses the unknown name 'whatever'"),
        (remote("q"), {"retry": Retry(attempts=2)}, "retry: a remote node has none"),
        (remote("q", schema="no.such:Type"), {}, "schema: there is no 'no.such:Type' here"),
        (artifact("a"), {}, "value: an artifact has either a value or a template"),
        (artifact("a", "1", template="x"), {}, "value: an artifact has either a value or a template"),
        (artifact("a", "1"), {"timeout": 5}, "timeout: an artifact node has none"),
        (artifact("", "1"), {}, "name: an artifact's name is a text of 1 to"),
        (artifact("a", template="{{ x }}"), {"input": "nodes.work"}, "input: it maps the names"),
        (artifact("a", {"b": ["1 +"]}), {}, "value.b[0]: '1 +' does not parse"),
    ],
)
def test_a_definition_that_cannot_work_is_refused_with_its_place(node: Any, options: dict[str, Any], why: str) -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("work", node, **options)
    with pytest.raises(InvalidDefinition) as refused:
        graph.build()
    assert f"graph 'wrong', node 'work', {why}" in str(refused.value)


@pytest.mark.parametrize(
    ("node", "why"),
    [
        ("{kind: remote}", "Object missing required field `queue` - at `$.nodes[...]`"),
        ("{kind: human, form: 1}", "unknown field `form`"),
        ("{kind: artifact, value: x}", "Object missing required field `name`"),
        ("{kind: human, timeout: 0}", "Expected `float` > 0.0 - at `$.nodes[...].timeout`"),
    ],
)
def test_a_text_that_does_not_fit_the_schema_is_refused(node: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        Graph.parse(f"graph: wrong\nnodes:\n  work: {node}\n")
    assert why in str(refused.value)


def test_the_schema_of_definitions_has_the_kinds() -> None:
    definitions = Graph.json_schema()["$defs"]
    assert definitions["Human"]["properties"]["kind"] == {"enum": ["human"]}
    assert {"queue", "schema", "on_timeout"} <= set(definitions["Remote"]["properties"])
    assert definitions["Artifact"]["required"] == ["kind", "name"]
