"""`perdure send`, and `perdure events`: the events that wait to be read."""

from __future__ import annotations

from typing import Annotated

import typer

from perdure.cli import params
from perdure.cli.commands import command, group
from perdure.cli.formats import brief
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal


def add_to(app: typer.Typer) -> None:
    _add_send(app)
    events = group(app, "events", "Events that wait to be read.")
    _add_list(events)
    _add_purge(events)


def _add_send(app: typer.Typer) -> None:
    @command(app, "send")
    async def send(
        terminal: Terminal,
        event: Annotated[str, typer.Argument(metavar="EVENT", help="The event's name.")],
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Its fields. A value that is not JSON is text."),
        ] = None,
        value: Annotated[
            str | None, typer.Option("--value", metavar="JSON", help="The whole value: JSON, @FILE, or - for stdin.")
        ] = None,
        to: Annotated[
            str | None, typer.Option("--to", metavar="ID", help="The run. Without it, the event is broadcast.")
        ] = None,
        key: Annotated[str | None, typer.Option("--key", help="An idempotency key: the event is sent once.")] = None,
        strict: Annotated[
            bool, typer.Option("--strict", help="Refuse instead of queueing, if no run waits for it.")
        ] = False,
    ) -> None:
        """Send an event to a run, or broadcast it. The event is durable when the command returns."""
        from perdure import Delivered, NamedEvent

        event_given = NamedEvent(event, params.values(fields or (), value, "--value"))
        async with terminal.client() as client:
            sent = await client.send(event_given, to=to, key=key, strict=strict, actor=actor())
        show_sent(terminal, sent.run_ids if isinstance(sent, Delivered) else None, getattr(sent, "event_id", None))


def _add_list(events: typer.Typer) -> None:
    @command(events, "list")
    async def list_events(
        terminal: Terminal,
        to: Annotated[
            str | None, typer.Option("--to", metavar="ID", help="Those sent to this run. Without it, broadcast ones.")
        ] = None,
        name: Annotated[str | None, typer.Option("--name", help="Only events of this name.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 100,
    ) -> None:
        """List events that wait to be read, in the order of sending."""
        async with terminal.client() as client:
            found = await client.events.pending(name=name, to=to, limit=limit)
        if terminal.as_json:
            terminal.document({"events": found})
            return
        width = 60 if terminal.is_tty else 100_000
        rows = [(one.id, one.name, one.to, one.sent_at, one.expires_at, brief(one.value, width)) for one in found]
        terminal.table(("id", "name", "to", "sent", "expires", "value"), rows, empty="no event waits to be read")


def _add_purge(events: typer.Typer) -> None:
    @command(events, "purge")
    async def purge(terminal: Terminal) -> None:
        """Remove expired events now.

        Old idempotency keys and ended sessions of the dashboard are removed too. Engines do this by
        themselves from time to time."""
        async with terminal.client() as client:
            removed = await client.events.purge()
        if terminal.as_json:
            terminal.document({"removed": removed})
        else:
            terminal.line("removed", removed)


def show_sent(terminal: Terminal, run_ids: tuple[str, ...] | None, event_id: str | None) -> None:
    """Show which runs have got an event. If the event is queued, say so."""
    if terminal.as_json:
        result = "queued" if run_ids is None else "delivered"
        terminal.document({"result": result, "run_ids": run_ids or (), "event_id": event_id})
    elif run_ids is None:
        terminal.line("queued", event_id)
    else:
        terminal.line("delivered", " ".join(run_ids))


__all__ = ["add_to", "show_sent"]
