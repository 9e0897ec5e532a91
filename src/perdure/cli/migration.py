"""`perdure migrate`: make a store, or bring it up to date."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli.desk import Desk
from perdure.cli.settings import not_in_memory, shown
from perdure.cli.verbs import verb


def add_to(app: typer.Typer) -> None:
    @verb(app, "migrate")
    async def migrate(
        desk: Desk,
        check: Annotated[
            bool, typer.Option("--check", help="Only say whether there is something to do: exits with 1.")
        ] = False,
        grant: Annotated[
            str | None, typer.Option("--grant", metavar="ROLE", help="Postgres: give this role what engines need.")
        ] = None,
        grant_callers: Annotated[
            str | None,
            typer.Option(
                "--grant-callers",
                metavar="ROLE",
                help="Postgres: let this role start runs in transactions of its own, and nothing else.",
            ),
        ] = None,
        yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    ) -> int:
        """Make the store, or bring its schema up to date. An older Perdure refuses it from then on."""
        from perdure.upgrade import look, upgrade

        url = desk.settings.store
        not_in_memory(url)
        schema = await look(url)
        is_due = not schema.is_current
        if not check and (is_due or grant or grant_callers):
            if schema.found and is_due:
                what = f"bring {shown(url)} from version {schema.found} to {schema.known}; older engines will refuse it"
                desk.confirm(f"{what}?", yes=yes)
            await upgrade(url, runtime_role=grant, caller_role=grant_callers)
        was = schema.found
        if desk.as_json:
            version = was if check else schema.known
            desk.document({"store": shown(url), "was": was, "version": version, "known": schema.known})
        elif not is_due:
            desk.say(f"{shown(url)} is up to date: version {schema.known}")
        elif check:
            desk.say(
                f"{shown(url)} has {f'version {was}' if was else 'no tables yet'}; this Perdure has {schema.known}"
            )
        else:
            desk.say(f"{shown(url)} is at version {schema.known} now" + (f", from {was}" if was else ""))
        return int(check and is_due)


__all__ = ["add_to"]
