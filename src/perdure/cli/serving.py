"""`perdure serve`: the HTTP API, which is an extra of its own."""

from __future__ import annotations

import importlib
import os
from types import ModuleType
from typing import Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.settings import shown
from perdure.cli.stopping import StopSignals
from perdure.cli.verbs import verb
from perdure.cli.worker import LogLevel, set_up_logging

_EXTRA = ("perdure.http", "litestar", "uvicorn")


def add_to(app: typer.Typer) -> None:
    @verb(app, "serve")
    async def serve(
        desk: Desk,
        host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="The port; 0 is any.")] = 8080,
        log_level: LogLevel = "info",
    ) -> None:
        """Serve the HTTP API of a store, until Ctrl-C or SIGTERM. It runs no workflows: that is what workers do."""
        http = http_extra()
        set_up_logging(log_level)
        async with desk.client() as client:
            signals = StopSignals(lambda: desk.aside("stopped at once"))
            try:
                async with http.serving(client, host=host, port=port) as url:
                    if desk.as_json:
                        store = shown(desk.settings.store)
                        desk.json_line({"event": "serving", "store": store, "pid": os.getpid(), "url": url})
                    else:
                        desk.say(f"the HTTP API of {shown(desk.settings.store)} is at {url}")
                        desk.aside("Ctrl-C stops it")
                    await signals.wait()
            except OSError as error:
                raise Refusal(
                    f"nothing can listen on {host}, port {port}: {error}",
                    "choose another with --host and --port",
                    code=Code.FAILED,
                    kind="cannot_listen",
                ) from error
        if desk.as_json:
            desk.json_line({"event": "stopped"})


def http_extra() -> ModuleType:
    """perdure.http. Raises Refusal if what it needs is not installed."""
    try:
        return importlib.import_module("perdure.http")
    except ModuleNotFoundError as error:
        if error.name not in _EXTRA:
            raise
        raise Refusal(
            f"the HTTP API is not installed: there is no {error.name}",
            "pip install 'perdure[http]'",
            code=Code.FAILED,
            kind="extra_missing",
        ) from error


__all__ = ["add_to", "http_extra"]
