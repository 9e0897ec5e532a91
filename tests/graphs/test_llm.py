"""Nodes that ask a language model, over real HTTP: answers, refusals, silence, streams, repairs, secrets, crashes."""

from __future__ import annotations

import json
import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pydantic
import pytest
from llmock.pytest_plugin import LLMock
from llmock.scenarios import Reply

from perdure import Retry, RunHandle
from perdure.errors import (
    InvalidDefinition,
    LlmFailed,
    LlmOutputInvalid,
    LlmRefused,
    LlmTruncated,
    Misuse,
    RunFailed,
    SecretNotFound,
    TemplateFailed,
)
from perdure.graph import Graph, Secrets, all_of, assign, collect, llm
from perdure.models.graphs.chat import _retry_after_s, added
from perdure.models.graphs.secrets import Veil
from perdure.testing import Environment, run_with_crashes
from perdure.testing.environment import StoreSource
from perdure.views import StreamItemView

KEY = "sk-do-not-tell-4711"
# While a request is under way no virtual time passes: the machine may be slow.
PATIENCE_S = 60.0


class Verdict(msgspec.Struct):
    fits: bool
    reasons: list[str]


class PydanticVerdict(pydantic.BaseModel):
    fits: bool


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch, llmock: LLMock) -> None:
    monkeypatch.setenv("PERDURE_SECRET_OPENAI_API_KEY", KEY)


