"""Half-open, slow and greedy connections: they end, and others are answered meanwhile. With both parsers of uvicorn."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
import pytest
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from perdure import Client
from perdure.http import ConnectionLimits, connections, make_token, server, serving
from perdure.storage.memory import MemoryStore
from tests.http.site import refused

HEAD = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n"
POST = b"POST /api/v1/runs HTTP/1.1\r\nHost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n"
FOR_EVER = ConnectionLimits(head_s=3600, body_s=3600, write_s=3600, idle_s=3600)

Connected = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@pytest.fixture(params=[H11Protocol, HttpToolsProtocol], ids=["h11", "httptools"], autouse=True)
def _parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "protocol", partial(connections.limited, request.param))


class Site:
    def __init__(self, url: str) -> None:
        self.url = url
        self._address = urlsplit(url)
        self._writers: list[asyncio.StreamWriter] = []

    async def connect(self, sends: bytes = b"") -> Connected:
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        self._writers.append(writer)
        writer.write(sends)
        return reader, writer

    async def is_alive(self) -> bool:
        async with httpx.AsyncClient(trust_env=False) as http:
            return (await http.get(f"{self.url}/health/live")).status_code == 200

    async def close(self) -> None:
        for writer in self._writers:
            writer.transport.abort()


@asynccontextmanager
async def site(limits: ConnectionLimits, **options: Any) -> AsyncGenerator[Site]:
    async with Client(MemoryStore()) as client, serving(client, port=0, limits=limits, **options) as url:
        here = Site(url)
        try:
            yield here
        finally:
            await here.close()


async def pour(writer: asyncio.StreamWriter, data: bytes) -> None:
    """Send the same again and again, until the connection is closed."""
    while True:
        writer.write(data)
        await writer.drain()
        await asyncio.sleep(0)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """What is left to read before the server closes the connection."""
    try:
        return await reader.read()
    except ConnectionResetError:
        return b""


@pytest.mark.parametrize("sends", [b"", b"GET ", HEAD, HEAD + b"x-slow: "], ids=["nothing", "verb", "some", "more"])
async def test_a_request_whose_head_does_not_arrive_is_given_up(sends: bytes) -> None:
    async with site(ConnectionLimits(head_s=0.05)) as here:
        reader, _ = await here.connect(sends)
        assert await ended(reader) == b""


async def test_the_head_of_a_second_request_has_to_arrive_in_time_too() -> None:
    async with site(ConnectionLimits(head_s=0.2, idle_s=3600)) as here:
        reader, writer = await here.connect(HEAD + b"\r\n")
        assert b"200" in await reader.readline()
        await reader.readuntil(b'{"status":"ok"}')
        writer.write(HEAD)
        assert await ended(reader) == b""


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    async with site(ConnectionLimits(body_s=0.05)) as here:
        reader, _ = await here.connect(POST + b"{")
        assert await ended(reader) == b""


async def test_a_head_that_does_not_end_is_refused() -> None:
    async with site(FOR_EVER) as here:
        reader, writer = await here.connect(HEAD)
        with pytest.raises(ConnectionError):
            await pour(writer, b"x-a: " + b"a" * 10_000 + b"\r\n")
        answer = await ended(reader)
        assert answer == b"" or answer.startswith((b"HTTP/1.1 431", b"HTTP/1.1 400"))
        assert await here.is_alive()


def head_of(bytes_count: int, *, path: bytes = b"/health/live") -> bytes:
    """A whole head of this size."""
    start = b"GET " + path + b" HTTP/1.1\r\nHost: localhost\r\nx-a: "
    return start + b"a" * (bytes_count - len(start) - 4) + b"\r\n\r\n"


async def test_a_head_that_is_too_large_is_refused_also_if_it_comes_whole() -> None:
    """And nothing that is behind it is looked at."""
    async with site(FOR_EVER) as here:
        for many in (80_000, 200_000, 1_000_000):
            reader, _ = await here.connect(head_of(many))
            assert not (await ended(reader)).startswith(b"HTTP/1.1 200")
        reader, _ = await here.connect(head_of(60_000) + HEAD + b"connection: close\r\n\r\n")
        assert (await ended(reader)).count(b"HTTP/1.1 200") == 2
        assert await here.is_alive()


async def test_a_head_that_is_a_little_too_large_is_told_so_as_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """With httptools, which does not bound a head by itself."""
    monkeypatch.setattr(server, "protocol", partial(connections.limited, HttpToolsProtocol))
    async with site(FOR_EVER) as here:
        reader, _ = await here.connect(head_of(66_000)[:-2])
        head, _, body = (await ended(reader)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 431")
        assert b"content-type: application/problem+json" in head
        assert msgspec.json.decode(body)["code"] == "head_too_large"


async def test_a_head_that_comes_while_another_is_answered_is_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With httptools, which reads on meanwhile; h11 reads nothing more until the answer is complete."""
    monkeypatch.setattr(server, "protocol", partial(connections.limited, HttpToolsProtocol))
    async with site(FOR_EVER) as here:
        reader, writer = await here.connect(b"GET /api/v1/runs:changes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"200" in await reader.readline()  # A stream, which does not end by itself.
        writer.write(HEAD)
        with pytest.raises(ConnectionError):
            await pour(writer, b"x-a: " + b"a" * 10_000 + b"\r\n")
        await ended(reader)
        assert await here.is_alive()


async def test_a_large_body_is_no_head() -> None:
    async with site(FOR_EVER) as here:
        body = b'{"workflow": "w", "id": "' + b"x" * 500_000 + b'"}'
        head = POST.replace(b"100", b"%d") % len(body)
        reader, _ = await here.connect(head + body + HEAD + b"connection: close\r\n\r\n")
        answers = await ended(reader)
        assert answers.startswith(b"HTTP/1.1 400")
        assert b"HTTP/1.1 200" in answers


@pytest.mark.parametrize("sends", [b"", HEAD], ids=["nothing", "some"])
async def test_half_open_connections_keep_nobody_out(sends: bytes, caplog: pytest.LogCaptureFixture) -> None:
    limits = ConnectionLimits(connections_max=20, head_s=3600, body_s=3600)
    async with site(limits) as here:
        opened = [await here.connect(sends) for _ in range(60)]
        for _ in range(10):
            assert await here.is_alive()
        gone = [await ended(reader) for reader, _ in opened[:35]]  # The oldest went first.
        assert set(gone) == {b""}
    said = [record.message for record in caplog.records if record.name == "perdure.http" and "closed" in record.message]
    assert len(said) == 1, said


async def test_requests_that_are_being_answered_are_not_closed_for_others() -> None:
    limits = ConnectionLimits(connections_max=3, head_s=3600)
    async with site(limits) as here, httpx.AsyncClient(trust_env=False) as http:
        request = http.build_request("GET", f"{here.url}/api/v1/runs:changes")
        streams = [await http.send(request, stream=True) for _ in range(3)]
        reader, _ = await here.connect(HEAD)
        assert await ended(reader) == b"", "there is no room"
        for stream in streams:
            assert not stream.is_closed
            await stream.aclose()


async def test_an_answer_that_nobody_reads_is_given_up() -> None:
    """A stream says something every now and then; a reader that takes nothing is let go of."""
    async with site(ConnectionLimits(write_s=0.05, idle_s=3600), poll_s=0.001) as here:
        _, writer = await here.connect()
        transport: Any = writer.transport
        transport.pause_reading()
        asked = b"GET /api/v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
        with pytest.raises(ConnectionError):
            await pour(writer, asked)
        assert await here.is_alive()


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


async def test_what_strangers_cause_is_logged_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    logger, records = logging.getLogger("uvicorn.error"), Records()
    caplog.set_level(logging.INFO, "uvicorn.error")
    logger.addHandler(records)
    try:
        async with site(FOR_EVER) as here:
            for _ in range(50):
                reader, _ = await here.connect(b"\x16\x03\x01 no HTTP\r\n\r\n")
                await ended(reader)
    finally:
        logger.removeHandler(records)
    assert records.said.count("Invalid HTTP request received.") == 1


# Streams.


async def test_a_token_has_its_share_of_the_streams() -> None:
    async with Client(MemoryStore()) as client:
        tokens = [await make_token(client, name, "read") for name in ("a", "b")]
        async with (
            serving(client, port=0, streams_max=3, token_streams_max=2) as url,
            httpx.AsyncClient(base_url=url, trust_env=False) as http,
        ):

            def ask(token: str) -> Callable[[], Any]:
                headers = {"authorization": f"Bearer {token}"}
                return lambda: http.send(
                    http.build_request("GET", "/api/v1/runs:changes", headers=headers), stream=True
                )

            first, second = (ask(token) for token in tokens)
            opened = [await first(), await first()]
            over = await first()
            await over.aread()
            refused(over, 429, "too_many_streams")
            opened.append(await second())
            over = await second()
            await over.aread()
            refused(over, 429, "too_many_streams")
            for stream in opened:
                await stream.aclose()


async def test_a_stream_that_nobody_reads_gives_its_place_back() -> None:
    """The place is taken when the request is admitted, and whoever asks may be gone before anything is sent."""
    asked = b"GET /api/v1/runs:changes HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with site(FOR_EVER, streams_max=1) as here:
        for _ in range(20):
            _, writer = await here.connect(asked)
            await writer.drain()
            writer.transport.abort()
        async with httpx.AsyncClient(trust_env=False) as http:
            while "perdure_http_streams 0\n" not in (await http.get(f"{here.url}/metrics")).text:
                pass
