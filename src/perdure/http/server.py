"""The server. It checks that its address is safe, listens, and serves the application."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncGenerator
from typing import Any

import uvicorn

from perdure.client import Client
from perdure.engine import AnyClient
from perdure.errors import Misuse
from perdure.http.access import is_loopback
from perdure.http.app import App, create_app
from perdure.http.connections import ConnectionLimits, Connections, protocol, quieter_logs
from perdure.http.tls import Tls, secured, server_context
from perdure.http.tokens import has_tokens, has_valid_tokens
from perdure.ports import Store
from perdure.values.arguments import checked

log = logging.getLogger("perdure.http")

_GRACE_S = 10


class _Server(uvicorn.Server):
    """A uvicorn server that ends all streams when it stops. Without this, it would wait until the streams end."""

    def __init__(self, config: uvicorn.Config, app: App) -> None:
        super().__init__(config)
        self._app = app

    async def run_on(self, listening: socket.socket) -> None:
        """Serve until the server is stopped. Unlike `serve`, this installs no signal handlers."""
        await self._serve([listening])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.streams.end()
        await super().shutdown(sockets)


async def check_bind(client: AnyClient, host: str, startup_token: str | None = None) -> str:
    """Return a text for the log that says who can use the API at this address.

    Raises Misuse if there is no valid token and the address can be reached from other machines.
    """
    if await has_valid_tokens(client):
        return "every request needs a token"
    if not is_loopback(host):
        raise Misuse(
            f"the API does not listen on {host!r} without a token: everybody who reaches it could do everything. "
            "Create one with `perdure tokens create ops --scope admin`, or listen on 127.0.0.1"
        )
    if await has_tokens(client):
        return "no token is valid: nobody gets in before a new one is created"
    if startup_token is not None:
        return "there are no tokens: on this machine, everybody who has the start-up token may do everything"
    return "there are no tokens: everybody on this machine may do everything, and nobody else can reach it"


@contextlib.asynccontextmanager
@checked
async def serving(
    client_or_store: AnyClient | str | Store,
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    limits: ConnectionLimits | None = None,
    tls: Tls | None = None,
    **options: Any,
) -> AsyncGenerator[str]:
    """Serve the API while the block runs, and yield its URL.

    With port 0, any free port is used. `limits` bound the connections. With `tls`, the server accepts only TLS. All
    other options are passed to `create_app`.

    Raises Misuse if there is no valid token and `host` can be reached from other machines, or if a file of `tls` cannot
    be used. Raises OSError if the port is taken.
    """
    context = None if tls is None else server_context(tls)
    async with contextlib.AsyncExitStack() as stack:
        client = client_or_store if isinstance(client_or_store, AnyClient) else Client(client_or_store)
        if client is not client_or_store:
            await stack.enter_async_context(client)
        manner = await check_bind(client, host, options.get("startup_token"))
        app = create_app(client, **options)
        connections = Connections(limits or ConnectionLimits())
        spoken = protocol(connections)
        stack.enter_context(quieter_logs())
        config = uvicorn.Config(
            app,
            http=spoken if context is None else secured(spoken, connections, context),
            backlog=connections.limits.backlog_max,
            h11_max_incomplete_event_size=2 * connections.limits.head_bytes_max,  # ConnectionLimits has a closer limit
            timeout_keep_alive=connections.limits.idle_s,  # type: ignore[arg-type]  # uvicorn accepts any number
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=_GRACE_S,
            ws="none",
        )
        server = _Server(config, app)
        listening = _listening(host, port)
        stack.callback(listening.close)
        ready = asyncio.get_running_loop().create_task(server.run_on(listening))
        scheme = "http" if context is None else "https"
        url = f"{scheme}://{_shown(host)}:{listening.getsockname()[1]}"
        log.info("the API is at %s; %s", url, manner)
        try:
            while not server.started and not ready.done():  # noqa: ASYNC110 - uvicorn has no event to wait for
                await asyncio.sleep(0.01)
            if ready.done():
                ready.result()
            yield url
        finally:
            server.should_exit = True
            await ready
            connections.end()


@checked
async def serve(
    client_or_store: AnyClient | str | Store, *, host: str = "127.0.0.1", port: int = 8080, **options: Any
) -> None:
    """Serve the API until this call is cancelled or the client is shut down.

    The options and the errors are the same as for `serving`. Raises EngineStopped if the client stops by itself because
    its store is broken.
    """
    async with contextlib.AsyncExitStack() as stack:
        client = client_or_store if isinstance(client_or_store, AnyClient) else Client(client_or_store)
        if client is not client_or_store:
            await stack.enter_async_context(client)
        await stack.enter_async_context(serving(client, host=host, port=port, **options))
        await client.until_stopped()


def _listening(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    found = socket.socket(family, kind, protocol)
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(address)
        found.setblocking(False)
    except BaseException:
        found.close()
        raise
    return found


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


__all__ = ["check_bind", "serve", "serving"]
