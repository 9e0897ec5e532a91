"""Where nodes may connect to, what they send there, and how much they take."""

from __future__ import annotations

import gzip
import ipaddress
import socket
import threading
import tracemalloc
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from perdure import Engine, Retry
from perdure.errors import HostDenied, HttpFailed, LlmFailed, McpFailed, Misuse, RunFailed, SecretNotFound
from perdure.graph import Graph, Network, Secrets, http, llm, mcp
from perdure.models.graphs.network import AnswerTooLarge, read_bounded
from perdure.storage.memory import MemoryStore

Answering = Callable[[BaseHTTPRequestHandler], tuple[dict[str, str], bytes]]


@contextmanager
def answering(answer: Answering) -> Iterator[tuple[str, list[dict[str, str]]]]:
    """A server on this machine; its address, and the headers of what it was asked."""
    asked: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append({name.lower(): value for name, value in self.headers.items()})
            headers, body = answer(self)
            self.send_response(int(headers.pop(":status", "200")))
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - so it is called there

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", asked
        finally:
            server.shutdown()
            thread.join()


def hello(_: BaseHTTPRequestHandler) -> tuple[dict[str, str], bytes]:
    return {"content-type": "text/plain"}, b"hello"


def asking(url: str, **options: Any) -> Graph[Any, Any]:
    graph: Graph[Any, Any] = Graph("asking")
    graph.node("ask", http(f"'{url}'", **options), retry=Retry.never())
    graph.output("nodes.ask.body")
    return graph


async def run(graph: Graph[Any, Any], *resources: Any) -> Any:
    given = {type(one): lambda one=one: one for one in resources}
    async with Engine(MemoryStore(), workflows=[graph], resources=given) as engine:
        return await engine.run(graph())


async def failure(graph: Graph[Any, Any], *resources: Any) -> BaseException | None:
    with pytest.raises(RunFailed) as failed:
        await run(graph, *resources)
    return failed.value.__cause__


@pytest.mark.parametrize(
    "host",
    ["127.0.0.1", "localhost", "[::1]", "[::ffff:127.0.0.1]", "0.0.0.0", "2130706433", "10.0.0.1", "169.254.169.254"],
)
@pytest.mark.parametrize("kind", ["http", "llm", "mcp"])
async def test_this_machine_and_private_networks_are_denied(host: str, kind: str) -> None:
    url = f"http://{host}:9"
    graph: Graph[Any, Any] = Graph("asking")
    kinds: dict[str, Any] = {
        "http": http(f"'{url}'"),
        "llm": llm("m", "hello", base_url=url),
        "mcp": mcp("tool", url=f"'{url}'"),
    }
    graph.node("ask", kinds[kind], retry=Retry.never())
    error = await failure(graph, Network())
    assert isinstance(error, HostDenied), error
    assert "allow it" in str(error)


async def test_what_is_allowed_is_asked() -> None:
    with answering(hello) as (url, _):
        for allow in (["127.0.0.1"], ["127.0.0.0/8"], ["10.0.0.1", "127.0.0.1"]):
            assert await run(asking(url), Network(allow=allow)) == "hello"
        assert await run(asking(url.replace("127.0.0.1", "localhost")), Network(allow=["localhost"])) == "hello"
        assert isinstance(await failure(asking(url), Network(allow=["127.0.0.1"], deny=["127.0.0.0/8"])), HostDenied)


