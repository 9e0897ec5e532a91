"""`perdure send` and `perdure events`: events on their way to runs."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli import params
from perdure.cli.desk import Desk
from perdure.cli.settings import actor
from perdure.cli.texts import brief
from perdure.cli.verbs import verb


def add_to(app: typer.Typer) -> None:
    @verb(app, "send")
    async def send(
        desk: Desk,
        event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.")],
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Its fields; values are JSON, or else texts."),
        ] = None,
        value: Annotated[
            str | None, typer.Option("--value", metavar="JSON", help="The whole value instead; @FILE, or -.")
        ] = None,
        to: Annotated[
            str | None, typer.Option("--to", metavar="ID", help="The run; whoever waits, without it.")
        ] = None,
        key: Annotated[str | None, typer.Option("--key", help="Send it once, however often this is done.")] = None,
        strict: Annotated[bool, typer.Option("--strict", help="Only to a run that waits for it now.")] = False,
    ) -> None:
        """Send an event to a run, or to whoever waits for it. It is durable when this returns."""
        from perdure import Delivered, NamedEvent

        event_given = NamedEvent(event, params.values(fields or (), value, "--value"))
        async with desk.client() as client:
            sent = await client.send(event_given, to=to, key=key, strict=strict, actor=actor())
        tell_sent(desk, sent.run_ids if isinstance(sent, Delivered) else None, getattr(sent, "event_id", None))

    @verb(app, "events")
    async def events(
        desk: Desk,
        to: Annotated[
            str | None, typer.Option("--to", metavar="ID", help="Of this run; for anybody, without it.")
        ] = None,
        name: Annotated[str | None, typer.Option("--name", help="Only of this name.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="How many at most.")] = 100,
    ) -> None:
        """List events that nobody has read yet, in the order of sending."""
        async with desk.client() as client:
            found = await client.events.pending(name=name, to=to, limit=limit)
        if desk.as_json:
            desk.document({"events": found})
            return
        width = 60 if desk.is_terminal else 100_000
        rows = [(one.id, one.name, one.to, one.sent_at, one.expires_at, brief(one.value, width)) for one in found]
        desk.table(("id", "name", "to", "sent", "expires", "value"), rows, empty="no event waits to be read")


def tell_sent(desk: Desk, run_ids: tuple[str, ...] | None, event_id: str | None) -> None:
    """Who has got an event, or that it is kept."""
    if desk.as_json:
        result = "queued" if run_ids is None else "delivered"
        desk.document({"result": result, "run_ids": run_ids or (), "event_id": event_id})
    elif run_ids is None:
        desk.line("queued", event_id)
    else:
        desk.line("delivered", " ".join(run_ids))


__all__ = ["add_to", "tell_sent"]
