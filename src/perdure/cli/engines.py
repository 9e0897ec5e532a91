"""`perdure engines`: the engines that are alive, and the runs that are overdue."""

from __future__ import annotations

import os
import socket
from typing import Annotated

import typer

from perdure.cli import params
from perdure.cli.commands import command, group
from perdure.cli.formats import ago, tame
from perdure.cli.terminal import Terminal
from perdure.views import EngineView


def add_to(app: typer.Typer) -> None:
    engines = group(app, "engines", "The engines that share the store.")
    _add_list(engines)
    _add_overdue(engines)


def _add_list(engines: typer.Typer) -> None:
    @command(engines, "list")
    async def list_engines(terminal: Terminal) -> None:
        """List the engines that are alive, with their workflows.

        Clients are listed too; they have no workflows."""
        me = (socket.gethostname(), os.getpid())
        async with terminal.client() as client:
            found = [one for one in await client.engines.list() if (one.host, one.pid) != me]
        if terminal.as_json:
            terminal.document({"engines": found})
            return
        rows = [
            (
                one.id,
                "engine" if one.workflows else "client",
                one.host,
                one.pid,
                ago(one.started_at) if terminal.is_tty else one.started_at,
                ", ".join(tame(" ".join(code).rstrip()) for code in code_of(one)),
            )
            for one in found
        ]
        terminal.table(("id", "kind", "host", "pid", "started", "workflows"), rows, empty="no engine is alive")


def _add_overdue(engines: typer.Typer) -> None:
    @command(engines, "overdue")
    async def overdue(
        terminal: Terminal,
        by: Annotated[str, typer.Option("--by", help="Only runs that are late by more than this: 90s, 5m.")] = "5s",
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 100,
    ) -> None:
        """List runs that are due and that no engine has."""
        async with terminal.client() as client:
            found = await client.engines.overdue(by=params.length(by, "--by"), limit=limit)
        if terminal.as_json:
            terminal.document({"overdue": found})
            return
        rows = [
            (
                one.run_id,
                ago(one.due_at) if terminal.is_tty else one.due_at,
                "its deadline passed" if one.deadline else "it can continue",
            )
            for one in found
        ]
        terminal.table(("run", "due", "why"), rows, empty="no run is overdue")


def code_of(engine: EngineView) -> list[tuple[str, ...]]:
    """Return the code that an engine has: names of workflows and operations, each with a version, a topic or both."""
    with_versions = {(name, topic) for name, topic, _ in engine.versions}
    return sorted([*(one for one in engine.workflows if one not in with_versions), *engine.versions])


__all__ = ["add_to", "code_of"]
