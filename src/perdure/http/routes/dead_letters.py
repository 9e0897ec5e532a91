"""Dead letters: events that their run had not read when it ended."""

from __future__ import annotations

from litestar import Router, delete, get, post
from litestar.params import JSONBody
from msgspec import Struct

from perdure.errors import DeadLetterNotFound, InvalidArguments, QueueFull, RunFinished, RunNotFound
from perdure.http.access import caller_of, operates, reads
from perdure.http.dependencies import Asked, TheClient
from perdure.http.params import After, Body, Id, Limit, Name, Text, cursor_of
from perdure.http.problems import no
from perdure.http.routes.events import SentView, sent_view
from perdure.views import DeadLetterView


class DeadLetters(Struct, frozen=True, kw_only=True):
    """A page of dead letters. Pass `cursor` as `after` to get the next page. It is null on the last page."""

    dead_letters: list[DeadLetterView]
    cursor: str | None


class Replay(Body, frozen=True, kw_only=True):
    """The run to which the event is sent. Without it, the event is broadcast."""

    to: Name | None = None


@get("/", guards=[reads], responses=no())
async def list_dead_letters(
    client: TheClient, name: Text = None, after: After = None, limit: Limit = 100
) -> DeadLetters:  # fmt: skip
    """List dead letters, oldest first."""
    found = await client.dead_letters.list(name=name, after=after, limit=limit)
    return DeadLetters(dead_letters=found, cursor=cursor_of(found, limit))


@get("/{letter_id:str}", guards=[reads], responses=no(DeadLetterNotFound))
async def get_dead_letter(client: TheClient, letter_id: Id) -> DeadLetterView:
    """Return a dead letter."""
    return await client.dead_letters.get(letter_id)


@post(
    "/{letter_id:str}/replay",
    guards=[operates],
    status_code=202,
    responses=no(DeadLetterNotFound, RunNotFound, RunFinished, QueueFull, InvalidArguments, changes=True),
)
async def replay_dead_letter(request: Asked, client: TheClient, letter_id: Id, data: JSONBody[Replay]) -> SentView:
    """Send the event of a dead letter again. Once the event is delivered or queued, the dead letter is removed."""
    return sent_view(await client.dead_letters.replay(letter_id, to=data.to, actor=caller_of(request).name))


@delete("/{letter_id:str}", guards=[operates], responses=no(DeadLetterNotFound, changes=True))
async def remove_dead_letter(request: Asked, client: TheClient, letter_id: Id) -> None:
    """Remove a dead letter for good. A record of the removal is kept, with the name of the caller."""
    await client.dead_letters.get(letter_id)
    await client.dead_letters.remove(letter_id, actor=caller_of(request).name)


router = Router(
    "/dead-letters",
    route_handlers=[list_dead_letters, get_dead_letter, replay_dead_letter, remove_dead_letter],
    tags=["dead letters"],
)

__all__ = ["router"]
