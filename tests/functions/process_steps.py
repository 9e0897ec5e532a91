"""Steps that run in worker processes, which find them here by name; and a place for tests to meet them."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Any

from msgspec import Struct

from perdure import Retry, current_step, resource, step, workflow
from perdure.errors import UnstorableValue

QUICK = Retry(attempts=3, initial=timedelta(milliseconds=1), jitter=0)
LONG = Retry(attempts=3, initial=timedelta(hours=1), jitter=0)

_kept: list[socket.socket] = []


def meet(port: int, word: str = "") -> str:
    """Show up at a Meetings, and wait there for a word. The connection ends with this process and not before."""
    connection = socket.create_connection(("127.0.0.1", port))
    _kept.append(connection)
    connection.sendall(f"{os.getpid()} {word}\n".encode())
    return connection.makefile().readline().strip()


class Guest:
    """A step in a process that waits for a word."""

    def __init__(self, pid: int, word: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.pid = pid
        self.word = word
        self.writer = writer
        self._reader = reader

    def say(self, word: str) -> None:
        self.writer.write(f"{word}\n".encode())

    async def gone(self) -> None:
        """Wait until its process has ended."""
        with suppress(ConnectionError):
            await self._reader.read()


class Meetings:
    """Where steps show up: `async with Meetings() as meetings:`, and hand `meetings.port` to the step."""

    port: int

    async def __aenter__(self) -> Meetings:
        self._arrivals: asyncio.Queue[Guest] = asyncio.Queue()
        self._guests: list[Guest] = []
        self._server = await asyncio.start_server(self._arrive, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.close()
        for guest in self._guests:
            guest.writer.close()
            with suppress(ConnectionError):
                await guest.writer.wait_closed()

    async def _arrive(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid, _, word = (await reader.readline()).decode().strip().partition(" ")
        guest = Guest(int(pid), word, reader, writer)
        self._guests.append(guest)
        self._arrivals.put_nowait(guest)

    async def next(self) -> Guest:
        return await self._arrivals.get()

    @property
    def nobody(self) -> bool:
        return self._arrivals.empty()


class Declined(Exception):
    """As people write them: the arguments are not those of the base class."""

    def __init__(self, card: str, cents: int) -> None:
        super().__init__(f"card {card} was declined for {cents}")
        self.card = card
        self.cents = cents


class Order(Struct):
    id: str
    amounts: list[int]
    at: datetime = datetime(2030, 1, 1, tzinfo=UTC)


@step(process=True)
def total(order: Order, *more: int, factor: int = 1) -> Order:
    return Order(order.id, [sum([*order.amounts, *more]) * factor], order.at)


@step(process=True)
def whereabouts() -> tuple[int, str]:
    import multiprocessing

    return os.getpid(), str(multiprocessing.current_process().name)


@step(process=True, retry=QUICK)
def visit(port: int, word: str = "") -> str:
    return meet(port, word or str(current_step().attempt))


@step(process=True, retry=QUICK)
def speak(port: int, count: int) -> str:
    """Says a few words, waits, and says one more; in its first attempt it dies instead."""
    me = current_step()
    for number in range(count):
        me.append("log", number)
    heard = meet(port, str(me.attempt))
    if me.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    me.append("log", heard)
    try:
        me.append("log", object())
    except UnstorableValue:
        me.append("log", "refused")
    return heard


@step(process=True, retry=LONG)
def visit_patiently(port: int) -> str:
    """Says what the attempt before said, and before it fails, what it heard."""
    me = current_step()
    word = meet(port, str(me.heartbeat_details))
    me.heartbeat({"heard": word})
    if me.attempt == 1:
        raise OSError("again")
    return word


@step(process=True, retry=QUICK)
def perform(what: str) -> Any:
    """All that can go wrong with a function."""
    match what:
        case "raise":
            raise Declined("c-1", 100)
        case "raise locally":

            class Local(Exception): ...

            raise Local("here") from KeyError("inner")
        case "stop":
            raise StopIteration(5)
        case "exit":
            raise SystemExit(3)
        case "interrupt":
            raise KeyboardInterrupt
        case "cancel":
            raise asyncio.CancelledError
        case "return an object":
            return object()
        case "die":
            os._exit(7)
        case "be killed":
            os.kill(os.getpid(), signal.SIGKILL)
        case "die once":
            if current_step().attempt == 1:
                os._exit(7)
            return os.getpid()
        case _:
            pass
    return what


@step(process=True, retry=Retry.never())
def leave_a_child(port: int) -> None:
    """Die, but leave a process behind that has all files open which this one had."""
    if os.fork() == 0:
        meet(port)
        os._exit(0)
    os._exit(7)


@step(process=True, retry=QUICK)
def wrong() -> int:
    return "no number"  # type: ignore[return-value]  # pyright: ignore[reportReturnType]


@step(process=True)
def describe() -> list[Any]:
    me = current_step()
    return [me.run_id, me.position, me.name, me.attempt, me.idempotency_key, me.heartbeat_details]


@step(process=True)
def use_resource() -> None:
    resource(Order)


@step(process=True, retry=QUICK)
def chatter(port: int) -> list[Any]:
    """Heartbeats faster than anybody wants to hear."""
    me = current_step()
    if me.attempt == 1:
        for number in range(10_000):
            me.heartbeat(number)
        os._exit(7) if meet(port) == "die" else None
        me.heartbeat("the last word")
        raise OSError("again")
    return [me.attempt, me.heartbeat_details]


@step(process=True, retry=QUICK, heartbeat_timeout=5)
def fall_silent(port: int) -> str:
    me = current_step()
    if me.attempt == 1:
        me.heartbeat("alive")
        return meet(port)
    return f"{me.attempt} after {me.heartbeat_details}"


@step(process=True)
def repeat(text: str) -> str:
    return text * 2


def plain(number: int) -> int:
    return number * os.getpid()


wrapped = step(process=True)(plain)


@step
def threaded() -> int:
    return os.getpid()


@step(process=True)
def replaced() -> str:
    return "the first of that name"


first_of_that_name = replaced


@step(process=True)  # type: ignore[no-redef]
def replaced() -> str:
    return "the second of that name"


@workflow
async def call(name: str, *args: Any) -> Any:
    """Any of the steps above."""
    return await globals()[name](*args)


@workflow
async def call_all(name: str, *args: Any) -> list[Any]:
    """One call for each argument, at the same time."""
    return list(await asyncio.gather(*[globals()[name](arg) for arg in args]))


@step(process=True, retry=Retry.never())
def open_missing(how: str) -> None:
    try:
        Path("no-such-file").read_text()
    except FileNotFoundError as error:
        if how == "group":
            raise ExceptionGroup("one", [error]) from None
        raise