async def test_the_environment_allows_and_denies(monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(hello) as (url, _):
        assert await run(asking(url)) == "hello"
        monkeypatch.setenv("PERDURE_NETWORK_DENY", "10.0.0.0/8, 127.0.0.1")
        assert isinstance(await failure(asking(url)), HostDenied)
        monkeypatch.delenv("PERDURE_NETWORK_DENY")
        monkeypatch.setenv("PERDURE_NETWORK_ALLOW", "")
        assert isinstance(await failure(asking(url)), HostDenied)
        monkeypatch.setenv("PERDURE_NETWORK_ALLOW", "http://localhost")
        assert isinstance(await failure(asking(url)), Misuse)


def test_names_addresses_and_ranges() -> None:
    network = Network(allow=["*.example.org", "Shop.Test."], deny=["evil.example.org"], only_allowed=True)
    outside = ipaddress.ip_address("93.184.216.34")
    network.check("a.b.EXAMPLE.org", outside)
    network.check("shop.test", ipaddress.ip_address("127.0.0.1"))
    for host in ("example.org", "evil.example.org", "other.test", "notexample.org"):
        with pytest.raises(HostDenied):
            network.check(host, outside)
    Network().check("other.test", outside)
    for wrong in ("", "http://x", "a b", "x*", "10.0.0.0/99"):
        with pytest.raises(Misuse):
            Network(allow=[wrong])


@pytest.mark.parametrize(
    "text",
    [
        "64:ff9b::10.0.0.1",
        "64:ff9b::127.0.0.1",
        "64:ff9b:1::1",
        "::127.0.0.1",
        "::ffff:127.0.0.1",
        "::ffff:0:127.0.0.1",
        "2002:7f00:1::",
        "2001::1",
        "::",
        "::1",
        "::2",
        "fe80::1",
        "fec0::1",
        "fd00::1",
        "ff02::1",
        "4000::1",
        "0.0.0.0",
        "100.64.0.1",
        "192.0.0.8",
        "192.0.0.200",
        "3fff::1",
        "5f00::1",
        "224.0.0.1",
        "239.1.2.3",
        "240.0.0.1",
        "255.255.255.255",
    ],
)
def test_an_address_that_is_not_public_is_denied_in_every_form(text: str) -> None:
    address = ipaddress.ip_address(text)
    with pytest.raises(HostDenied, match="allow it"):
        Network().check("somewhere.test", address)
    Network(allow=["somewhere.test"]).check("somewhere.test", address)


def test_an_ipv4_address_inside_an_ipv6_address_counts_as_what_it_is() -> None:
    for text in ("93.184.216.34", "2606:2800:220:1::1", "64:ff9b::93.184.216.34", "::ffff:93.184.216.34"):
        Network().check("public.test", ipaddress.ip_address(text))
    wrapped = ["64:ff9b::10.0.0.1", "::ffff:10.0.0.1", "::10.0.0.1", "::ffff:0:10.0.0.1", "2002:a00:1::"]
    for address in map(ipaddress.ip_address, wrapped):
        for allowed in ("10.0.0.0/8", str(address)):
            Network(allow=[allowed]).check("inner.test", address)
        for allow, deny in (["10.0.0.1"], ["10.0.0.0/8"]), (["10.0.0.1"], [str(address)]), (["::/0"], []):
            with pytest.raises(HostDenied):
                Network(allow=allow, deny=deny).check("inner.test", address)
    Network(allow=["::1"]).check("this.test", ipaddress.ip_address("::1"))


async def test_the_address_that_was_checked_is_the_one_that_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name whose second look-up would lead elsewhere is looked up once."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def rebinding(host: Any, *args: Any, **options: Any) -> Any:
        if host == "rebinding.test":
            looked_up.append(str(host))
            return real("127.0.0.1" if len(looked_up) == 1 else "127.0.0.2", *args, **options)
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    with answering(hello) as (url, asked):
        there = url.replace("127.0.0.1", "rebinding.test")
        assert await run(asking(there), Network(allow=["127.0.0.1"])) == "hello"
        assert asked[0]["host"].startswith("rebinding.test:")
        assert looked_up == ["rebinding.test"]
        assert isinstance(await failure(asking(there), Network(allow=["127.0.0.1"])), HostDenied)


OTHER_FORMS = [
    "evil\u3002example",
    "EVIL.example.",
    "evil%2eexample",
    "b\u00fccher.example",
    "xn--bcher-kva.example",
    "a.m\u00fcller.example",
    "2130706433",
    "0xA9FEA9FE",
    "0251.0376.0124776",
    "127.1",
    "127.0.0.1.",
    "[::ffff:10.0.0.1]",
]


@pytest.mark.parametrize(
    ("kind", "host"),
    [("http", host) for host in OTHER_FORMS]
    + [(kind, host) for kind in ("llm", "mcp") for host in ("evil\u3002example", "2130706433")],
)
async def test_a_proxy_is_not_asked_for_what_is_denied(kind: str, host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(variable, raising=False)
    denying = Network(deny=["evil.example", "b\u00fccher.example", "*.m\u00fcller.example"])
    with answering(hello) as (proxy, asked):
        for variable in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(variable, proxy)
        assert await run(asking("http://good.example/"), denying) == "hello"
        assert len(asked) == 1
        url = f"http://{host}/"
        kinds: dict[str, Any] = {
            "http": http(f"'{url}'"),
            "llm": llm("m", "hello", base_url=url),
            "mcp": mcp("tool", url=f"'{url}'"),
        }
        graph: Graph[Any, Any] = Graph("asking")
        graph.node("ask", kinds[kind], retry=Retry.never())
        error = await failure(graph, denying)
    assert isinstance(error, HostDenied), error
    assert len(asked) == 1


def test_names_are_compared_in_the_form_in_which_they_are_looked_up() -> None:
    for entry in ("b\u00fccher.example", "B\u00dcCHER.example", "xn--bcher-kva.example"):
        network = Network(allow=[entry], only_allowed=True)
        network.check("xn--bcher-kva.example", None)
        network.check("b\u00fccher\u3002example", None)
        with pytest.raises(HostDenied):
            network.check("bucher.example", None)
    with pytest.raises(Misuse, match="is no host"):
        Network(deny=["\u2603\u200d.example"])


@pytest.mark.parametrize("kind", ["http", "llm", "mcp"])
async def test_a_name_that_cannot_be_looked_up_is_not_looked_up_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's own look-up would be a second one, and nothing checks what that finds."""
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def failing_once(host: Any, *args: Any, **options: Any) -> Any:
        if host in ("failing-once.test", b"failing-once.test"):
            looked_up.append(str(host))
            if len(looked_up) == 1:
                raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
            return real("127.0.0.1", *args, **options)
        return real(host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", failing_once)
    with answering(hello) as (url, asked):
        there = url.replace("127.0.0.1", "failing-once.test")
        kinds: dict[str, Any] = {
            "http": http(f"'{there}'"),
            "llm": llm("m", "hello", base_url=there),
            "mcp": mcp("tool", url=f"'{there}'"),
        }
        graph: Graph[Any, Any] = Graph("asking")
        graph.node("ask", kinds[kind], retry=Retry.never())
        error = await failure(graph, Network())
    assert asked == []
    assert looked_up == ["failing-once.test"]
    assert isinstance(error, HttpFailed | LlmFailed | McpFailed), error
    assert "Temporary failure in name resolution" in str(error)


# How much is taken.


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "identity"])
async def test_an_answer_is_unpacked(encoding: str) -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}
    pack = packs[encoding]
    answer = {"content-type": "application/json", "content-encoding": encoding}
    with answering(lambda _: (dict(answer), pack(b'{"tide": "high"}'))) as (url, _):
        assert await run(asking(url)) == {"tide": "high"}


