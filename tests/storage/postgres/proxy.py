"""A way to the database that a test can cut: a proxy on loopback."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Literal

Moment = Literal["before", "after"]
Fault = Literal["cut", "stall", "hold"]


class Proxy:
    """Passes everything on, until a test says where the line is cut: when a client of some purpose next says a word,
    before the server hears it, or after the server has answered, and before the client hears that.

    A line that stalls is not cut: nothing passes on it any more, and neither end hears of it. With `hold` no line
    passes anything on until `release`."""

    def __init__(self, port: int) -> None:
        self._server_port = port
        self.port = 0
        self.cuts = 0
        self.held = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self._fault: tuple[str, bytes, Moment, Fault] | None = None
        self._skip = 0
        self._tasks: set[asyncio.Task[None]] = set()

    def cut(self, purpose: str, word: str, moment: Moment, *, skip: int = 0) -> None:
        """After so many others that have the word in them."""
        self._fault = (f"perdure {purpose}", word.encode(), moment, "cut")
        self._skip = skip

    def stall(self, purpose: str, word: str, moment: Moment) -> None:
        self._fault = (f"perdure {purpose}", word.encode(), moment, "stall")

    def hold(self, purpose: str, word: str, moment: Moment = "after") -> None:
        self._fault = (f"perdure {purpose}", word.encode(), moment, "hold")

    def freeze(self) -> None:
        """Pass nothing on, on any line, until `release`."""
        self.gate.clear()

    def release(self) -> None:
        self.gate.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        line = _Line(self)
        ways = [
            asyncio.ensure_future(line.requests(reader, there_writer)),
            asyncio.ensure_future(line.answers(there_reader, writer)),
        ]
        self._tasks.update(ways)
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for way in ways:
            way.cancel()
        await asyncio.wait(ways)
        for end in (writer, there_writer):
            end.transport.abort()

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def falls_due(self, purpose: bytes, data: bytes) -> tuple[Moment, Fault] | None:
        if self._fault is not None and self._fault[0].encode() in purpose and self._fault[1] in data:
            if self._skip:
                self._skip -= 1
                return None
            _, _, moment, fault = self._fault
            self._fault = None
            self.cuts += 1
            return moment, fault
        return None


class _Line:
    """One connection."""

    def __init__(self, proxy: Proxy) -> None:
        self._proxy = proxy
        self._purpose = b""  # the first words of a client, which have its application_name
        self._is_deaf = False
        self._is_stalled = False

    async def requests(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if b"application_name" in data:
                    self._purpose = data
                moment, fault = self._proxy.falls_due(self._purpose, data) or (None, None)
                if fault == "cut":
                    self._is_deaf = True
                    if moment == "before":
                        return
                elif fault == "stall":
                    self._is_stalled = True
                elif fault == "hold":
                    self._proxy.gate.clear()
                    self._proxy.held.set()
                if moment != "after":
                    await self._proxy.gate.wait()
                if moment == "after" or not self._is_stalled:
                    writer.write(data)
                    await writer.drain()
        await self._linger()

    async def answers(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if self._is_deaf:
                    return
                await self._proxy.gate.wait()
                if not self._is_stalled:
                    writer.write(data)
                    await writer.drain()
        await self._linger()

    async def _linger(self) -> None:
        """One end has gone. The other hears of it, unless the line has stalled."""
        if self._is_stalled:
            await asyncio.get_running_loop().create_future()


@asynccontextmanager
async def proxy_to(url: str, port: int) -> AsyncGenerator[tuple[Proxy, str]]:
    """A proxy to the server at a port, and the URL that leads through it."""
    proxy = Proxy(port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    try:
        yield proxy, url.replace(f":{port}/", f":{proxy.port}/")
    finally:
        server.close()
        await proxy.end()


@asynccontextmanager
async def tls_to(url: str, port: int, context: ssl.SSLContext) -> AsyncGenerator[str]:
    """The URL of a server that speaks TLS: what it hears it tells the one at a port, which has been built without."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readexactly(8)  # the request for TLS, the same from every client
            writer.write(b"S")
            await writer.start_tls(context)
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", port)
            line = _Line(Proxy(port))
            ways = [line.requests(reader, there_writer), line.answers(there_reader, writer)]
            await asyncio.wait([asyncio.ensure_future(way) for way in ways], return_when=asyncio.FIRST_COMPLETED)
            there_writer.transport.abort()
        except (OSError, asyncio.IncompleteReadError):
            pass  # It does not trust us.
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    own_port = server.sockets[0].getsockname()[1]
    try:
        yield url.replace(f":{port}/", f":{own_port}/")
    finally:
        server.close()