def asking(prompt: str = "Say something.", *, retry: Retry | None = None, **options: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("asking")
    graph.node("ask", llm("mock-1", prompt, **options), retry=retry)
    graph.output("nodes.ask")
    return graph


async def run(graph: Graph[Any, Any], source: StoreSource = None, input: Any = None, **options: Any) -> Any:
    async with Environment([graph], source, autojump_s=PATIENCE_S, **options) as env:
        return await env.engine.run(graph(input))


async def failure(graph: Graph[Any, Any], source: StoreSource = None, input: Any = None, **options: Any) -> Any:
    async with Environment([graph], source, autojump_s=PATIENCE_S, **options) as env:
        handle: RunHandle[Any] = await env.engine.start(graph(input))
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        return failed.value.__cause__


async def items(env: Environment, run_id: str, stream: str = "tokens") -> list[StreamItemView]:
    return [item async for item in env.engine.handle(run_id).stream(stream)]


def bodies(llmock: LLMock) -> list[dict[str, Any]]:
    return [request.body for request in llmock.requests]


@contextmanager
def serving(answer: Callable[[dict[str, str], int], tuple[int, str, str]]) -> Iterator[str]:
    """A server that answers, to the headers and the number of a request, with a status, a content type and a body."""
    asked: list[None] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            asked.append(None)
            status, kind, body = answer(dict(self.headers), len(asked))
            self.send_response(status)
            self.send_header("content-type", kind)
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - so it is called there

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()
        thread.join()


def completion(text: str) -> str:
    return json.dumps({"choices": [{"message": {"content": text}, "finish_reason": "stop"}]})


# ---------------------------------------------------------------------------------------------------------------------
# Answers


async def test_a_model_is_asked_and_what_it_used_is_recorded(source: StoreSource, llmock: LLMock) -> None:
    llmock.reply("Twice a day.")
    graph: Graph[Any, Any] = Graph("asking")
    graph.node(
        "ask",
        llm(
            "mock-1",
            "How often is there {{ topic }}? {{ input.depth }} {{ n }}",
            system="You are {{ who }}.",
            base_url=llmock.base_url(),
            temperature=0.5,
            max_tokens=100,
            options={"seed": 7},
        ),
        input={"n": "input.depth + 1", "who": "'brief'"},
    )
    graph.output("nodes.ask")
    result = await run(graph, source, {"topic": "high tide", "depth": 2})
    usage = result.pop("usage")
    assert result == {"output": "Twice a day.", "model": "mock-1", "repairs": 0}
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0
    assert bodies(llmock) == [
        {
            "model": "mock-1",
            "messages": [
                {"role": "system", "content": "You are brief."},
                {"role": "user", "content": "How often is there high tide? 2 3"},
            ],
            "temperature": 0.5,
            "max_tokens": 100,
            "seed": 7,
        }
    ]


@pytest.mark.parametrize(
    "schema",
    [
        Verdict,
        PydanticVerdict,
        list[Verdict],
        {"type": "object", "properties": {"fits": {"type": "boolean"}}, "required": ["fits"]},
    ],
)
async def test_an_answer_fits_its_schema(llmock: LLMock, schema: Any) -> None:
    result = await run(asking(schema=schema))
    assert result["repairs"] == 0
    found = result["output"][0] if isinstance(result["output"], list) else result["output"]
    assert isinstance(found["fits"], bool)
    asked = bodies(llmock)[0]["response_format"]["json_schema"]
    assert asked["name"] == "ask"
    assert "$ref" not in asked["schema"]
    assert asked["schema"]["type"] == ("array" if schema == list[Verdict] else "object")


async def test_a_definition_as_text_asks_the_same(source: StoreSource, llmock: LLMock) -> None:
    graph = Graph.parse(
        """
        graph: review
        nodes:
          judge:
            kind: llm
            model: mock-1
            secret: OPENAI_API_KEY
            input: {text: input.text}
            prompt: "Does it fit? {{ text }}"
            schema: {type: object, properties: {fits: {type: boolean}}, required: [fits]}
            stream: tokens
        output: nodes.judge.output.fits
        """
    )
    llmock.reply('{"fits": true}')
    assert await run(graph, source, {"text": "yes"}) is True
    again = Graph.parse(graph.dump())
    assert again.dump("json") == graph.dump("json")
    assert "stall_timeout" in json.dumps(Graph.json_schema())


def test_a_type_is_dumped_as_a_reference_to_it() -> None:
    graph = asking(schema=Verdict)
    assert graph.definition.nodes["ask"].schema == f"{__name__}:Verdict"
    assert Graph.parse(graph.dump(), objects={f"{__name__}:Verdict": Verdict}).dump() == graph.dump()


async def test_each_branch_asks_for_itself(source: StoreSource, llmock: LLMock) -> None:
    graph: Graph[Any, Any] = Graph("branches")
    graph.node("begin", assign({}))
    graph.node("ask", llm("mock-1", "About {{ branch.item }}", stream="tokens"))
    graph.node("meet", assign({}))
    graph.edge("begin", "ask", foreach="input")
    graph.edge("ask", "meet", join=all_of(), merge=collect("state.said", source="nodes.ask.output"))
    graph.output("size(state.said)")
    assert await run(graph, source, ["tides", "moons", "dunes"]) == 3
    asked = {body["messages"][0]["content"] for body in bodies(llmock)}
    assert asked == {"About tides", "About moons", "About dunes"}


# ---------------------------------------------------------------------------------------------------------------------
# Templates


async def test_a_missing_variable_is_an_error_that_names_it_and_its_template(llmock: LLMock) -> None:
    error = await failure(asking("Hello\nDear {{ input.name }}"), input={"nam": "Ada"})
    assert isinstance(error, TemplateFailed)
    assert str(error) == "graph 'asking', node 'ask', prompt, line 2: 'input.name' is not defined"
    assert error.variable == "input.name"
    error = await failure(
        asking("Hello", system="{% for x in input.list %}{{ x.name }}{% endfor %}"), input={"list": [1]}
    )
    assert str(error) == "graph 'asking', node 'ask', system, line 1: 'x.name' is not defined"
    assert llmock.requests == []


async def test_what_may_be_missing_can_be_asked_for(llmock: LLMock) -> None:
    text = (
        "{% if state.note is defined %}{{ state.note }}{% else %}none{% endif %} {{ input.pairs.items()|list|length }}"
    )
    await run(asking(text), input={"pairs": {"a": 1, "b": 2}})
    assert bodies(llmock)[0]["messages"][0]["content"] == "none 2"


async def test_templates_see_what_nodes_gave_and_nothing_is_escaped(llmock: LLMock) -> None:
    llmock.reply("<b>&</b>")
    graph = asking("First.")
    graph.node("more", llm("mock-1", "{{ nodes.ask.output }} {{ nodes.ask.repairs }} {{ input|tojson }}"))
    graph.edge("ask", "more")
    await run(graph, input={"a": "<"})
    assert bodies(llmock)[1]["messages"][0]["content"] == '<b>&</b> 0 {"a": "<"}'


def test_a_template_that_cannot_work_is_found_when_the_graph_is_built() -> None:
    class Question(msgspec.Struct):
        topic: str

    def problem(prompt: str) -> str:
        graph: Graph[Any, Any] = Graph("asking", input=Question)
        graph.node("ask", llm("mock-1", prompt))
        with pytest.raises(InvalidDefinition) as refused:
            graph.build()
        return str(refused.value)

    place = "graph 'asking', node 'ask', prompt: "
    assert problem("{{ topics }}").startswith(f"{place}nothing is mapped to 'topics'")
    assert problem("{{ topic").startswith(f"{place}this is no template: line 1: it ends in the middle")
    assert "uses the result of a node 'plan', and there is none" in problem("{{ nodes.plan.output }}")


# ---------------------------------------------------------------------------------------------------------------------
# Servers that say no


async def test_a_server_that_wants_a_pause_gets_it(source: StoreSource, llmock: LLMock) -> None:
    llmock.fail(429, retry_after=90, times=1)
    llmock.fail(503, retry_after=30, times=1)
    graph = asking(retry=Retry(attempts=3, initial=timedelta(seconds=1), jitter=0))
    async with Environment([graph], source, autojump_s=PATIENCE_S) as env:
        began = env.clock.now()
        assert (await env.engine.run(graph(None)))["repairs"] == 0
        assert env.clock.now() - began == (90 + 30) * 1_000_000
    assert [request.status for request in llmock.requests] == [429, 503, 200]


async def test_the_pause_of_the_policy_counts_if_it_is_longer(llmock: LLMock) -> None:
    llmock.fail(429, retry_after=2)
    graph = asking(retry=Retry(attempts=2, initial=timedelta(minutes=5), jitter=0))
    async with Environment([graph], autojump_s=PATIENCE_S) as env:
        began = env.clock.now()
        await env.engine.run(graph(None))
        assert env.clock.now() - began == 300 * 1_000_000


async def test_a_pause_survives_a_crash(source: StoreSource, llmock: LLMock) -> None:
    llmock.fail(429, retry_after=3600)
    graph = asking()
    async with Environment([graph], source, autojump_s=None) as env:
        handle = await env.engine.start(graph(None))
        await env.quiet()
        await env.restart()
        await env.advance(3599)
        assert len(llmock.requests) == 1
        await env.advance(1)
        await env.engine.handle(handle.id).result()
    assert [request.status for request in llmock.requests] == [429, 200]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "20"}, 20),
        ({"retry-after-ms": "1500", "retry-after": "2"}, 1.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0),
        ({"retry-after": "-5"}, 0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_a_pause_is_asked_for_in_several_ways(headers: dict[str, str], seconds: float | None) -> None:
    assert _retry_after_s(httpx.Response(429, headers=headers)) == seconds


@pytest.mark.parametrize(
    ("status", "code", "said", "advice"),
    [
        (401, "invalid_api_key", "Incorrect API key provided", "is the secret 'OPENAI_API_KEY' the right one"),
        (404, "model_not_found", "The model does not exist", "is there a model 'mock-1' here, and is base_url right?"),
        (400, "context_length_exceeded", "maximum context length was exceeded", "shorten the prompt"),
        (429, "insufficient_quota", "You exceeded your current quota", "the account has nothing left"),
        (422, "bad", "Unknown field", "does this server take all that the node sends?"),
    ],
)
async def test_what_no_second_request_can_cure_is_said_at_once(
    llmock: LLMock, status: int, code: str, said: str, advice: str
) -> None:
    llmock.fail(status, code=code, message=said, times=None)
    error = await failure(asking(secret="OPENAI_API_KEY"))
    assert isinstance(error, LlmRefused)
    assert error.status == status
    where = f"graph 'asking', node 'ask': POST {llmock.base_url()}/chat/completions (model 'mock-1')"
    assert str(error).startswith(f"{where} was answered with {status}: ")
    assert said in str(error)
    assert advice in str(error)
    assert len(llmock.requests) == 1


async def test_a_server_that_is_down_is_asked_as_often_as_the_policy_says(llmock: LLMock) -> None:
    llmock.outage(status=502)
    error = await failure(asking(retry=Retry(attempts=3)))
    assert type(error) is LlmFailed
    assert error.status == 502
    assert len(llmock.requests) == 3


async def test_nobody_is_there() -> None:
    with serving(lambda *_: (200, "", "")) as url:
        pass
    error = await failure(asking(base_url=url, retry=Retry.never()))
    assert type(error) is LlmFailed
    assert "cannot connect" in str(error)
    assert "is base_url right, and is it up?" in str(error)


async def test_an_environment_with_a_wrong_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "https://user:word@example.org")
    error = await failure(asking())
    assert isinstance(error, LlmRefused)
    assert "OPENAI_BASE_URL in the environment is wrong" in str(error)
    assert "word@" not in str(error)


