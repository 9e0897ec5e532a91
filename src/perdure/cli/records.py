"""`perdure records`: named values with versions."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli import params
from perdure.cli.commands import command, group
from perdure.cli.formats import ago, brief, to_json
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

Kind = Annotated[str, typer.Argument(metavar="KIND", help="The records' kind, such as prompt.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The record's name.")]


def add_to(app: typer.Typer) -> None:
    records = group(app, "records", "Named values with versions, such as prompts.")
    _add_list(records)
    _add_show(records)
    _add_put(records)


def _add_list(records: typer.Typer) -> None:
    @command(records, "list")
    async def list_records(
        terminal: Terminal,
        kind: Kind,
        after: Annotated[
            str | None, typer.Option("--after", metavar="NAME", help="List those after this name.")
        ] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 100,
    ) -> None:
        """List the records of a kind by name, each in its newest version."""
        async with terminal.client() as client:
            found = await client.records.list(kind, after=after, limit=limit)
        if terminal.as_json:
            terminal.document({"records": found})
            return
        width = 60 if terminal.is_tty else 100_000
        rows = [
            (one.name, one.version, ago(one.at) if terminal.is_tty else one.at, one.actor, brief(one.body, width))
            for one in found
        ]
        terminal.table(("name", "version", "stored", "by", "body"), rows, empty=f"there are no records of kind {kind}")


def _add_show(records: typer.Typer) -> None:
    @command(records, "show")
    async def show(
        terminal: Terminal,
        kind: Kind,
        name: Name,
        version: Annotated[int | None, typer.Option("--version", min=1, help="A version. Default: the newest.")] = None,
    ) -> None:
        """Show a record: its value, its version, and who stored it."""
        async with terminal.client() as client:
            found = await client.records.get(kind, name, version)
        if terminal.as_json:
            terminal.document({"record": found})
            return
        fields = [(field, getattr(found, field)) for field in ("kind", "name", "version", "digest", "actor", "at")]
        terminal.fields([*fields, ("body", to_json(found.body))])


def _add_put(records: typer.Typer) -> None:
    @command(records, "put")
    async def put(
        terminal: Terminal,
        kind: Kind,
        name: Name,
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Fields of the body. A value that is not JSON is text."),
        ] = None,
        body: Annotated[
            str | None,
            typer.Option("--body", metavar="JSON", help="The whole body: JSON, @FILE, or - for stdin."),
        ] = None,
    ) -> None:
        """Store a new version of a record.

        If the body equals that of the newest version, no version is added."""
        value = params.values(fields or (), body, "--body")
        async with terminal.client() as client:
            version = await client.records.put(kind, name, value, actor=actor())
        if terminal.as_json:
            terminal.document({"kind": kind, "name": name, "version": version})
        else:
            terminal.line("stored", kind, name, version)


__all__ = ["add_to"]
