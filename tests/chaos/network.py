"""Ways to a server on loopback, one for each process, whose connections can be cut, delayed and left half-open."""

from __future__ import annotations

import asyncio
import random
import re
from contextlib import suppress

READ_BYTES = 65536
PURPOSE = re.compile(rb"perdure (\w+)\0")


class Line:
    """One connection through a way. A half-open one passes nothing on, and neither end hears of it."""

    def __init__(self, way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._way = way
        self._reader = reader
        self._writer = writer
        self._there: asyncio.StreamWriter | None = None
        self._purpose = ""  # what the client says that it is for
        self.is_open = True
        self.is_silent = False

    async def run(self) -> None:
        try:
            there_reader, self._there = await asyncio.open_connection("127.0.0.1", self._way.server_port)
        except OSError:
            self.cut()
            return
        both = (self._pass(self._reader, self._there), self._pass(there_reader, self._writer))
        await asyncio.wait([asyncio.ensure_future(one) for one in both])
        self.cut()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(READ_BYTES):
                if self._way.delay_s:
                    await asyncio.sleep(self._way.delay_s)
                if not self._purpose and (said := PURPOSE.search(data)):
                    self._purpose = said[1].decode()
                if self._purpose in self._way.lost:
                    self.is_silent = True
                if not self.is_silent:
                    writer.write(data)
                    await writer.drain()
        if self.is_silent:
            while self.is_open:
                await asyncio.sleep(0.1)
        self.cut()

    def cut(self) -> None:
        """Both ends hear of it at once. Idempotent."""
        self.is_open = False
        for end in (self._writer, self._there):
            if end is not None:
                end.transport.abort()


class Way:
    """From one process to the server."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self.delay_s = 0.0
        self.lost: frozenset[str] = frozenset()  # the purposes of connections that are half-open, new ones too
        self._lines: set[Line] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = Line(self, reader, writer)
        self._lines.add(line)
        try:
            await line.run()
        finally:
            self._lines.discard(line)

    @property
    def lines(self) -> list[Line]:
        return [line for line in self._lines if line.is_open]

    def cut(self, chance: random.Random, share: float) -> int:
        """Cut about so many of its connections; how many."""
        chosen = [line for line in self.lines if chance.random() < share]
        for line in chosen:
            line.cut()
        return len(chosen)

    def silence(self, chance: random.Random, share: float) -> list[Line]:
        """Leave about so many half-open."""
        chosen = [line for line in self.lines if chance.random() < share]
        for line in chosen:
            line.is_silent = True
        return chosen

    def heal(self) -> None:
        """What is half-open is noticed at last, and nothing is delayed any more."""
        self.delay_s, self.lost = 0.0, frozenset()
        for line in self.lines:
            if line.is_silent:
                line.cut()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for line in self.lines:
            line.cut()