async def test_a_failure_can_be_routed(llmock: LLMock) -> None:
    llmock.fail(404, times=1)
    graph = asking()
    graph.node("other", llm("mock-2", "Instead: {{ error.type }}"))
    graph.edge("ask", "other", on_error=True)
    graph.output("nodes.other.model")
    assert await run(graph) == "mock-2"
    assert bodies(llmock)[1]["messages"][0]["content"] == "Instead: LlmRefused"


# ---------------------------------------------------------------------------------------------------------------------
# Answers that are none


async def test_an_answer_that_was_cut_off_says_so(llmock: LLMock) -> None:
    options: dict[str, Any]
    for options in ({}, {"stream": "tokens"}, {"schema": Verdict}):
        llmock.add(Reply(text='{"fits": tr', finish_reason="length"))
        error = await failure(asking(**options))
        assert isinstance(error, LlmTruncated)
        assert error.output == '{"fits": tr'
        assert (
            "cut off after 11 characters, because it reached the maximum number of tokens; set a higher max_tokens"
            in str(error)
        )
    assert len(llmock.requests) == 3


async def test_a_filtered_answer_says_so(llmock: LLMock) -> None:
    llmock.add(Reply(text="", finish_reason="content_filter"))
    error = await failure(asking())
    assert isinstance(error, LlmRefused)
    assert "content filter" in str(error)


