"""`perdure dead-letters`: events that their run had not read when it ended, or could not read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import bulk_changes
from perdure.cli.bulk_changes import AtMost, Everything, Yes
from perdure.cli.commands import command, group
from perdure.cli.errors import Refusal
from perdure.cli.formats import brief, to_json
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.engine import AnyClient
    from perdure.views import DeadLetterView

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The ids of dead letters.")]
Name = Annotated[str | None, typer.Option("--name", help="Only events of this name.")]

_PAGE = 500


def add_to(app: typer.Typer) -> None:
    letters = group(app, "dead-letters", "Events that their run did not read before it ended.")
    _add_list(letters)
    _add_show(letters)
    _add_replay(letters)
    _add_remove(letters)


def _add_list(letters: typer.Typer) -> None:
    @command(letters, "list")
    async def list_letters(
        terminal: Terminal,
        name: Name = None,
        after: Annotated[str | None, typer.Option("--after", metavar="ID", help="List those after this one.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 100,
    ) -> None:
        """List dead letters, oldest first."""
        async with terminal.client() as client:
            found = await client.dead_letters.list(name=name, after=after, limit=limit)
        if terminal.as_json:
            terminal.document({"dead_letters": found})
            return
        width = 60 if terminal.is_tty else 100_000
        rows = [
            (one.id, one.name, one.to, one.reason or one.target_status, one.sent_at, brief(one.value, width))
            for one in found
        ]
        terminal.table(("id", "name", "to", "because", "sent", "value"), rows, empty="there are no dead letters")


def _add_show(letters: typer.Typer) -> None:
    @command(letters, "show")
    async def show(
        terminal: Terminal, id: Annotated[str, typer.Argument(metavar="ID", help="The dead letter's id.")]
    ) -> None:
        """Show a dead letter.

        The output has the event's value, the run that it was sent to, and why the run did not read it."""
        async with terminal.client() as client:
            found = await client.dead_letters.get(id)
        if terminal.as_json:
            terminal.document({"dead_letter": found})
            return
        terminal.fields(
            [
                ("id", found.id),
                ("name", found.name),
                ("to", found.to),
                ("because", found.reason or f"the run ended: {found.target_status}"),
                ("sent", found.sent_at),
                ("value", to_json(found.value)),
            ]
        )


def _add_replay(letters: typer.Typer) -> None:
    @command(letters, "replay")
    async def replay(
        terminal: Terminal,
        ids: Ids = None,
        to: Annotated[
            str | None,
            typer.Option("--to", metavar="ID", help="Send the events to this run. Without --to, broadcast them."),
        ] = None,
        name: Name = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
    ) -> int:
        """Send dead letters again.

        Give ids, or select dead letters with options. If you select them with options, the command asks before it sends
        them."""
        from perdure import Delivered

        async with terminal.client() as client:

            async def act(id: str) -> str:
                sent = await client.dead_letters.replay(id, to=to, actor=actor())
                return "delivered" if isinstance(sent, Delivered) else "queued"

            chosen = await _chosen(terminal, client, ids or (), name, everything, "replay", yes, at_most)
            return await bulk_changes.each(terminal, "replaying", chosen, act)


def _add_remove(letters: typer.Typer) -> None:
    @command(letters, "remove")
    async def remove(
        terminal: Terminal,
        ids: Ids = None,
        name: Name = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
    ) -> int:
        """Remove dead letters for good.

        Give ids, or select dead letters with options. If you select them with options, the command asks before it
        removes them."""
        async with terminal.client() as client:

            async def act(id: str) -> str:
                await client.dead_letters.get(id)
                await client.dead_letters.remove(id, actor=actor())
                return "removed"

            chosen = await _chosen(terminal, client, ids or (), name, everything, "remove", yes, at_most)
            return await bulk_changes.each(terminal, "removing", chosen, act)


async def _chosen(
    terminal: Terminal,
    client: AnyClient,
    ids: Sequence[str],
    name: str | None,
    everything: bool,
    what: str,
    yes: bool,
    at_most: int,
) -> Sequence[str]:
    """Return the given ids, or the ids of the dead letters that options select. Raises Refusal."""
    if ids:
        if everything or name:
            raise Refusal("there are both ids and options that select dead letters", "use one of them")
        return list(dict.fromkeys(ids))
    if not (name or everything):
        raise Refusal(
            f"nothing says which dead letters to {what}",
            f"name some (perdure dead-letters {what} ID), select some (--name NAME), or use --all",
        )
    found: list[DeadLetterView] = []
    while page := await client.dead_letters.list(name=name, after=found[-1].id if found else None, limit=_PAGE):
        found += page
        if len(found) > at_most:
            raise bulk_changes.too_many(at_most)
    if not found:
        terminal.note(f"there is no dead letter to {what}")
        return []
    rows = [(one.id, one.name, one.to) for one in found]
    count = f"{len(found)} dead letters" if len(found) > 1 else "1 dead letter"
    bulk_changes.announce(terminal, f"{what} {count}", ("id", "name", "to"), rows, yes=yes)
    return [one.id for one in found]


__all__ = ["add_to"]
