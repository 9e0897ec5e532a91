"""Events: send an event, and list the events that wait to be read."""

from __future__ import annotations

from typing import Final

from perdure import Delivered, NamedEvent
from perdure.dashboard.forms import json_of
from perdure.dashboard.page import Action, Form, Page, Shown, Visit, Wrong
from perdure.dashboard.renderer import url
from perdure.errors import InvalidArguments, QueueFull, RunFinished, RunNotFound, UnstorableValue

_LIMIT: Final = 50
_SENDING: Final = (RunNotFound, RunFinished, QueueFull, UnstorableValue, InvalidArguments)


async def show(visit: Visit) -> Shown:
    given = visit.given
    return {
        "title": "Events",
        "name": given.text("name") if given is not None else visit.asked("name"),
        "to": given.text("to") if given is not None else visit.asked("to"),
        "value": given.text("value") if given is not None else "",
        "of": visit.asked("of"),
        "events": await visit.client.events.pending(to=visit.asked("of") or None, limit=_LIMIT),
    }


async def send(visit: Visit, form: Form) -> str:
    """Send an event to a run, or broadcast it."""
    name, to = form.text("name").strip(), form.text("to").strip()
    if not name:
        raise Wrong("Enter the name of the event.")
    event = NamedEvent(name, json_of(form.text("value"), "The value"))
    try:
        sent = await visit.client.send(event, to=to or None, actor=visit.caller.name)
    except _SENDING as error:
        raise Wrong(str(error)) from error
    said = "sent" if isinstance(sent, Delivered) else "queued"
    return url("runs", to, said=said) if to else url("events", said=said)


page = Page(
    name="events",
    path="/events",
    title="Events",
    show=show,
    actions=[Action("/events", send)],
)