@pytest.mark.parametrize("fault", ["corrupt", "truncate", "disconnect"])
async def test_a_broken_stream_is_asked_for_again(source: StoreSource, llmock: LLMock, fault: str) -> None:
    llmock.reply("one two three four", times=None)
    getattr(llmock, fault)(after_chunks=3)
    graph = asking(stream="tokens")
    async with Environment([graph], source, autojump_s=PATIENCE_S) as env:
        handle = await env.engine.start(graph(None))
        assert (await handle.result())["output"] == "one two three four"
        told = await items(env, handle.id)
        assert "".join(item.value["text"] for item in told if item.attempt == 2) == "one two three four"
        first = "".join(item.value["text"] for item in told if item.attempt == 1)
        assert "one two three four".startswith(first)
        assert len(first) < len("one two three four")
    assert len(llmock.requests) == 2


async def test_what_is_no_answer_is_asked_for_again() -> None:
    answers = ["<html>busy</html>", '{"choices": []}', '{"error": {"message": "overloaded"}}', completion("there")]
    with serving(lambda _, number: (200, "application/json", answers[number - 1])) as url:
        assert (await run(asking(base_url=url)))["output"] == "there"
    for answer, said in zip(answers, ["malformed: JSON is malformed", "no text in it", "overloaded"], strict=False):
        with serving(lambda *_, answer=answer: (200, "application/json", answer)) as url:
            error = await failure(asking(base_url=url, retry=Retry.never()))
            assert type(error) is LlmFailed
            assert said in str(error)


