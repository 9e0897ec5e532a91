"""`perdure engines`: who is there."""

from __future__ import annotations

import os
import socket

import typer

from perdure.cli.desk import Desk
from perdure.cli.texts import ago, tame
from perdure.cli.verbs import verb
from perdure.views import EngineView


def add_to(app: typer.Typer) -> None:
    @verb(app, "engines")
    async def engines(desk: Desk) -> None:
        """List the engines that are alive, and what they can run. Clients have nothing that they can run."""
        me = (socket.gethostname(), os.getpid())
        async with desk.client() as client:
            found = [one for one in await client.engines.list() if (one.host, one.pid) != me]
        if desk.as_json:
            desk.document({"engines": found})
            return
        rows = [
            (
                one.id,
                "engine" if one.workflows else "client",
                one.host,
                one.pid,
                ago(one.started_at) if desk.is_terminal else one.started_at,
                ", ".join(tame(" ".join(code).rstrip()) for code in code_of(one)),
            )
            for one in found
        ]
        desk.table(("id", "kind", "host", "pid", "started", "workflows"), rows, empty="no engine is alive")


def code_of(engine: EngineView) -> list[tuple[str, ...]]:
    """What an engine has: names, and versions or topics, or both."""
    with_versions = {(name, topic) for name, topic, _ in engine.versions}
    return sorted([*(one for one in engine.workflows if one not in with_versions), *engine.versions])


__all__ = ["add_to", "code_of"]
