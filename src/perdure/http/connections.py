"""Limits of connections: how many may be open, and how long a request may take to arrive.

Uvicorn itself waits for the head and the body of a request without a time limit. So without limits, a few hundred
sockets that send nothing, or a byte now and then, would keep all other clients out.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import sys
from collections.abc import Generator
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import h11
from msgspec import Struct

from perdure.http.problems import MEDIA_TYPE, OWN, Refused, encoded, own
from perdure.values.arguments import check_fields

log = logging.getLogger("perdure.http")

_SAID_EVERY_S: Final = 60.0
_FILES_SPARE: Final = 64  # files for the process itself: the store, logs, modules that are imported late
_CONNECTIONS_MIN: Final = 16
_PIECE_BYTES: Final = 8 * 1024
_HEAD_END: Final = re.compile(rb"\n\r?\n")
_TOO_LARGE: Final = encoded(own(Refused("head_too_large", OWN["head_too_large"][1])))
_TOO_LARGE_ANSWER: Final = (
    b"HTTP/1.1 431 Request Header Fields Too Large\r\n"
    b"content-type: %b\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
    % (MEDIA_TYPE.encode(), len(_TOO_LARGE), _TOO_LARGE)
)
_NOISY: Final = {
    "uvicorn.error": ("Invalid HTTP request received", "Unsupported upgrade request", "No supported WebSocket"),
    "asyncio": ("socket.accept() out of system resource",),
}


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """The limits for the connections of a server.

    `head_s` and `body_s` bound how long a request's head and body may take to arrive. `write_s` bounds how long a
    reader may leave a response unread. `idle_s` bounds how long a connection is kept open between requests. Raises
    InvalidArguments.
    """

    connections_max: int = 500
    backlog_max: int = 256
    head_bytes_max: int = 64 * 1024
    head_s: float = 10
    body_s: float = 60
    write_s: float = 60
    idle_s: float = 5

    def __post_init__(self) -> None:
        check_fields(self, positive=True)


class Connections:
    """The open connections of one server.

    If there are too many connections, the connection that has waited longest for the head of a request is closed. If no
    connection waits for a head, the new connection is closed. A connection whose request is being answered is never
    closed for this reason.
    """

    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._max = min(limits.connections_max, _room_for_files())
        self._open = 0
        self._waiting: dict[Any, None] = {}  # connections that wait for the head of a request; oldest first
        self._reported = Rarely()

    def opened(self, connection: Any) -> None:
        """Count a new connection. If there are too many, close one."""
        self._open += 1
        if self._open > self._max:
            oldest = next(iter(self._waiting), connection)
            self.refuse(oldest, f"more than {self._max} connections were open")
        self._waiting[connection] = None

    def closed(self, connection: Any) -> None:
        """Forget a connection that is closed."""
        self._open -= 1
        self._waiting.pop(connection, None)

    def waits(self, connection: Any, *, for_head: bool) -> None:
        """Note whether a connection waits for the head of a request."""
        if not for_head:
            self._waiting.pop(connection, None)
        elif connection not in self._waiting:
            self._waiting[connection] = None

    def end(self) -> None:
        """Close the connections that have not sent a request, because the server has stopped."""
        for connection in list(self._waiting):
            connection.transport.abort()

    def refuse(self, connection: Any, why: str, answer: bytes = b"") -> None:
        """Close a connection. If a response is given, send it first. The reason is logged at most once a minute."""
        self._waiting.pop(connection, None)
        if answer:
            connection.transport.write(answer)
            connection.transport.close()
        else:
            connection.transport.abort()
        if (count := self._reported.count(why.partition(" ")[0])) is not None:
            log.warning("%s, so a connection was closed (%d in the last minute)", why, count)


class Rarely:
    """Counts events of each kind, so that each kind can be logged once a minute."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}  # by kind: when it was last logged, and its count since then

    def count(self, what: str) -> int | None:
        """Count one more event.

        Return how often it has happened since it was last logged. Return None if it must not be logged yet.
        """
        now = monotonic()
        told_at, unreported = self._seen.get(what, (-_SAID_EVERY_S, 0))
        if now - told_at < _SAID_EVERY_S:
            self._seen[what] = (told_at, unreported + 1)
            return None
        self._seen[what] = (now, 0)
        return unreported + 1


if TYPE_CHECKING:
    from uvicorn.protocols.http.h11_impl import H11Protocol as _Protocol
else:
    _Protocol = object