async def test_a_server_without_streams_is_heard_all_the_same() -> None:
    with serving(lambda *_: (200, "application/json", completion("whole"))) as url:
        graph = asking(base_url=url, stream="tokens")
        async with Environment([graph], autojump_s=PATIENCE_S) as env:
            handle = await env.engine.start(graph(None))
            assert await handle.result() == {"output": "whole", "usage": None, "model": "mock-1", "repairs": 0}
            assert [item.value["text"] for item in await items(env, handle.id)] == ["whole"]


async def test_a_silent_server_is_given_up_and_asked_again(llmock: LLMock) -> None:
    llmock.reply("one two three", times=None)
    llmock.stall(after_chunks=2, seconds=3600)
    # On a slow machine further attempts may seem to stall.
    graph = asking(stream="tokens", stall_timeout=0.5, retry=Retry(attempts=20))
    assert (await run(graph))["output"] == "one two three"
    assert llmock.requests[0].fault is not None


async def test_silence_is_an_error_that_says_what_to_do(llmock: LLMock) -> None:
    llmock.stall(after_chunks=2, seconds=3600)
    error = await failure(asking(stream="tokens", stall_timeout=0.2, retry=Retry.never()))
    assert type(error) is LlmFailed
    assert "the server sent nothing for 0.2 s" in str(error)
    assert "a longer stall_timeout" in str(error)


async def test_an_attempt_that_goes_on_for_too_long_is_given_up(llmock: LLMock) -> None:
    llmock.reply("one two three", times=None)
    llmock.stall(after_chunks=2, seconds=3600)
    # Time passes while nothing happens: on a slow machine further attempts may take too long as well.
    graph = asking(stream="tokens", stall_timeout=3600, attempt_timeout=30, retry=Retry(attempts=20))
    async with Environment([graph], autojump_s=0.5) as env:
        handle = await env.engine.start(graph(None))
        assert (await handle.result())["output"] == "one two three"
        assert (await items(env, handle.id))[-1].attempt != 1


# ---------------------------------------------------------------------------------------------------------------------
# Streams


async def test_tokens_can_be_read_while_they_come(source: StoreSource, llmock: LLMock) -> None:
    llmock.reply("There is high tide twice a day.")
    graph = asking(stream="tokens")
    async with Environment([graph], source, autojump_s=PATIENCE_S) as env:
        handle = await env.engine.start(graph(None))
        told = [item async for item in env.engine.handle(handle.id).stream("tokens")]
        result = await handle.result()
    assert "".join(item.value["text"] for item in told) == result["output"] == "There is high tide twice a day."
    assert len(told) > 1
    assert [item.value["index"] for item in told] == list(range(len(told)))
    assert {(item.value["node"], item.value["repair"], item.attempt) for item in told} == {("ask", 0, 1)}
    assert result["usage"]["completion_tokens"] > 0
    assert bodies(llmock)[0]["stream_options"] == {"include_usage": True}


# ---------------------------------------------------------------------------------------------------------------------
# Repairs


@pytest.mark.parametrize("stream", [None, "tokens"])
async def test_an_answer_that_does_not_fit_is_sent_back(
    source: StoreSource, llmock: LLMock, stream: str | None
) -> None:
    llmock.reply("It fits.").reply('{"fits": "yes", "reasons": []}').reply('{"fits": true, "reasons": ["a"]}')
    graph = asking(schema=Verdict, stream=stream)
    async with Environment([graph], source, autojump_s=PATIENCE_S) as env:
        handle = await env.engine.start(graph(None))
        result = await handle.result()
        told = [] if stream is None else await items(env, handle.id)
    assert (result["output"], result["repairs"]) == ({"fits": True, "reasons": ["a"]}, 2)
    first, second, third = bodies(llmock)
    assert second["messages"][:2] == [*first["messages"], {"role": "assistant", "content": "It fits."}]
    assert "This answer does not fit: JSON is malformed" in second["messages"][2]["content"]
    assert '"required": ["fits", "reasons"]' in second["messages"][2]["content"]
    assert third["messages"][:3] == second["messages"]
    assert "Expected `bool`, got `str` - at `$.fits`" in third["messages"][4]["content"]
    if stream is not None:
        last = "".join(item.value["text"] for item in told if item.value["repair"] == 2)
        assert json.loads(last) == result["output"]


