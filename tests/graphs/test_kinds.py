"""What nodes do: functions, values, timers, events, children, HTTP, and kinds of one's own."""

from __future__ import annotations

import json
import logging
import socket
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

from perdure import Event, NamedEvent, Retry, RunHandle, Workflow, current_step, sleep, step, workflow
from perdure.errors import GraphTimedOut, HttpFailed, InvalidDefinition, Misuse, RunFailed, SecretNotFound
from perdure.graph import Graph, add_kind, all_of, assign, child, collect, http, timer, wait
from perdure.testing import Environment
from perdure.testing.environment import StoreSource


class Question(msgspec.Struct):
    topic: str
    depth: int = 2


@dataclass
class Answer:
    text: str
    at: datetime


async def run(graph: Graph[Any, Any], source: StoreSource, input: Any = None, *more: Workflow[Any, Any]) -> Any:
    async with Environment([graph, *more], source) as env:
        return await env.engine.run(graph(input))


async def failure(graph: Graph[Any, Any], source: StoreSource, input: Any, *more: Workflow[Any, Any]) -> BaseException:
    async with Environment([graph, *more], source) as env:
        handle: RunHandle[Any] = await env.engine.start(graph(input))
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert failed.value.__cause__ is not None
        return failed.value.__cause__


# ---------------------------------------------------------------------------------------------------------------------
# Functions


@step
async def answer(topic: str, at: datetime) -> Answer:
    assert isinstance(at, datetime)
    return Answer(topic.upper(), at)


async def test_values_are_typed_where_python_sees_them_and_plain_where_expressions_do(source: StoreSource) -> None:
    graph = Graph("typed", input=Question, output=Answer)
    graph.node("work", answer, input={"at": "'2030-01-31T08:00:00Z'"})
    graph.output({"text": "nodes.work.text", "at": "nodes.work.at"})
    async with Environment([graph], source) as env:
        run = await env.engine.start(graph(Question(topic="tides")))
        assert await run.result() == Answer("TIDES", datetime(2030, 1, 31, 8, tzinfo=UTC))
        view = await env.engine.runs.get(run.id)
        assert view is not None
        assert (view.model, view.workflow, view.input) == ("graph", "typed", {"input": {"topic": "tides", "depth": 2}})


async def test_steps_and_functions_async_and_not_are_all_the_same(source: StoreSource) -> None:
    @step
    async def one(topic: str) -> str:
        return topic + "1"

    @step
    def two(text: str) -> str:
        return text + "2"

    async def three(text: str) -> str:
        return text + "3"

    def four(text: str, input: dict[str, Any]) -> str:
        return text + str(input["topic"])

    graph = Graph("functions", input=Question, output=str)
    graph.node("one", one)
    graph.node("two", two, input={"text": "nodes.one"})
    graph.node("three", three, input="nodes.two")
    graph.node("four", four, input={"text": "nodes.three"})
    for first, second in [("one", "two"), ("two", "three"), ("three", "four")]:
        graph.edge(first, second)
    graph.output("nodes.four")
    assert await run(graph, source, Question(topic="t")) == "t123t"


async def test_a_node_is_tried_again_by_its_own_policy(source: StoreSource) -> None:
    tried: list[int] = []

    @step(retry=Retry.never())
    async def flaky() -> int:
        tried.append(current_step().attempt)
        if len(tried) < 4:
            raise OSError("not yet")
        return len(tried)

    graph: Graph[Any, Any] = Graph("tried")
    graph.node("work", flaky, retry=Retry(attempts=4, initial=timedelta(seconds=10)))
    graph.output("nodes.work")
    assert await run(graph, source) == 4
    assert tried == [1, 2, 3, 4]


@step(transactional=True)
def insert(value: int) -> int:
    connection = current_step().connection
    connection.execute("create table if not exists numbers (value integer)")
    connection.execute("insert into numbers values (?)", (value,))
    return value


