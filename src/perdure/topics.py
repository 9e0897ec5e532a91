"""Topics by name, for those who know no types: emitting on one, and its handlers with a record of who changed them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from perdure.arguments import Duration
from perdure.client import Client
from perdure.emitting import RootHandle
from perdure.errors import InvalidArguments, InvalidTransition, RunFinished, RunNotFound
from perdure.models.cooperation.context import CancellationToken
from perdure.models.cooperation.define import Topic

HANDLER: Final = "perdure.handler"  # the kind of record, whose name is the topic and the handler's name


async def emit_by_name(
    client: Client,
    topic: str,
    message: Any,
    *,
    id: str | None = None,
    deadline: datetime | Duration | None = None,
    rollback_deadline: datetime | Duration | None = None,
    delay: Duration | None = None,
    tokens: Iterable[str] = (),
    tags: Mapping[str, str] | None = None,
    actor: str,
) -> RootHandle:
    """Emit a message on a topic whose type only its handlers know. `tokens` are the names of cancellation tokens.

    Raises InvalidArguments if nobody handles the topic: the name is probably misspelt, and the message would be lost.
    """
    if topic not in (known := await client.handlers()):
        names = ", ".join(repr(name) for name in known) or "none"
        raise InvalidArguments(
            f"nobody handles messages of the topic {topic!r:.80}; topics that somebody handles: {names:.1000}"
        )
    anything: Any = Any
    made: Topic[Any] = Topic(topic, anything)
    return await client.emit(
        made,
        message,
        id=id,
        deadline=deadline,
        rollback_deadline=rollback_deadline,
        delay=delay,
        tokens=[CancellationToken(name) for name in tokens],
        tags=tags,
        actor=actor,
    )


async def register_handler(client: Client, topic: str, name: str, *, actor: str) -> None:
    """As Client.register_handler, with a record of who did so. Raises InvalidArguments."""
    Topic(topic, object)  # Its name is checked.
    await _note(client, topic, name, actor, registered=True)
    await client.register_handler(topic, name)


async def retire_handler(client: Client, topic: str, name: str, *, release: bool, actor: str) -> bool:
    """As Client.retire_handler, with a record of who did so. False, and nothing is done, if it is not expected.

    The record comes first: a crash in between leaves a note of something that is still to be done, never the reverse.
    """
    if name not in (await client.handlers()).get(topic, ()):
        return False
    await _note(client, topic, name, actor, registered=False)
    return await client.retire_handler(topic, name, release=release, actor=actor)


async def _note(client: Client, topic: str, name: str, actor: str, *, registered: bool) -> None:
    note = {"topic": topic, "name": name, "registered": registered}
    await client.put_record(HANDLER, f"{topic}/{name}", note, actor=actor)


async def cancel_root(client: Client, id: str, *, reason: str, actor: str) -> None:
    """Have a hierarchy, by the id of its root or of one of its runs, give up. Raises RunNotFound, and RunFinished if it
    has ended, or was cancelled before."""
    if not await client.cancel_scope(id, reason=reason, actor=actor):
        await _check_there(client, id)
        raise RunFinished(f"hierarchy {id!r} has ended, or was cancelled before", run_id=id, status="finished")


async def cancel_token(client: Client, name: str, *, reason: str, actor: str) -> bool:
    """As Client.cancel_token, by the token's name. Raises InvalidArguments."""
    return await client.cancel_token(CancellationToken(name), reason=reason, actor=actor)


async def roll_back_root(client: Client, id: str, *, reason: str, actor: str) -> None:
    """Undo a hierarchy that has ended, by the id of its root or of one of its runs. Raises RunNotFound, and
    InvalidTransition if that cannot be now."""
    if not await client.roll_back(id, reason=reason, actor=actor):
        await _check_there(client, id)
        raise InvalidTransition(
            f"hierarchy {id!r} cannot be rolled back: one of its runs has not ended, or nothing of it is left to undo; "
            "look at its tree, and cancel it if it is at work",
            run_id=id,
        )


async def _check_there(client: Client, id: str) -> None:
    found = await client.scopes(id)
    if not found.runs and not found.events:
        raise RunNotFound(id)


__all__ = [
    "HANDLER",
    "cancel_root",
    "cancel_token",
    "emit_by_name",
    "register_handler",
    "retire_handler",
    "roll_back_root",
]