async def test_all_requests_count_in_what_was_used(llmock: LLMock) -> None:
    llmock.reply("no").reply('{"fits": true, "reasons": []}')
    both = (await run(asking(schema=Verdict)))["usage"]
    llmock.reset().reply('{"fits": true, "reasons": []}')
    one = (await run(asking(schema=Verdict)))["usage"]
    assert both["total_tokens"] > one["total_tokens"]
    nested = {"total": 3, "details": {"cached": 1}}
    assert added(nested, {"total": 4, "details": {"cached": 2, "audio": 1}}) == {
        "total": 7,
        "details": {"cached": 3, "audio": 1},
    }
    assert added(None, nested) == added(nested, None) == nested


async def test_repairs_have_a_bound(source: StoreSource, llmock: LLMock) -> None:
    llmock.reply("never", times=None)
    error = await failure(asking(schema=Verdict, repairs=1), source)
    assert isinstance(error, LlmOutputInvalid)
    assert (error.repairs, error.output) == (1, "never")
    assert error.usage is not None
    assert error.usage["total_tokens"] > 0
    assert "does not fit the schema after 1 repairs: JSON is malformed" in str(error)
    assert len(llmock.requests) == 2
    llmock.reset().reply("never", times=None)
    assert isinstance(await failure(asking(schema=Verdict, repairs=0), source), LlmOutputInvalid)
    assert len(llmock.requests) == 1


# ---------------------------------------------------------------------------------------------------------------------
# Secrets


def echo(headers: dict[str, str], number: int) -> tuple[int, str, str]:
    """Repeats the key: in an error, in one that is no JSON, in a stream that comes in pieces, in an answer."""
    said = headers["Authorization"]
    if number == 1:
        return 500, "application/json", json.dumps({"error": {"message": f"failed for {said}", "code": said}})
    if number == 2:
        return 503, "text/html", f"<p>{said}</p>"
    if number == 3:
        return 200, "application/json", f"{'x' * 480}{said}"  # Part of it would be cut off in the message.
    pieces = [said[:10], said[10:15], said[15:], " the end"]
    events: list[Any] = [{"model": said, "choices": [{"delta": {"content": piece}}]} for piece in pieces]
    events.append({"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": {"total_tokens": 3, "for": said}})
    return 200, "text/event-stream", "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


async def test_a_secret_is_in_no_definition_journal_stream_log_or_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    path = tmp_path / "runs.db"
    with serving(echo) as url:
        graph = asking(base_url=url, secret="OPENAI_API_KEY", stream="tokens", retry=Retry(attempts=4))
        async with Environment([graph], f"sqlite:///{path}", autojump_s=PATIENCE_S) as env:
            handle = await env.engine.start(graph(None))
            result = await handle.result()
            told = await items(env, handle.id)
            assert result == {
                "output": "Bearer [secret] the end",
                "usage": {"total_tokens": 3},
                "model": "Bearer [secret]",
                "repairs": 0,
            }
            assert "".join(item.value["text"] for item in told) == result["output"]
    with serving(lambda headers, _: echo(headers, 1)) as url:
        graph = asking(base_url=url, secret="OPENAI_API_KEY", retry=Retry(attempts=2))
        async with Environment([graph], f"sqlite:///{path}", autojump_s=PATIENCE_S) as env:
            failed = await env.engine.start(graph(None))
            with pytest.raises(RunFailed) as error:
                await failed.result()
            shown = repr(error.value.failure) + str(error.value.__cause__)
    assert "failed for Bearer [secret]" in shown
    with sqlite3.connect(path) as database:
        stored = "\n".join(database.iterdump())
    database.close()
    assert "[secret] the end" in stored
    assert "httpx" in caplog.text
    everything = [graph.dump(), graph.dump("json"), shown, caplog.text, stored]
    everything += [file.read_bytes().decode(errors="replace") for file in tmp_path.iterdir()]
    for text in everything:
        assert KEY[:-6] not in text


def test_a_secret_is_found_in_pieces() -> None:
    text = f"ss{KEY}s sk-do-not{KEY[:-1]}"
    for size in range(1, len(text) + 1):
        veil = Veil(KEY)
        pieces = [veil.piece(text[at : at + size]) for at in range(0, len(text), size)]
        assert "".join(pieces) + veil.rest() == text.replace(KEY, "[secret]")


