"""Prompts, profiles of models and actions as versioned records: found by name, pinned for a run, changed without it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from llmock.pytest_plugin import LLMock

from perdure import Engine, NamedEvent, Retry, step, workflow
from perdure.errors import InvalidDefinition, RecordNotFound, RunFailed, StoreBusy
from perdure.graph import (
    END,
    Example,
    Graph,
    ModelProfile,
    PromptSpec,
    action,
    all_of,
    assign,
    collect,
    human,
    llm,
    timer,
    wait,
)
from perdure.testing import Environment, StoreProxy, run_with_crashes
from perdure.testing.environment import StoreSource

PATIENCE_S = 60.0


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_OPENAI_API_KEY", "sk-4711")


def bodies(llmock: LLMock) -> list[dict[str, Any]]:
    return [request.body for request in llmock.requests]


async def failure_of(env: Environment, run_id: str = "r") -> BaseException:
    with pytest.raises(RunFailed) as failed:
        await env.engine.handle(run_id).result()
    assert failed.value.__cause__ is not None
    return failed.value.__cause__


@step(retry=Retry.never())
async def shout(text: str, marks: int = 1) -> str:
    return text.upper() + "!" * marks


@workflow
async def doubled(number: int) -> int:
    return number * 2


def plain(text: str) -> str:
    return text


SHOUT = f"{__name__}:shout"


def shouting(name: str = "shout", **options: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("shouting")
    graph.node("work", action(name), input={"text": "input.word", "loud": 2}, **options)
    graph.node("more", action(name), input={"text": "nodes.work", "loud": 1})
    graph.edge("work", "more")
    graph.output("nodes.more")
    return graph


async def put_shout(engine: Engine, **more: Any) -> int:
    body = {"kind": "function", "function": SHOUT, "input": {"text": "input.text", "marks": "input.loud"}, **more}
    return await engine.records.put("action", "shout", body)


# ---------------------------------------------------------------------------------------------------------------------
# Actions


async def test_an_action_is_a_node_that_a_record_describes(source: StoreSource) -> None:
    graph = shouting()
    async with Environment([graph], source) as env:
        await put_shout(env.engine)
        run = await env.engine.start(graph({"word": "hey"}))
        assert await run.result() == "HEY!!!"
        journal = (await env.engine.handle(run.id).history()).journal
        # It is read once for the run, and what was read is in the journal.
        assert [entry.name for entry in journal] == ["action shout", "work", "more"]
        assert (journal[0].value["version"], journal[0].value["body"]["kind"]) == (1, "function")
        await env.check()


async def test_a_run_keeps_to_the_version_that_it_found_first(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("pinned")
    graph.node("one", action("shout"), input={"text": "'a'", "loud": 1})
    graph.node("nap", timer(60))
    graph.node("two", action("shout"), input={"text": "'b'", "loud": 1})
    graph.edge("one", "nap")
    graph.edge("nap", "two")
    graph.output("[nodes.one, nodes.two]")
    async with Environment([graph], source, autojump_s=None) as env:
        await put_shout(env.engine)
        await env.engine.start(graph(), id="r")
        await env.quiet()
        louder = {"text": "input.text", "marks": "input.loud + 4"}
        assert await put_shout(env.engine, input=louder) == 2
        await env.restart()
        await env.advance(60)
        assert await env.engine.handle("r").result() == ["A!", "B!"]
        await env.engine.start(graph(), id="s")
        await env.advance(60)
        assert await env.engine.handle("s").result() == ["A!!!!!", "B!!!!!"]


async def test_a_version_can_be_named(source: StoreSource) -> None:
    graph = shouting("shout@1")
    async with Environment([graph], source) as env:
        await put_shout(env.engine)
        await put_shout(env.engine, input={"text": "'other'"})
        assert await env.engine.run(graph({"word": "hey"})) == "HEY!!!"


async def test_branches_share_what_was_read(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("each")
    graph.node("begin", assign({}))
    graph.node("work", action("shout"), input={"text": "branch.item", "loud": 0})
    graph.node("meet", assign({}))
    graph.edge("begin", "work", foreach="input")
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.output("state.got")
    async with Environment([graph], source) as env:
        await put_shout(env.engine)
        run = await env.engine.start(graph(["a", "b", "c"]))
        assert await run.result() == ["A", "B", "C"]
        names = [entry.name for entry in (await env.engine.handle(run.id).history()).journal]
        assert names == ["action shout", "work", "work", "work"]


async def test_actions_of_other_kinds(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("kinds")
    graph.node("ask", action("ask"), input={"what": "input"})
    graph.node("keep", action("keep"), input={"value": "nodes.ask.number"})
    graph.node("child", action("double"), input={"number": "nodes.ask.number"})
    graph.node("nap", action("nap"), input={"minutes": 3})
    graph.node("work", action("work"), input="nodes.child")
    for one, other in [("ask", "keep"), ("keep", "child"), ("child", "nap"), ("nap", "work")]:
        graph.edge(one, other)
    graph.output({"child": "nodes.child", "state": "state"})
    async with Environment([graph, doubled], source) as env:
        put = env.engine.records.put
        form = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
        await put("action", "ask", {"kind": "human", "queue": "q", "title": "A {{ input.what }}?", "schema": form})
        await put("action", "keep", {"kind": "artifact", "name": "kept", "value": "input.value"})
        await put("action", "double", {"kind": "workflow", "workflow": f"{__name__}:doubled"})
        await put("action", "nap", {"kind": "timer", "seconds": "input.minutes * 60"})
        await put("action", "work", {"kind": "remote", "queue": "w", "input": "input"})
        run = await env.engine.start(graph("number"), id="r")
        await env.quiet()
        (asked,) = await env.engine.tasks.list(run="r", status="open")
        assert asked.title == "A number?"
        await env.engine.tasks.answer(asked.id, {"number": 21})
        await env.settle()
        (asked,) = await env.engine.tasks.list(run="r", status="open")
        assert asked.payload == 42
        await env.engine.tasks.answer(asked.id, {"context_updates": {"state.told": "so"}})
        assert await run.result() == {"child": 42, "state": {"told": "so"}}
        assert await env.engine.artifacts.read("kept") == 21
        assert (await env.engine.artifacts.get("kept")).step == "keep"


async def test_an_action_that_is_nowhere_is_an_error_at_the_node_that_can_be_routed(source: StoreSource) -> None:
    graph = shouting("shout@3")
    graph.node("rescue", assign({"output.why": "error.message", "output.type": "error.type"}))
    graph.edge("work", "rescue", on_error=True)
    graph.output("output")
    async with Environment([graph], source) as env:
        await put_shout(env.engine)
        got = await env.engine.run(graph({"word": "hey"}))
        assert got["type"] == "RecordNotFound"
        assert got["why"].startswith(
            "graph 'shouting', node 'work': there is no action 'shout' with version 3; engine.records.put"
        )


async def test_a_run_that_is_retried_looks_again(source: StoreSource) -> None:
    graph = shouting()
    async with Environment([graph], source) as env:
        await env.engine.start(graph({"word": "hey"}), id="r")
        assert isinstance(await failure_of(env), RecordNotFound)
        await put_shout(env.engine, kind="whatever")
        await env.engine.handle("r").retry()
        error = await failure_of(env)
        assert isinstance(error, InvalidDefinition)
        assert "node 'work', action 'shout' version 1: Invalid value 'whatever' - at `$.kind`" in str(error)
        await put_shout(env.engine)
        await env.engine.handle("r").retry()
        assert await env.engine.handle("r").result() == "HEY!!!"


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ({"kind": "set", "values": {"state.x": 1}}, "Invalid value 'set' - at `$.kind`"),
        ({"kind": "action", "action": "shout"}, "Invalid value 'action' - at `$.kind`"),
        ({"kind": "function", "function": SHOUT, "output": {"state.x": "1"}}, "output: that is for the node to say"),
        ({"kind": "function", "function": SHOUT, "on_error": "branch_error"}, "on_error: that is for the node to say"),
        ({"kind": "function", "function": SHOUT, "more": 1}, "Object contains unknown field `more`"),
        ({"kind": "function", "function": SHOUT, "input": {"text": "state.x"}}, "'state' cannot be seen from here"),
        ({"kind": "human", "title": "{{ nodes.work }}"}, "title: 'nodes' cannot be seen from here; there is input"),
        ({"kind": "function", "function": "subprocess:getoutput"}, "is no step or workflow"),
        ({"kind": "function", "function": f"{__name__}:plain"}, "is no step or workflow"),
        ({"kind": "function", "function": "antigravity:fly"}, "nothing is imported for a definition"),
        ({"kind": "function", "function": "nothing"}, "there is no 'nothing'"),
        ({"kind": "human", "schema": f"{__name__}:Example"}, "is no step or workflow"),
        ("text", "Expected `object`, got `str`"),
    ],
)
async def test_a_record_that_cannot_work_is_an_error_that_names_it(body: Any, why: str) -> None:
    graph = shouting()
    async with Environment([graph]) as env:
        await env.engine.records.put("action", "shout", body)
        await env.engine.start(graph({"word": "hey"}), id="r")
        error = await failure_of(env)
        assert isinstance(error, InvalidDefinition)
        assert str(error).startswith("graph 'shouting', node 'work', action 'shout' version 1")
        assert why in str(error)


async def test_a_function_that_was_handed_in_may_be_called() -> None:
    text = shouting().dump("json")
    graph = Graph.parse(text, objects={"plain": plain})
    async with Environment([graph]) as env:
        await env.engine.records.put("action", "shout", {"kind": "function", "function": "plain"})
        assert await env.engine.run(graph({"word": "hey"})) == "hey"


async def test_what_the_node_says_of_time_and_retries_goes_before_the_record(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("timed")
    graph.node("ask", action("ask"), timeout=60)
    graph.output("nodes.ask")
    async with Environment([graph], source) as env:
        body = {"kind": "human", "queue": "q", "timeout": 5, "on_timeout": "'late'"}
        await env.engine.records.put("action", "ask", body)
        began = env.clock.now()
        assert await env.engine.run(graph()) == "late"
        assert env.clock.now() - began == 60_000_000


async def test_a_store_that_cannot_be_read_for_a_moment_is_asked_again() -> None:
    class Busy(StoreProxy):
        times = 3

        async def record(self, kind: str, name: str, version: int | None = None) -> Any:
            if Busy.times:
                Busy.times -= 1
                raise StoreBusy("not now")
            return await self.inner.record(kind, name, version)

    graph = shouting()
    async with Environment([graph], watch=Busy) as env:
        await put_shout(env.engine)
        assert await env.engine.run(graph({"word": "hey"})) == "HEY!!!"
    assert Busy.times == 0


async def test_a_branch_that_is_cancelled_while_a_record_is_read_takes_it_from_nobody(source: StoreSource) -> None:
    is_put, read, go_on = asyncio.Event(), asyncio.Event(), asyncio.Event()

    class Slow(StoreProxy):
        async def record(self, kind: str, name: str, version: int | None = None) -> Any:
            if is_put.is_set():  # Who puts one reads the version before it.
                read.set()
                await go_on.wait()
            return await self.inner.record(kind, name, version)

    graph: Graph[Any, Any] = Graph("cancelled")
    graph.node("begin", assign({}))
    graph.node("one", action("shout"), input={"text": "'one'", "loud": 1})
    graph.node("stop", wait("stop"))
    graph.node("other", action("shout"), input={"text": "'other'", "loud": 1})
    graph.node("done", assign({}))
    graph.edge("begin", "one")
    graph.edge("begin", "stop")
    graph.edge("begin", "other")
    graph.edge("stop", END, cancel=["one"])
    graph.edge("other", "done", join=all_of())
    graph.output("nodes.other")
    async with Environment([graph], source, watch=Slow) as env:
        await put_shout(env.engine)
        is_put.set()
        run = await env.engine.start(graph(), id="r")
        await read.wait()
        await env.engine.send(NamedEvent("stop"), to="r")
        while (await env.engine.handle("r").tokens()).nodes["one"].cancelled == 0:
            await asyncio.sleep(0)
        go_on.set()
        assert await run.result() == "OTHER!"
        names = [entry.name for entry in (await env.engine.handle("r").history()).journal]
        assert names == ["stop", "action shout", "other"]


# ---------------------------------------------------------------------------------------------------------------------
# Prompts and profiles


class Verdict(msgspec.Struct):
    fits: bool


GREETING = PromptSpec(
    template="Greet {{ name }} in {{ language }}.",
    system="You are {{ mood }}.",
    requires=["name"],
    examples=[Example(prompt="Greet Bob in English.", answer="Hello Bob")],
)
FAST = ModelProfile(
    model="mock-1", secret="OPENAI_API_KEY", temperature=0.5, max_tokens=70, options={"top_p": 0.9, "seed": 1}
)


class Wish(msgspec.Struct):
    language: str
    mood: str = "friendly"


def greeting(**options: Any) -> Graph[Any, Any]:
    graph = Graph("greeting", input=Wish)
    options = {"profile": "fast", "prompt_spec": "greeting", **options}
    graph.node("ask", llm(**options), input={"name": "'Ann'"}, retry=Retry.never())
    graph.output("nodes.ask.output")
    return graph


async def test_a_model_is_asked_by_a_profile_and_a_prompt(source: StoreSource, llmock: LLMock) -> None:
    graph = greeting(options={"seed": 2}, max_tokens=80)
    async with Environment([graph], source, autojump_s=PATIENCE_S) as env:
        await env.engine.records.put("prompt", "greeting", GREETING)
        await env.engine.records.put("model", "fast", FAST)
        run = await env.engine.start(graph(Wish(language="French")))
        await run.result()
        journal = (await env.engine.handle(run.id).history()).journal
        assert {entry.name for entry in journal[:2]} == {"model fast", "prompt greeting"}
        assert [entry.name for entry in journal[2:]] == ["ask"]
        await env.check()
    (body,) = bodies(llmock)
    assert body["messages"] == [
        {"role": "system", "content": "You are friendly."},
        {"role": "user", "content": "Greet Bob in English."},
        {"role": "assistant", "content": "Hello Bob"},
        {"role": "user", "content": "Greet Ann in French."},
    ]
    assert {name: body[name] for name in ("model", "temperature", "max_tokens", "top_p", "seed")} == {
        "model": "mock-1", "temperature": 0.5, "max_tokens": 80, "top_p": 0.9, "seed": 2,
    }  # fmt: skip


async def test_a_node_may_have_one_from_a_record_and_the_other_itself(llmock: LLMock) -> None:
    one: Graph[Any, Any] = Graph("one")
    one.node("ask", llm("mock-1", prompt_spec="greeting@1"), input={"name": "'Ann'", "language": "'L'", "mood": "'m'"})
    other: Graph[Any, Any] = Graph("other")
    other.node("ask", llm(profile="fast", prompt="Say {{ input }}."))
    async with Environment([one, other], autojump_s=PATIENCE_S) as env:
        await env.engine.records.put("prompt", "greeting", GREETING)
        await env.engine.records.put("model", "fast", FAST)
        await env.engine.run(one())
        await env.engine.run(other("it"))
    first, second = bodies(llmock)
    assert first["messages"][-1]["content"] == "Greet Ann in L."
    assert (second["messages"][-1]["content"], second["temperature"]) == ("Say it.", 0.5)


async def test_an_answer_fits_the_prompts_schema(llmock: LLMock) -> None:
    schema = {"type": "object", "properties": {"fits": {"type": "boolean"}}, "required": ["fits"]}
    graph = greeting()
    async with Environment([graph], autojump_s=PATIENCE_S) as env:
        spec = msgspec.structs.replace(GREETING, schema=schema, strict=True)
        await env.engine.records.put("prompt", "greeting", spec)
        await env.engine.records.put("model", "fast", FAST)
        output = await env.engine.run(graph(Wish(language="French")))
        assert isinstance(output["fits"], bool)
    asked = bodies(llmock)[0]["response_format"]["json_schema"]
    assert (asked["schema"], asked["strict"]) == (schema, True)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("prompt", {"template": "{{ name"}, "prompt 'greeting' version 1, prompt: this is no template"),
        ("prompt", {"system": "x"}, "prompt 'greeting' version 1: Object missing required field `template`"),
        ("prompt", {"template": "x", "schema": {"type": "no"}}, "version 1, schema: the type 'no' is not known"),
        ("prompt", {"template": "{{ other }}"}, "version 1, prompt: nothing is mapped to 'other'"),
        (
            "prompt",
            {"template": "x", "requires": ["place"]},
            "version 1: it requires 'place', and the node's input maps",
        ),
        ("model", {"model": ""}, "model 'fast' version 1: Expected `str` of length >= 1 - at `$.model`"),
        ("model", {"model": "m", "base_url": "https://a:b@c.d"}, "version 1, base_url: an address has no user"),
        ("model", {"model": "m", "secret": "sk-..."}, "model 'fast' version 1: Expected `str` matching regex"),
        ("model", {"model": "m", "options": {"messages": []}}, "version 1, options: 'messages' has a field of its own"),
    ],
)
async def test_a_prompt_or_a_profile_that_cannot_work_is_named(kind: str, body: Any, why: str, llmock: LLMock) -> None:
    graph = greeting()
    async with Environment([graph], autojump_s=PATIENCE_S) as env:
        records = {"prompt": ("greeting", GREETING), "model": ("fast", FAST)}
        for one, (name, usual) in records.items():
            await env.engine.records.put(one, name, body if one == kind else usual)
        await env.engine.start(graph(Wish(language="French")), id="r")
        error = await failure_of(env)
        assert isinstance(error, InvalidDefinition)
        assert str(error).startswith("graph 'greeting', node 'ask'")
        assert why in str(error)
    assert llmock.requests == []


async def test_a_prompt_that_is_nowhere_is_an_error_at_the_node(llmock: LLMock) -> None:
    graph = greeting()
    async with Environment([graph], autojump_s=PATIENCE_S) as env:
        await env.engine.records.put("model", "fast", FAST)
        await env.engine.start(graph(Wish(language="French")), id="r")
        error = await failure_of(env)
        assert isinstance(error, RecordNotFound)
        assert "graph 'greeting', node 'ask': there is no prompt 'greeting'; engine.records.put" in str(error)


# ---------------------------------------------------------------------------------------------------------------------
# Definitions and crashes


@pytest.mark.parametrize(
    ("node", "why"),
    [
        (llm(prompt="x"), "model: it has neither a model nor a profile"),
        (llm("m"), "prompt: it has either a prompt or a prompt_spec"),
        (llm("m", "x", prompt_spec="y"), "prompt: it has either a prompt or a prompt_spec"),
        (llm("m", prompt_spec=""), "prompt_spec: the name of a prompt is a text of 1 to"),
        (llm(profile="@3", prompt="{{ x"), "prompt: this is no template"),
        (llm(profile="fast", prompt="x", base_url="c.d"), "base_url: an address begins with"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(node: Any, why: str) -> None:
    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("ask", node)
    with pytest.raises(InvalidDefinition) as refused:
        graph.build()
    assert f"graph 'wrong', node 'ask', {why}" in str(refused.value)


def test_records_are_referred_to_in_texts_as_well() -> None:
    graph: Graph[Any, Any] = Graph("text")
    graph.node("ask", llm(profile="fast@latest", prompt_spec="greeting@2", examples=[Example(prompt="a", answer="b")]))
    graph.node("work", action("shout@3"), input={"text": "nodes.ask.output"})
    graph.edge("ask", "work")
    forms: list[Any] = ["yaml", "json"]
    for form in forms:
        again = Graph.parse(graph.dump(form))
        assert again.definition == graph.definition
    assert {"profile", "prompt_spec", "examples"} <= set(Graph.json_schema()["$defs"]["Llm"]["properties"])
    assert Graph.json_schema()["$defs"]["Action"]["required"] == ["kind", "action"]


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource]) -> None:
    graph: Graph[Any, Any] = Graph("crashing")
    graph.node("begin", assign({}))
    graph.node("work", action("shout"), input={"text": "branch.item", "loud": 1})
    graph.node("meet", human("q", on_timeout="'late'"), timeout=5)
    graph.edge("begin", "work", foreach="['a', 'b']")
    graph.edge("work", "meet", join=all_of(), merge=collect("state.got"))
    graph.node("last", action("shout"), input={"text": "state.got[0] + nodes.meet", "loud": 0})
    graph.edge("meet", "last")
    graph.output("nodes.last")
    graph.build()

    async def scenario(env: Environment) -> Any:
        if not await env.engine.records.list("action"):
            await put_shout(env.engine)
        result = await (await env.engine.start(graph(), id="r")).result()
        await put_shout(env.engine, input={"text": "'never'"})  # A run that goes on must not see it.
        return result

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh)
    assert report.result == "A!LATE"
