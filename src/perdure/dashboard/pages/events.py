"""Events: send one, see those that wait to be read, and look after those that reached nobody."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from perdure import Delivered, NamedEvent
from perdure.dashboard.page import Action, Form, Page, Shown, Visit, Wrong
from perdure.dashboard.renderer import url
from perdure.errors import InvalidArguments, QueueFull, RunFinished, RunNotFound, UnstorableValue

_LIMIT: Final = 50
_SENDING: Final = (RunNotFound, RunFinished, QueueFull, UnstorableValue, InvalidArguments)


async def show(visit: Visit) -> Shown:
    after = visit.asked("after")
    letters = await visit.client.dead_letters.list(after=after or None, limit=_LIMIT)
    given = visit.given
    return {
        "title": "Events",
        "name": given.text("name") if given is not None else visit.asked("name"),
        "to": given.text("to") if given is not None else visit.asked("to"),
        "value": given.text("value") if given is not None else "",
        "of": visit.asked("of"),
        "events": await visit.client.events.pending(to=visit.asked("of") or None, limit=_LIMIT),
        "letters": letters,
        "next": letters[-1].id if len(letters) == _LIMIT else None,
    }


async def send(visit: Visit, form: Form) -> str:
    name, to = form.text("name").strip(), form.text("to").strip()
    if not name:
        raise Wrong("An event has a name.")
    event = NamedEvent(name, json_of(form.text("value"), "The value"))
    try:
        sent = await visit.client.send(event, to=to or None, actor=visit.caller.name)
    except _SENDING as error:
        raise Wrong(str(error)) from error
    said = "sent" if isinstance(sent, Delivered) else "queued"
    return url("runs", to, said=said) if to else url("events", said=said)


async def replay(visit: Visit, form: Form) -> str:
    to = form.text("to").strip() or None
    await visit.client.dead_letters.replay(visit.part("letter_id"), to=to, actor=visit.caller.name)
    return url("events", said="replayed")


async def remove(visit: Visit, form: Form) -> str:
    del form
    letters, letter_id = visit.client.dead_letters, visit.part("letter_id")
    await letters.get(letter_id)
    await letters.remove(letter_id, actor=visit.caller.name)
    return url("events", said="removed")


def json_of(text: str, what: str) -> Any:
    """JSON that somebody wrote; nothing is null. Raises Wrong."""
    if not text.strip():
        return None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Wrong(f"{what} is not JSON: {error}") from error


page = Page(
    name="events",
    path="/events",
    title="Events",
    show=show,
    actions=[
        Action("/events", send),
        Action("/dead-letters/{letter_id:str}/replay", replay),
        Action("/dead-letters/{letter_id:str}/remove", remove),
    ],
)
