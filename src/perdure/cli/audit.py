"""`perdure audit`: who changed what, of everything there is."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.params import moment
from perdure.cli.verbs import group, verb


def add_to(app: typer.Typer) -> None:
    audit = group(app, "audit", "Who changed what, of everything there is.")

    @verb(audit, "export")
    async def export(
        desk: Desk,
        since: Annotated[
            str | None, typer.Option("--since", metavar="TIME", help="From a time on, or how long ago: 2026-01-31, 7d.")
        ] = None,
        until: Annotated[
            str | None, typer.Option("--until", metavar="TIME", help="Before a time, or how long ago.")
        ] = None,
    ) -> None:
        """Write every change of a run, a record or a token with who asked for it: a JSON object in each line. The last
        one has the type "end"; without it the export is not whole."""
        first, last = moment(since, "--since"), moment(until, "--until")
        async with desk.client() as client:
            async for line in client.audit.export(since=first, until=last):
                desk.json_line(line)


__all__ = ["add_to"]
