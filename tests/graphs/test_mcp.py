"""Nodes that call tools of MCP servers: real ones, over HTTP and as programs."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
import uvicorn

from perdure import Retry
from perdure.errors import InvalidDefinition, McpFailed, RunFailed
from perdure.graph import Graph, action, assign, mcp
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from tests.graphs.mcp_tools import CALLS, make_server

PROGRAM = [sys.executable, str(Path(__file__).with_name("mcp_tools.py"))]


class Gate:
    """Remembers what callers send as their authorization."""

    def __init__(self, app: Any) -> None:
        self.app = app
        self.seen: set[str] = set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            self.seen |= {value.decode() for name, value in scope["headers"] if name == b"authorization"}
        await self.app(scope, receive, send)


@asynccontextmanager
async def serving() -> AsyncIterator[tuple[str, Gate]]:
    gate = Gate(make_server().streamable_http_app())
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        config = uvicorn.Config(gate, log_config=None, lifespan="on")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0)
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", gate
        finally:
            server.should_exit = True
            await task


def graph_of(kind: Any, input: Any, **more: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("calling")
    graph.node("call", kind, input=input, **more)
    graph.node("sorry", assign({"output.error": "error"}))
    graph.edge("call", "sorry", on_error=True)
    graph.node("done", assign({"output.got": "nodes.call"}))
    graph.edge("call", "done")
    return graph


async def result(graph: Graph[Any, Any], source: StoreSource, input: Any = None) -> Any:
    async with Environment([graph], source) as env:
        return await env.engine.run(graph(input))


async def test_a_tool_is_called_over_http(source: StoreSource) -> None:
    async with serving() as (url, _):
        graph = graph_of(mcp("add", url="input.url"), {"a": "input.a", "b": 4})
        got = (await result(graph, source, {"url": url, "a": 3}))["got"]
        assert got["text"] == "7"
        assert got["structured"] == {"result": 7}
        assert [part["type"] for part in got["content"]] == ["text"]


async def test_a_tool_of_a_program_is_called(source: StoreSource, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_NIGHT_SHIFT", "night-time-4711")
    graph = graph_of(mcp("greet", command=PROGRAM, secret_env={"SHIFT": "NIGHT_SHIFT"}), {"name": "input"})
    got = (await result(graph, source, "ada"))["got"]
    assert got["text"] == "hello ada, it is [secret]"


async def test_a_secret_goes_with_the_call_and_into_nothing_else(
    source: StoreSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PERDURE_SECRET_TOOLS_KEY", "key-4711")
    async with serving() as (url, gate):
        graph = graph_of(mcp("add", url=f"'{url}'", secret="TOOLS_KEY"), {"a": 1, "b": 1})
        async with Environment([graph], source) as env:
            await env.engine.run(graph(), id="r")
            assert "key-4711" not in repr(await env.engine.handle("r").history())
        assert gate.seen == {"Bearer key-4711"}
    assert "key-4711" not in graph.dump()


async def test_a_tool_that_fails_fails_the_node(source: StoreSource) -> None:
    async with serving() as (url, _):
        graph = graph_of(mcp("break_down", url=f"'{url}'"), {"text": "'way'"}, retry=Retry.never())
        error = (await result(graph, source))["error"]
        assert error["type"] == "McpFailed"
        assert "tool 'break_down' of http://127.0.0.1" in error["message"]
        assert "no way" in error["message"]
        unknown = graph_of(mcp("nothing", url=f"'{url}'"), {}, retry=Retry.never())
        error = (await result(unknown, source))["error"]
        assert error["type"] == "McpFailed"
        assert "nothing" in error["message"]


async def test_attempts_share_an_idempotency_key(source: StoreSource) -> None:
    CALLS.clear()
    async with serving() as (url, _):
        graph = graph_of(mcp("stumble", url=f"'{url}'"), {}, retry=Retry(attempts=3))
        assert (await result(graph, source))["got"]["text"] == "at last"
    assert len(CALLS) == 3
    assert len(set(CALLS)) == 1
    assert CALLS[0] != "None"


@pytest.mark.parametrize("kind", [mcp("add", url="'http://127.0.0.1:1/mcp'"), mcp("add", command=["/nowhere/at-all"])])
async def test_a_server_that_is_not_there_fails_the_node(source: StoreSource, kind: Any) -> None:
    graph: Graph[Any, Any] = Graph("alone")
    graph.node("call", kind, input={"a": 1, "b": 2}, retry=Retry.never())
    async with Environment([graph], source) as env:
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph())
        assert isinstance(failed.value.__cause__, McpFailed)
        assert failed.value.__cause__.code is None


async def test_an_action_starts_no_program(source: StoreSource) -> None:
    graph: Graph[Any, Any] = Graph("acting")
    graph.node("go", action("tool"))
    async with Environment([graph], source) as env:
        await env.engine.records.put("action", "tool", {"kind": "mcp", "tool": "add", "command": ["/bin/true"]})
        with pytest.raises(RunFailed) as failed:
            await env.engine.run(graph())
        assert isinstance(failed.value.__cause__, InvalidDefinition)
        assert "an action starts no program" in str(failed.value.__cause__)


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_a_definition_in_a_text_starts_no_program(form: Literal["yaml", "json"], tmp_path: Path) -> None:
    command = ["sh", "-c", f"touch {tmp_path / 'started'}"]
    text = graph_of(mcp("x", command=command), {}).dump(form)
    other = {"sh": ["sh"], "longer": [*command, "more"], "text": " ".join(command), "function": serving}
    for objects in (None, [serving], {"sh": "sh"}, other):
        with pytest.raises(InvalidDefinition) as wrong:
            Graph.parse(text, objects=objects)
        assert "graph 'calling', node 'call', command: a definition in a text starts no program" in str(wrong.value)
        assert "objects={'sh': ['sh', '-c', 'touch " in str(wrong.value)
    file = tmp_path / "graph"
    file.write_text(text)
    with pytest.raises(InvalidDefinition, match="a definition in a text starts no program"):
        Graph.load(file)


@pytest.mark.parametrize("whole", [list, tuple])
async def test_a_definition_in_a_text_starts_a_program_that_was_handed_in(source: StoreSource, whole: Any) -> None:
    text = graph_of(mcp("add", command=PROGRAM), {"a": 3, "b": 4}).dump()
    graph = Graph.parse(text, objects={"tools": whole(PROGRAM)})
    assert (await result(graph, source))["got"]["text"] == "7"


async def test_a_program_that_was_handed_in_is_not_for_actions(source: StoreSource) -> None:
    text = "graph: acting-with-a-program\nnodes:\n  go: {kind: action, action: handed}\n"
    graph = Graph.parse(text, objects={"tools": PROGRAM})
    async with Environment([graph], source) as env:
        await env.engine.records.put("action", "handed", {"kind": "mcp", "tool": "add", "command": PROGRAM})
        with pytest.raises(RunFailed, match="an action starts no program"):
            await env.engine.run(graph())


def test_a_kept_definition_with_a_program_is_read_back() -> None:
    graph = graph_of(mcp("add", command=PROGRAM), {"a": 3, "b": 4})
    assert "mcp add" in Graph.read_back(graph.kept()).to_mermaid()


def test_texts_and_pictures_have_it() -> None:
    command = ["python", "-c", "print('\\n')"]
    graph = graph_of(mcp("it's", command=command, secret_env={"K": "KEY"}), {"a": "input"})
    assert Graph.parse(graph.dump(), objects={"python": command}).fingerprint == graph.fingerprint
    assert "mcp it" in graph.to_mermaid()


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ("tool: add", "node 'call', url: an mcp node has either a url or a command"),
        ("tool: add, url: input, command: [x]", "node 'call', url: an mcp node has either a url or a command"),
        ("tool: add, command: [x], secret: K", "node 'call', secret: it is sent to a url"),
        ("tool: add, url: input, secret_env: {A: B}", "node 'call', secret_env: it is for a command"),
        ("tool: add, url: inpt", "node 'call', input.url: 'inpt' uses the unknown name"),
    ],
)
def test_what_is_wrong_is_found_when_the_graph_is_built(fields: str, why: str) -> None:
    with pytest.raises(InvalidDefinition) as wrong:
        Graph.parse("graph: bad\nnodes:\n  call: {kind: mcp, " + fields + "}\n")
    assert why in str(wrong.value)
