"""`perdure dead-letters`: events whose run ended before it read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import bulk
from perdure.cli.changes import AtMost, Everything, Yes
from perdure.cli.desk import Desk
from perdure.cli.failures import Refusal
from perdure.cli.settings import actor
from perdure.cli.texts import brief
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from perdure.engine import AnyClient
    from perdure.views import DeadLetterView

Ids = Annotated[list[str] | None, typer.Argument(metavar="ID", help="The dead letters' ids.")]
Name = Annotated[str | None, typer.Option("--name", help="Only events of this name.")]

_PAGE = 500


def add_to(app: typer.Typer) -> None:
    letters = group(app, "dead-letters", "Events whose run ended before it read them.")
    _add_list(letters)
    _add_replay(letters)
    _add_remove(letters)


def _add_list(letters: typer.Typer) -> None:
    @verb(letters, "list")
    async def list_letters(
        desk: Desk,
        name: Name = None,
        after: Annotated[str | None, typer.Option("--after", metavar="ID", help="Go on after this one.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 100,
    ) -> None:
        """List dead letters, the oldest first."""
        async with desk.client() as client:
            found = await client.dead_letters.list(name=name, after=after, limit=limit)
        if desk.as_json:
            desk.document({"dead_letters": found})
            return
        width = 60 if desk.is_terminal else 100_000
        rows = [
            (one.id, one.name, one.to, one.reason or one.target_status, one.sent_at, brief(one.value, width))
            for one in found
        ]
        desk.table(("id", "name", "was to", "which is", "sent", "value"), rows, empty="there are no dead letters")


def _add_replay(letters: typer.Typer) -> None:
    @verb(letters, "replay")
    async def replay(
        desk: Desk,
        ids: Ids = None,
        to: Annotated[
            str | None, typer.Option("--to", metavar="ID", help="The run; whoever waits, without it.")
        ] = None,
        name: Name = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
    ) -> int:
        """Send dead letters again: by id, or all of a name, after asking."""
        from perdure import Delivered

        async with desk.client() as client:

            async def act(id: str) -> str:
                sent = await client.dead_letters.replay(id, to=to, actor=actor())
                return "delivered" if isinstance(sent, Delivered) else "queued"

            chosen = await _chosen(desk, client, ids or (), name, everything, "replay", yes, at_most)
            return await bulk.each(desk, "replaying", chosen, act)


def _add_remove(letters: typer.Typer) -> None:
    @verb(letters, "remove")
    async def remove(
        desk: Desk,
        ids: Ids = None,
        name: Name = None,
        everything: Everything = False,
        yes: Yes = False,
        at_most: AtMost = 10_000,
    ) -> int:
        """Forget dead letters for good: by id, or all of a name, after asking."""
        async with desk.client() as client:

            async def act(id: str) -> str:
                await client.dead_letters.get(id)
                await client.dead_letters.remove(id, actor=actor())
                return "removed"

            chosen = await _chosen(desk, client, ids or (), name, everything, "remove", yes, at_most)
            return await bulk.each(desk, "removing", chosen, act)


async def _chosen(
    desk: Desk,
    client: AnyClient,
    ids: Sequence[str],
    name: str | None,
    everything: bool,
    what: str,
    yes: bool,
    at_most: int,
) -> Sequence[str]:
    if ids:
        if everything or name:
            raise Refusal("there are both ids and options that choose dead letters", "use one of them")
        return list(dict.fromkeys(ids))
    if not (name or everything):
        raise Refusal(
            f"nothing says which dead letters to {what}", f"perdure dead-letters {what} ID, or --name NAME, or --all"
        )
    found: list[DeadLetterView] = []
    while page := await client.dead_letters.list(name=name, after=found[-1].id if found else None, limit=_PAGE):
        found += page
        if len(found) > at_most:
            raise Refusal(f"there are more than {at_most} of them", "choose fewer, or allow more with --at-most")
    if not found:
        desk.aside(f"there is no dead letter to {what}")
        return []
    rows = [(one.id, one.name, one.to) for one in found]
    count = f"{len(found)} dead letters" if len(found) > 1 else "1 dead letter"
    bulk.announce(desk, f"{what} {count}", ("id", "name", "was to"), rows, yes=yes)
    return [one.id for one in found]


__all__ = ["add_to"]
