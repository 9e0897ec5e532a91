"""`perdure migrate`: create a store, or upgrade its schema."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.commands import command
from perdure.cli.settings import not_in_memory, shown
from perdure.cli.terminal import Terminal


def add_to(app: typer.Typer) -> None:
    @command(app, "migrate")
    async def migrate(
        terminal: Terminal,
        check: Annotated[
            bool, typer.Option("--check", help="Only check. Exits with 1 if there is something to do.")
        ] = False,
        grant: Annotated[
            str | None,
            typer.Option("--grant", metavar="ROLE", help="Postgres: grant this role the rights that engines need."),
        ] = None,
        grant_callers: Annotated[
            str | None,
            typer.Option(
                "--grant-callers",
                metavar="ROLE",
                help="Postgres: grant this role the right to start runs in its own transactions, and nothing else.",
            ),
        ] = None,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
    ) -> int:
        """Create the store, or bring its schema up to date.

        After that, older versions of Perdure refuse the store."""
        from perdure.upgrade import look, upgrade

        url = terminal.settings.store
        not_in_memory(url)
        schema = await look(url)
        is_due = not schema.is_current
        if not check and (is_due or grant or grant_callers):
            if schema.found and is_due:
                what = (
                    f"migrate {shown(url)} from version {schema.found} to {schema.known}; older engines will refuse it"
                )
                terminal.confirm(f"{what}?", yes=yes)
            await upgrade(url, runtime_role=grant, caller_role=grant_callers)
        was = schema.found
        if terminal.as_json:
            version = was if check else schema.known
            terminal.document({"store": shown(url), "was": was, "version": version, "known": schema.known})
        elif not is_due:
            terminal.print_text(f"{shown(url)} is up to date: version {schema.known}")
        elif check:
            terminal.print_text(
                f"{shown(url)} has {f'version {was}' if was else 'no tables yet'}; this Perdure needs {schema.known}"
            )
        else:
            terminal.print_text(f"{shown(url)} now has version {schema.known}" + (f", from {was}" if was else ""))
        return int(check and is_due)


__all__ = ["add_to"]
