"""`perdure audit`: every change in the store, and who requested it."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.commands import command, group
from perdure.cli.params import moment
from perdure.cli.terminal import Terminal


def add_to(app: typer.Typer) -> None:
    audit = group(app, "audit", "Every change in the store, and who asked for it.")

    @command(audit, "export")
    async def export(
        terminal: Terminal,
        since: Annotated[
            str | None, typer.Option("--since", metavar="TIME", help="Only changes since 2026-01-31, or since 7d ago.")
        ] = None,
        until: Annotated[
            str | None, typer.Option("--until", metavar="TIME", help="Only changes before this time, or this long ago.")
        ] = None,
    ) -> None:
        """Write every change, and who requested it, as JSON lines.

        These are changes of runs, records and tokens. The last line has the type "end"; an export without it is
        incomplete."""
        first, last = moment(since, "--since"), moment(until, "--until")
        async with terminal.client() as client:
            async for line in client.audit.export(since=first, until=last):
                terminal.json_line(line)


__all__ = ["add_to"]