async def test_a_secret_that_is_nowhere_is_an_error_that_names_it(
    llmock: LLMock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_SECRET_OPENAI_API_KEY")
    error = await failure(asking(secret="OPENAI_API_KEY"))
    assert isinstance(error, SecretNotFound)
    assert "there is no secret 'OPENAI_API_KEY'; set PERDURE_SECRET_OPENAI_API_KEY in the environment" in str(error)
    monkeypatch.setenv("PERDURE_SECRET_OPENAI_API_KEY", "sk-tést")
    error = await failure(asking(secret="OPENAI_API_KEY"))
    assert isinstance(error, Misuse)
    assert "sk-" not in str(error)
    assert llmock.requests == []


class Vault(Secrets):
    async def get(self, name: str) -> str | None:
        return f"from the vault: {name}\n"


async def test_an_engine_may_have_another_provider() -> None:
    seen: list[str] = []

    def answer(headers: dict[str, str], _: int) -> tuple[int, str, str]:
        seen.append(headers.get("Authorization", ""))
        return 200, "application/json", completion("yes")

    with serving(answer) as url:
        await run(asking(base_url=url, secret="MODEL_KEY"), resources={Secrets: Vault})
        await run(asking(base_url=url))
    assert seen == ["Bearer from the vault: MODEL_KEY", ""]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"secret": KEY}, "secret"),
        ({"base_url": "https://user:word@example.org/v1"}, "base_url: an address has no user, password or query"),
        ({"base_url": "https://example.org/v1?key=word"}, "base_url: an address has no user, password or query"),
        ({"base_url": "example.org"}, "base_url: an address begins with http:// or https://"),
        ({"options": {"messages": []}}, "options: 'messages' has a field of its own"),
        ({"repairs": 11}, "repairs"),
        ({"stall_timeout": 0}, "stall_timeout"),
        ({"stream": "\0"}, "stream: a stream's name cannot contain NUL"),
        ({"schema": {"type": "thing"}}, "schema: the type 'thing' is not known"),
        ({"schema": "nowhere:Type"}, "schema: there is no 'nowhere:Type' here"),
    ],
)
def test_a_definition_that_cannot_work_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidDefinition) as refused:
        asking(**options).build()
    assert said in str(refused.value)
    assert KEY not in str(refused.value)
    assert "word@" not in str(refused.value)


# ---------------------------------------------------------------------------------------------------------------------
# Crashes


async def test_after_a_crash_in_the_middle_the_answer_begins_anew(source: StoreSource, llmock: LLMock) -> None:
    llmock.reply("one two three four", times=None)
    llmock.stall(after_chunks=4, seconds=3600)
    graph = asking(stream="tokens")
    async with Environment([graph], source, autojump_s=PATIENCE_S) as env:
        handle = await env.engine.start(graph(None))
        async for _ in env.engine.handle(handle.id).stream("tokens"):
            break
        await env.restart()
        assert (await env.engine.handle(handle.id).result())["output"] == "one two three four"
        told = await items(env, handle.id)
    beginnings = [at for at, item in enumerate(told) if item.value["index"] == 0]
    assert len(beginnings) == 2
    assert "".join(item.value["text"] for item in told[beginnings[1] :]) == "one two three four"
    assert {item.attempt for item in told} == {
        1
    }  # A crash is no failure of the step: it has as many attempts as before.
    assert len(llmock.requests) == 2


async def test_a_crash_at_any_commit_changes_nothing(fresh: Callable[[], StoreSource], llmock: LLMock) -> None:
    graph = asking("Of {{ input }}", schema=Verdict, stream="tokens")

    async def scenario(env: Environment) -> Any:
        handle = await env.engine.start(graph("x"), id="r")
        return await handle.result()

    report = await run_with_crashes(scenario, workflows=[graph], store=fresh, autojump_s=PATIENCE_S)
    assert report.restarts > 0
    assert set(report.result["output"]) == {"fits", "reasons"}