async def test_a_transactional_step_stays_one_in_a_node(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    graph: Graph[Any, Any] = Graph("transactional")
    graph.node("work", insert, input={"value": "input"})
    graph.output("nodes.work")
    assert await run(graph, f"sqlite:///{path}", 7) == 7
    with sqlite3.connect(path) as database:
        assert database.execute("select value from numbers").fetchall() == [(7,)]
    database.close()


async def test_a_result_that_does_not_fit_its_annotation_fails_the_node(source: StoreSource) -> None:
    async def wrong() -> int:
        return "text"  # type: ignore[return-value]

    graph: Graph[Any, Any] = Graph("wrong")
    graph.node("work", wrong)
    assert "does not fit its annotation int" in str(await failure(graph, source, None))


async def test_an_output_that_does_not_fit_the_graphs_fails_the_run(source: StoreSource) -> None:
    graph = Graph("wrong", output=Question)
    graph.node("work", assign({"output.depth": 3}))
    assert "missing required field `topic`" in str(await failure(graph, source, None))


async def test_results_can_be_written_into_the_context(source: StoreSource) -> None:
    async def count(topic: str) -> dict[str, int]:
        return {"letters": len(topic)}

    graph: Graph[Any, Any] = Graph("written")
    graph.node(
        "work", count, output={"state.size.letters": "nodes.work.letters", "output.size": "nodes.work.letters * 2"}
    )
    graph.node("more", assign({"state.size.twice": "state.size.letters * 2", "output.state": "state"}))
    graph.edge("work", "more")
    assert await run(graph, source, {"topic": "tides"}) == {"size": 10, "state": {"size": {"letters": 5}}}


async def shout(text: str, **more: Any) -> str:
    return text.upper() + "!" * int(more["marks"])


shouting = add_kind("shout", shout)


async def test_a_kind_of_ones_own(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("own")
    graph.node("work", shouting(input={"text": "input", "marks": 3}))
    graph.output("nodes.work")
    assert await run(graph, source, "hey") == "HEY!!!"
    again = Graph.parse(graph.dump("json"))
    assert again.dump("json") == graph.dump("json")
    assert '"kind": "shout"' in graph.dump("json")
    assert "shout" in json.dumps(Graph.json_schema())
    with pytest.raises(InvalidDefinition, match="there is a kind of node 'shout' already"):
        add_kind("shout", shout)


# ---------------------------------------------------------------------------------------------------------------------
# Waiting


class Approved(Event, event_name="approved"):
    order: str
    by: str


async def test_a_timer_waits_durably(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("waits")
    graph.node("nap", timer(timedelta(hours=1)))
    graph.node("more", timer("input.minutes * 60"))
    graph.node("until", timer(until="input.until"))
    graph.edge("nap", "more")
    graph.edge("more", "until")
    graph.output("nodes.until.scheduled_at")
    async with Environment([graph], source) as env:
        began = env.clock.now()
        until = datetime.fromtimestamp(began / 1e6, UTC) + timedelta(hours=3)
        handle = await env.engine.start(graph({"minutes": 30, "until": until.isoformat()}))
        await env.restart()
        assert await env.engine.handle(handle.id).result() == until.isoformat()
        assert env.clock.now() - began == 3 * 3600 * 1_000_000


async def test_an_event_is_waited_for_and_chosen(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("approval")
    graph.node("wait", wait(Approved, where={"order": "input"}))
    graph.output("nodes.wait.by")
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph("o-17"))
        await env.engine.send(Approved(order="o-18", by="eve"))
        await env.engine.send(Approved(order="o-17", by="ada"))
        assert await handle.result() == "ada"


async def test_an_event_that_does_not_come_in_time_is_a_failure_to_be_routed(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("approval")
    graph.node("wait", wait("approved"), timeout=timedelta(days=1))
    graph.node("late", assign({"output.why": "error.type"}))
    graph.edge("wait", "late", on_error=True)
    assert await run(graph, source) == {"why": "GraphTimedOut"}


async def test_each_branch_waits_for_its_own_event(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("each")
    graph.node("begin", assign({}))
    graph.node("wait", wait("told", where={"to": "branch.item"}))
    graph.node("meet", assign({}))
    graph.edge("begin", "wait", foreach="input")
    graph.edge("wait", "meet", join=all_of(), merge=collect("state.got", source="nodes.wait.word"))
    graph.output("state.got")
    async with Environment([graph], source) as env:
        handle = await env.engine.start(graph(["a", "b", "c"]))
        for name in ("c", "a", "b"):
            await env.engine.send(NamedEvent("told", {"to": name, "word": name.upper()}), to=handle.id)
        assert await handle.result() == ["A", "B", "C"]


# ---------------------------------------------------------------------------------------------------------------------
# Children


@workflow
async def double(number: int, times: int = 2) -> int:
    await sleep(10)
    if number < 0:
        raise ValueError("negative")
    return number * times


async def test_a_function_is_a_child(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("parent")
    graph.node("work", double, input={"number": "input"})
    graph.output("nodes.work")
    async with Environment([graph, double], source) as env:
        handle = await env.engine.start(graph(21))
        assert await handle.result() == 42
        tree = await env.engine.handle(handle.id).tree()
        assert [(one.run.workflow, one.run.model) for one in tree.children] == [("double", "function")]


async def test_a_graph_is_a_child_of_a_graph_and_of_a_function(source: StoreSource) -> None:
    inner = Graph("inner", input=Question, output=str)
    inner.node("work", assign({"state.text": "input.topic + string(input.depth)"}))
    inner.output("state.text")
    outer: Graph[Any, Any] = Graph("outer")
    outer.node("sub", inner, input={"topic": "input"})
    outer.output("nodes.sub")

    @workflow
    async def parent() -> str:
        return await inner(Question(topic="f")) + str(await outer("g"))

    async with Environment([inner, outer, parent], source) as env:
        handle = await env.engine.start(parent())
        assert await handle.result() == "f2g2"
        tree = await env.engine.handle(handle.id).tree()
        assert [one.run.model for one in tree.children] == ["graph", "graph"]


async def test_a_child_that_is_known_by_its_name_alone(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("parent")
    graph.node("work", child("double"), input={"number": "input", "times": 3})
    graph.output("nodes.work")
    assert await run(graph, source, 7, double) == 21


async def test_a_childs_failure_is_propagated_or_caught(source: StoreSource) -> None:
    def parent(**options: Any) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("parent")
        graph.node("work", child(double, **options), input={"number": "input"})
        graph.output("nodes.work")
        return graph

    assert "negative" in str(await failure(parent(), source, -1, double))
    caught = await run(parent(on_failure="catch"), source, -1, double)
    assert caught == {"error": {"type": "ValueError", "message": "negative", "status": "failed"}}


async def test_a_child_that_takes_too_long_is_cancelled(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("parent")
    graph.node("work", double, input={"number": "input"}, timeout=5)
    async with Environment([graph, double], source) as env:
        handle = await env.engine.start(graph(1))
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert isinstance(failed.value.__cause__, GraphTimedOut)
        await env.settle()
        tree = await env.engine.handle(handle.id).tree()
        assert [one.run.status for one in tree.children] == ["cancelled"]


async def test_cancelling_a_run_cancels_its_children(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("parent")
    graph.node("begin", assign({}))
    graph.node("work", double, input={"number": "branch.item"})
    graph.edge("begin", "work", foreach="input")
    async with Environment([graph, double], source, autojump_s=None) as env:
        handle = await env.engine.start(graph([1, 2, 3]))
        await env.quiet()
        await env.engine.handle(handle.id).cancel()
        await env.quiet()
        tree = await env.engine.handle(handle.id).tree()
        assert [one.run.status for one in tree.children] == ["cancelled"] * 3


# ---------------------------------------------------------------------------------------------------------------------
# HTTP


class Server(BaseHTTPRequestHandler):
    """Says what it was asked; at /busy it is only ready for the second attempt."""

    asked: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.asked.append({"path": self.path, "body": body.decode(), "key": self.headers["idempotency-key"]})
        if self.path.startswith("/echo"):
            self.echo()
            return
        status = 503 if self.path.startswith("/busy") and len(self.asked) == 1 else 200
        self.send_response(404 if self.path.startswith("/missing") else status)
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps({"path": self.path, "got": json.loads(body or "null")}).encode())

    def echo(self) -> None:
        """Repeat all that the request said, as careless servers do."""
        said = dict(self.headers)
        self.send_response(500 if self.path == "/echo-failing" else 200)
        is_text = self.path == "/echo-text"
        self.send_header("content-type", "text/plain" if is_text else "application/json")
        self.send_header("x-echo", " ".join(said.values()))
        self.end_headers()
        text = json.dumps({"said": [said], "all": " ".join(said.values())}).replace("/", "\\/")
        self.wfile.write((text + quote(said.get("X-Key", ""), safe="") if is_text else text).encode())

    def do_GET(self) -> None:
        self.do_POST()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the library's name
        """Silence."""


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    class Fresh(Server):
        asked: list[dict[str, Any]] = []  # noqa: RUF012 - each test has a class of its own

    with HTTPServer(("127.0.0.1", 0), Fresh) as serving:
        thread = threading.Thread(target=serving.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{serving.server_port}", Fresh.asked
        serving.shutdown()
        thread.join()


async def test_a_request_is_a_step(source: StoreSource, server: tuple[str, list[dict[str, Any]]]) -> None:
    url, asked = server
    graph: Graph[Any, Any] = Graph("web")
    graph.node(
        "ask",
        http("input.url + '/busy'", method="POST", params={"q": "input.topic"}, body={"n": "input.n"}),
        retry=Retry(attempts=2),
    )
    graph.output({"status": "nodes.ask.status", "body": "nodes.ask.body"})
    result = await run(graph, source, {"url": url, "topic": "tides", "n": 7})
    assert result == {"status": 200, "body": {"path": "/busy?q=tides", "got": {"n": 7}}}
    assert len(asked) == 2
    assert asked[0]["key"] == asked[1]["key"]


async def test_a_status_that_says_no_is_a_failure_unless_it_is_accepted(
    source: StoreSource, server: tuple[str, list[dict[str, Any]]]
) -> None:
    url, _ = server

    def asking(**options: Any) -> Graph[Any, Any]:
        graph: Graph[Any, Any] = Graph("web")
        graph.node("ask", http("input + '/missing'", **options), retry=Retry.never())
        graph.output("nodes.ask.status")
        return graph

    error = await failure(asking(), source, url)
    assert isinstance(error, HttpFailed)
    assert error.status == 404
    assert await run(asking(accept=[404]), source, url) == 404


async def test_a_server_that_is_not_there_is_a_failure(source: StoreSource) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and nobody listens
        graph: Graph[Any, Any] = Graph("web")
        graph.node("ask", http("input"), retry=Retry.never())
        error = await failure(graph, source, f"http://127.0.0.1:{taken.getsockname()[1]}/")
    assert isinstance(error, HttpFailed)
    assert "was not answered: ConnectError" in str(error)


TOKEN = "tk-do/not+tell==4711"
KEY = "key-also-not-4712"


async def test_secrets_of_a_request_are_in_no_definition_journal_log_or_error(
    tmp_path: Path,
    server: tuple[str, list[dict[str, Any]]],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, _ = server
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("PERDURE_SECRET_SERVICE_TOKEN", TOKEN)
    monkeypatch.setenv("PERDURE_SECRET_SERVICE_KEY", KEY)
    graph: Graph[Any, Any] = Graph("web")
    for number, path in enumerate(["echo", "echo-text", "echo-failing"]):
        node = http(f"input + '/{path}'", secret="SERVICE_KEY", secret_headers={"X-Key": "SERVICE_TOKEN"})
        graph.node(f"ask{number}", node, retry=Retry.never())
    graph.edge("ask0", "ask1")
    graph.edge("ask1", "ask2")
    graph.node("rescue", assign({"output.why": "error.message", "output.all": "[nodes.ask0, nodes.ask1]"}))
    graph.edge("ask2", "rescue", on_error=True)
    async with Environment([graph], f"sqlite:///{tmp_path / 'runs.db'}") as env:
        handle = await env.engine.start(graph(url))
        result = await handle.result()
        history = repr(await env.engine.handle(handle.id).history())
    assert result["all"][0]["body"]["said"][0]["X-Key"] == "[secret]"
    assert result["all"][0]["body"]["said"][0]["Authorization"] == "Bearer [secret]"
    assert "[secret]" in result["why"]
    with sqlite3.connect(tmp_path / "runs.db") as database:
        stored = "\n".join(database.iterdump())
    database.close()
    assert "Bearer [secret]" in stored
    assert "httpcore" in caplog.text
    assert "x-echo" in caplog.text
    everything = [graph.dump(), graph.dump("json"), history, caplog.text, stored, repr(result)]
    everything += [file.read_bytes().decode(errors="replace") for file in tmp_path.iterdir()]
    for text in everything:
        for hidden in (TOKEN, KEY, quote(TOKEN, safe=""), TOKEN.replace("/", "\\/")):
            assert hidden[2:-4] not in text


async def test_a_secret_that_is_nowhere_is_named(
    source: StoreSource, server: tuple[str, list[dict[str, Any]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, asked = server
    monkeypatch.delenv("PERDURE_SECRET_SERVICE_KEY", raising=False)
    graph: Graph[Any, Any] = Graph("web")
    graph.node("ask", http("input", secret_headers={"X-Key": "SERVICE_KEY"}))
    error = await failure(graph, source, url)
    assert isinstance(error, SecretNotFound)
    assert f"header 'X-Key' of GET {url}: there is no secret 'SERVICE_KEY'" in str(error)
    assert asked == []


async def test_an_address_with_a_password_is_refused_and_not_repeated(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("web")
    graph.node("ask", http("input"), retry=Retry.never())
    error = await failure(graph, source, "http://ann:word-4713@127.0.0.1/")
    assert isinstance(error, Misuse)
    assert "name a secret instead" in str(error)
    assert "4713" not in str(error)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"secret": TOKEN}, "secret"),
        ({"secret_headers": {"X Key": "SERVICE_KEY"}}, "secret_headers"),
        ({"secret_headers": {"X-Key": TOKEN}}, "secret_headers"),
        ({"secret": "A", "headers": {"authorization": "'x'"}}, "secret_headers: there are two headers 'Authorization'"),
        ({"secret": "A", "secret_headers": {"AUTHORIZATION": "B"}}, "secret_headers: there are two headers"),
    ],
)
def test_a_request_that_cannot_work_is_refused(options: dict[str, Any], why: str) -> None:
    graph: Graph[Any, Any] = Graph("web")
    graph.node("ask", http("input", **options))
    with pytest.raises(InvalidDefinition) as refused:
        graph.build()
    assert why in str(refused.value)
    assert TOKEN not in str(refused.value)


def test_a_request_with_secrets_is_the_same_as_text() -> None:
    graph: Graph[Any, Any] = Graph("web")
    graph.node("ask", http("input", secret="A", secret_headers={"X-Key": "B"}))
    assert Graph.parse(graph.dump("yaml")).dump("json") == graph.dump("json")
    assert '"X-Key": "B"' in graph.dump("json")
