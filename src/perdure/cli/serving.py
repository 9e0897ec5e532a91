"""`perdure serve`: the HTTP API, which is an extra of its own."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from typing import Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.settings import not_in_memory
from perdure.cli.verbs import verb
from perdure.cli.worker import LogLevel, set_up_logging

_EXTRA = ("litestar", "uvicorn")


def add_to(app: typer.Typer) -> None:
    @verb(app, "serve")
    def serve(
        desk: Desk,
        host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
        port: Annotated[int, typer.Option("--port", "-p", min=0, max=65_535, help="The port.")] = 8008,
        log_level: LogLevel = "info",
    ) -> None:
        """Serve the HTTP API of a store, until Ctrl-C or SIGTERM. It runs no workflows: that is what workers do."""
        try:
            http = importlib.import_module("perdure.http")
        except ModuleNotFoundError as error:
            if error.name not in ("perdure.http", *_EXTRA):
                raise
            raise Refusal(
                f"the HTTP API is not installed: there is no {error.name}",
                "pip install 'perdure[http]'",
                code=Code.FAILED,
                kind="extra_missing",
            ) from error
        not_in_memory(desk.settings.store)
        set_up_logging(log_level)
        served = http.serve(desk.settings.store, host=host, port=port)
        if inspect.iscoroutine(served):
            asyncio.run(served)


__all__ = ["add_to"]
