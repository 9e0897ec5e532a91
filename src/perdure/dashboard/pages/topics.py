"""Topics: their handlers, the runs that wait for people or other systems, and a form that emits a message."""

from __future__ import annotations

import hashlib
from secrets import token_urlsafe
from typing import Any, Final

from msgspec import Struct

from perdure.cooperation import Topic
from perdure.dashboard.forms import json_of
from perdure.dashboard.page import Action, Form, Page, Shown, Visit, Wrong
from perdure.dashboard.renderer import url
from perdure.engine import AnyClient
from perdure.errors import InvalidArguments, UnstorableValue
from perdure.kernel.status import Status
from perdure.views import RunView

_LIMIT: Final = 50
_NONCE_BYTES: Final = 12


class Handler(Struct, frozen=True):
    """A handler of a topic. `engines` are the hosts of the engines that have the handler's code."""

    topic: str
    name: str
    engines: list[str]


async def show(visit: Visit) -> Shown:
    found = await _handlers(visit.client)
    outside = sorted({handler.name for handler in found if not handler.engines})
    given = visit.given
    return {
        "title": "Topics",
        "topics": sorted({handler.topic for handler in found}),
        "handlers": found,
        "waiting": await _waiting(visit.client, outside),
        "limit": _LIMIT,
        "topic": given.text("topic") if given is not None else visit.asked("topic"),
        "message": given.text("message") if given is not None else "",
        "nonce": given.text("nonce") if given is not None else token_urlsafe(_NONCE_BYTES),
    }


async def _handlers(client: AnyClient) -> list[Handler]:
    hosts: dict[tuple[str, str], list[str]] = {}
    for engine in await client.engines.list():
        for code in engine.workflows:
            hosts.setdefault(code, []).append(engine.host)
    return [
        Handler(topic, name, hosts.get((name, topic), []))
        for topic, names in (await client.topics.handlers()).items()
        for name in names
    ]


async def _waiting(client: AnyClient, outside: list[str]) -> list[RunView]:
    """Return the runs whose work must be done or undone by handlers without an engine."""
    found: list[RunView] = []
    for name in outside:
        page = await client.runs.list(workflow=name, status=[Status.CREATED, Status.ROLLING_BACK], limit=_LIMIT)
        found += [run for run in page.runs if run.model == "operation"]
    return found


async def emit(visit: Visit, form: Form) -> str:
    """Emit a message. If the same form is sent several times, the message is emitted only once, because its id is made
    from the form.
    """
    name, text = form.text("topic"), form.text("message")
    if name not in await visit.client.topics.handlers():
        raise Wrong(f"The topic {name!r:.80} has no handler.")
    message = json_of(text, "The message")
    said = hashlib.sha256(f"{form.text('nonce')}\0{name}\0{text}".encode(errors="backslashreplace")).hexdigest()
    anything: Any = Any  # Only the handlers know the type of the messages.
    topic: Topic[Any] = Topic(name, anything)
    try:
        root = await visit.client.emit(topic, message, id=f"dashboard-{said[:32]}", actor=visit.caller.name)
    except (InvalidArguments, UnstorableValue) as error:
        raise Wrong(str(error)) from error
    return url("runs", root.id, said="emitted")


page = Page(name="topics", path="/topics", title="Topics", show=show, actions=[Action("/topics", emit)])