class _Limited(_Protocol):
    """Adds the limits to a protocol of uvicorn."""

    _connections: Connections
    _timer: asyncio.TimerHandle | None = None
    _writing: asyncio.TimerHandle | None = None
    _phase: str = ""
    _head_bytes: int = 0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._enter("head")
        self._connections.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._enter("")
        self._stop_writing()
        self._connections.closed(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        # The parser gets small pieces. So it never keeps much more of a head in memory than the limit allows.
        for at in range(0, len(data), _PIECE_BYTES):
            self._piece_received(data[at : at + _PIECE_BYTES])
            if self.transport.is_closing():
                return

    def _piece_received(self, piece: bytes) -> None:
        before: Any = self.cycle
        super().data_received(piece)
        if self.transport.is_closing():
            return
        cycle: Any = self.cycle  # None before the first request, although its annotation says otherwise
        is_answered = True
        if cycle is None or cycle.response_complete:
            self._enter("head")
        else:
            is_answered = False
            self._enter("body" if cycle.more_body else "answer")
        # A head counts too if it arrives while the previous request is being answered.
        self._head_bytes = self._head_bytes + len(piece) if cycle is before and self._is_in_head() else 0
        if self._head_bytes > self._connections.limits.head_bytes_max:
            self._refuse_head(_TOO_LARGE_ANSWER if is_answered else b"")

    def _is_in_head(self) -> bool:
        """Return whether the parser waits for a head, or has read only a part of a head."""
        conn: Any = getattr(self, "conn", None)  # the attribute of h11's protocol
        if conn is not None:
            return bool(conn.their_state is h11.IDLE)
        scope: Any = self.scope
        return scope is None or "path" not in scope  # The path is set once the head is complete.

    def _refuse_head(self, answer: bytes) -> None:
        why = f"the head of a request was larger than {self._connections.limits.head_bytes_max} bytes"
        self._connections.refuse(self, why, answer)

    def on_response_complete(self) -> None:
        conn: Any = getattr(self, "conn", None)
        if conn is not None:
            # h11 has kept the bytes of the next request that have already arrived. Now it parses all of them at once.
            early: bytes = conn.trailing_data[0]
            bytes_max = self._connections.limits.head_bytes_max
            if len(early) > bytes_max and _HEAD_END.search(early, 0, bytes_max) is None:
                self._refuse_head(_TOO_LARGE_ANSWER)
                return
        self._enter("")
        # From now on, this connection may be closed if there are too many connections.
        self._connections.waits(self, for_head=True)
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._writing is None:
            self._writing = self.loop.call_later(self._connections.limits.write_s, self._unread)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop_writing()

    def _enter(self, phase: str) -> None:
        """Enter a phase of a request. `head` and `body` must end in time."""
        if phase == self._phase:
            return
        self._phase = phase
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        limits = self._connections.limits
        if phase in ("head", "body"):
            within_s = limits.head_s if phase == "head" else limits.body_s
            self._timer = self.loop.call_later(within_s, self._late)
        self._connections.waits(self, for_head=phase == "head")

    def _late(self) -> None:
        self._connections.refuse(self, f"{self._phase} of a request did not arrive in time")

    def _unread(self) -> None:
        self._connections.refuse(self, "unread response: the client did not read it in time")

    def _stop_writing(self) -> None:
        if self._writing is not None:
            self._writing.cancel()
            self._writing = None


def protocol(connections: Connections) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with these limits. It is the protocol for httptools if that is installed, otherwise for
    h11.
    """
    try:
        from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol as Base
    except ImportError:
        from uvicorn.protocols.http.h11_impl import H11Protocol as Base  # type: ignore[assignment]
    return limited(Base, connections)


def limited(base: type[asyncio.Protocol], connections: Connections) -> type[asyncio.Protocol]:
    """Return a protocol of uvicorn with these limits."""
    made: type[asyncio.Protocol] = type(f"Limited{base.__name__}", (_Limited, base), {"_connections": connections})
    return made


class _Quieter(logging.Filter):
    """A log filter. Messages that anybody can cause from outside pass only once a minute."""

    def __init__(self, noise: tuple[str, ...]) -> None:
        super().__init__()
        self._noise = noise
        self._reported = Rarely()

    def filter(self, record: logging.LogRecord) -> bool:
        for start in self._noise:
            if str(record.msg).startswith(start):
                return self._reported.count(start) is not None
        return True


@contextlib.contextmanager
def quieter_logs() -> Generator[None]:
    """In this block, limit log messages of uvicorn and asyncio that strangers can cause to one per minute."""
    filters = {logging.getLogger(name): _Quieter(noise) for name, noise in _NOISY.items()}
    for logger, quieter in filters.items():
        logger.addFilter(quieter)
    try:
        yield
    finally:
        for logger, quieter in filters.items():
            logger.removeFilter(quieter)


def _room_for_files() -> int:
    """Return how many connections this process may have. Some files are reserved for other uses."""
    if sys.platform == "win32":
        return sys.maxsize
    import resource

    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return sys.maxsize
    return max(_CONNECTIONS_MIN, soft - _FILES_SPARE)


__all__ = ["ConnectionLimits", "Connections", "limited", "protocol", "quieter_logs"]