@pytest.mark.parametrize("encoding", ["gzip", "identity"])
async def test_an_answer_that_is_too_large_is_not_read(encoding: str) -> None:
    body = b"\0" * (64 * 1024 * 1024)
    sent = gzip.compress(body, 1) if encoding == "gzip" else body
    with answering(lambda _: ({"content-encoding": encoding}, sent)) as (url, _):
        error = await failure(asking(url))
    assert isinstance(error, HttpFailed)
    assert "more than 16,777,216 bytes" in str(error)


class OneChunk:
    """An answer of httpx that comes in one piece."""

    def __init__(self, body: bytes) -> None:
        self.headers = {"content-encoding": "gzip"}
        self._body = body

    async def aiter_raw(self) -> AsyncIterator[bytes]:
        yield self._body


async def test_what_is_packed_well_does_not_fill_the_memory() -> None:
    packed = gzip.compress(b"\0" * (64 * 1024 * 1024), 9)
    tracemalloc.start()
    try:
        with pytest.raises(AnswerTooLarge, match="more than 1,000,000 bytes"):
            await read_bounded(OneChunk(packed), 1_000_000)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize(("encoding", "why"), [("br", "its encoding is 'br'"), ("gzip", "cannot be unpacked")])
async def test_what_cannot_be_unpacked_is_a_failure(encoding: str, why: str) -> None:
    with answering(lambda _: ({"content-encoding": encoding}, b"what?")) as (url, _):
        error = await failure(asking(url))
    assert isinstance(error, HttpFailed)
    assert why in str(error)


async def test_a_redirect_is_not_followed() -> None:
    with answering(hello) as (inner, asked):
        redirect = {":status": "302", "location": inner}
        with answering(lambda _: (dict(redirect), b"")) as (url, _):
            assert await run(asking(url)) == ""
    assert asked == []


# Secrets.


async def test_only_what_is_meant_for_it_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_KEY", "not-for-graphs")
    with answering(hello) as (url, asked):
        error = await failure(asking(url, secret="AWS_KEY"))
        assert isinstance(error, SecretNotFound)
        assert "set PERDURE_SECRET_AWS_KEY" in str(error)
        assert await run(asking(url, secret="AWS_KEY"), Secrets(names=["AWS_KEY"])) == "hello"
        monkeypatch.setenv("PERDURE_SECRET_AWS_KEY", "for-graphs")
        assert await run(asking(url, secret="AWS_KEY")) == "hello"
    assert [one["authorization"] for one in asked] == ["Bearer not-for-graphs", "Bearer for-graphs"]


async def test_a_secret_that_is_bound_to_hosts_is_sent_to_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PERDURE_SECRET_KEY", "4711-4711")
    bound = Secrets(hosts={"KEY": ["api.example.org"]})
    with answering(hello) as (url, asked):
        error = await failure(asking(url, secret="KEY"), bound)
        assert isinstance(error, HostDenied)
        assert "is for api.example.org only" in str(error)
        monkeypatch.setenv("PERDURE_SECRET_KEY_HOSTS", "api.example.org, LOCALHOST")
        assert isinstance(await failure(asking(url, secret_headers={"X-Key": "KEY"})), HostDenied)
        assert asked == []
        assert await run(asking(url.replace("127.0.0.1", "localhost"), secret="KEY")) == "hello"


async def test_a_provider_of_ones_own_need_not_know_of_hosts() -> None:
    class Vault(Secrets):
        def __init__(self) -> None: ...

        async def get(self, name: str) -> str | None:
            return f"{name}-of-the-vault"

    with answering(hello) as (url, asked):
        graph = asking(url, secret="KEY")
        async with Engine(MemoryStore(), workflows=[graph], resources={Secrets: Vault}) as engine:
            assert await engine.run(graph()) == "hello"
    assert asked[0]["authorization"] == "Bearer KEY-of-the-vault"
