"""`perdure definitions`: the workflows that live engines have."""

from __future__ import annotations

import typer

from perdure.cli.commands import command, group
from perdure.cli.formats import tame
from perdure.cli.terminal import Terminal


def add_to(app: typer.Typer) -> None:
    definitions = group(app, "definitions", "The workflows that can be started now.")

    @command(definitions, "list")
    async def list_definitions(terminal: Terminal) -> None:
        """List the workflows that live engines have, with their versions.

        Operations are not listed, because they handle messages and cannot be started; see perdure topics list."""
        found: dict[tuple[str, str], list[str]] = {}
        async with terminal.client() as client:
            handlers = await client.topics.handlers()
            for engine in await client.engines.list():
                for workflow, version in engine.workflows:
                    if workflow not in handlers.get(version, ()):
                        found.setdefault((workflow, version), []).append(engine.id)
        if terminal.as_json:
            views = [
                {"workflow": workflow, "version": version, "engines": engines}
                for (workflow, version), engines in sorted(found.items())
            ]
            terminal.document({"definitions": views})
            return
        rows = [
            (workflow, version, " ".join(tame(engine) for engine in engines))
            for (workflow, version), engines in sorted(found.items())
        ]
        terminal.table(("workflow", "version", "engines"), rows, empty="no live engine has a workflow")


__all__ = ["add_to"]
