"""`perdure emit`, `perdure topics` and `perdure roots`: messages, who handles them, and what followed from them."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from perdure import errors
from perdure.cli import params
from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal, refused
from perdure.cli.settings import actor
from perdure.cli.texts import to_json
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from perdure.api.root_handle import RootHandle

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")]
HandlerRun = Annotated[str, typer.Argument(metavar="ID", help="The id of the handler's run.")]
Root = Annotated[str, typer.Argument(metavar="ID", help="The id of the hierarchy, or of one of its runs.")]
Why = Annotated[str, typer.Option("--reason", help="Why, for those who read it later.")]


def add_to(app: typer.Typer) -> None:
    _add_emit(app)
    topics = group(app, "topics", "Topics, and who handles their messages.")
    _add_handlers(topics)
    _add_outside(topics)
    _add_roots(group(app, "roots", "What followed from a message: cancel it, roll it back."))


def _add_emit(app: typer.Typer) -> None:
    @verb(app, "emit")
    async def emit(
        desk: Desk,
        topic: TopicName,
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="The message's fields; values are JSON, or else texts."),
        ] = None,
        message: Annotated[
            str | None, typer.Option("--message", "-m", metavar="JSON", help="The whole message instead; @FILE, or -.")
        ] = None,
        id: Annotated[
            str | None, typer.Option("--id", help="The message's id; emitting it again then does nothing.")
        ] = None,
        tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="NAME=VALUE", help="A tag.")] = None,
        deadline: Annotated[
            str | None, typer.Option("--deadline", help="When all must be done, or rolls back: 2h, or a time.")
        ] = None,
        rollback_deadline: Annotated[
            str | None, typer.Option("--rollback-deadline", help="When a rollback must be done, or has failed.")
        ] = None,
        delay: Annotated[str | None, typer.Option("--delay", help="Handlers begin after this: 90s, 5m.")] = None,
        token: Annotated[
            list[str] | None, typer.Option("--token", metavar="NAME", help="A cancellation token: see roots.")
        ] = None,
        wait: Annotated[bool, typer.Option("--wait", help="Until all is done; exits with 1 if it failed.")] = False,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Wait no longer than this: 90s, 5m.")] = None,
    ) -> int:
        """Emit a message on a topic: all who are registered for it handle it. It is durable when this returns."""
        from perdure.models.cooperation.context import CancellationToken

        what = params.values(fields or (), message, "--message")
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        async with desk.client() as client:
            with _advised():
                root = await client.emit(
                    topic,
                    what,
                    id=id,
                    deadline=params.deadline(deadline),
                    rollback_deadline=params.deadline(rollback_deadline, "--rollback-deadline"),
                    delay=None if delay is None else params.length(delay, "--delay"),
                    tokens=[CancellationToken(name) for name in token or ()],
                    tags=params.tags(tag or ()),
                    actor=actor(),
                )
            if wait or timeout is not None:
                await _finished(root, limit_s)
        if desk.as_json:
            desk.document({"id": root.id, "message_id": root.message_id, "run_ids": root.run_ids})
        else:
            desk.line(root.id)
        return Code.DONE


@contextmanager
def _advised() -> Generator[None, None, None]:
    """What to do about a hierarchy that is there, or has ended: it is no run that `runs show` could show."""
    try:
        yield
    except (errors.RunExists, errors.RunFinished) as error:
        refusal = refused(error)
        assert refusal is not None
        refusal.todo = f"what it did: perdure runs tree {quote(error.run_id)}"
        raise refusal from error


async def _finished(root: RootHandle, limit_s: float | None) -> None:
    from perdure.errors import ScopeFailed

    tree = f"what it did: perdure runs tree {root.id}"
    try:
        async with asyncio.timeout(limit_s):
            await root.finished()
    except TimeoutError:
        raise Refusal(
            f"hierarchy {root.id!r} has not ended within {limit_s:g} s; it goes on",
            tree,
            code=Code.TIMED_OUT,
            kind="timed_out",
        ) from None
    except ScopeFailed as failed:
        raise Refusal(str(failed), tree, code=Code.FAILED, kind="scope_failed") from failed


def _add_handlers(topics: typer.Typer) -> None:
    @verb(topics, "list")
    async def list_topics(desk: Desk) -> None:
        """List topics whose messages somebody is expected to handle."""
        async with desk.client() as client:
            found = await client.topics.handlers()
        if desk.as_json:
            desk.document({"topics": [{"topic": topic, "handlers": names} for topic, names in found.items()]})
            return
        rows = [(topic, name) for topic, names in found.items() for name in names]
        desk.table(("topic", "handler"), rows, empty="nobody handles messages of any topic")

    @verb(topics, "register")
    async def register(desk: Desk, topic: TopicName, handler: HandlerName) -> None:
        """Have messages of a topic wait for somebody whom no engine has: a person, another system."""
        async with desk.client() as client:
            await client.topics.register(topic, handler, actor=actor())
        _tell(desk, "registered", topic, handler)

    @verb(topics, "retire")
    async def retire(
        desk: Desk,
        topic: TopicName,
        handler: HandlerName,
        release: Annotated[
            bool, typer.Option("--release", help="What waits for it goes on without it, unless it has begun.")
        ] = False,
    ) -> None:
        """No longer expect a handler, for messages that are emitted from now on."""
        async with desk.client() as client:
            done = await client.topics.retire(topic, handler, release=release, actor=actor())
        if not done:
            raise Refusal(
                f"{handler!r} is not expected to handle messages of the topic {topic!r}",
                "see who is: perdure topics list",
                code=Code.NOT_FOUND,
                kind="handler_not_found",
            )
        _tell(desk, "retired", topic, handler)


def _tell(desk: Desk, what: str, topic: str, handler: str) -> None:
    if desk.as_json:
        desk.document({"result": what, "topic": topic, "handler": handler})
    else:
        desk.line(what, topic, handler)


def _add_outside(topics: typer.Typer) -> None:
    @verb(topics, "message")
    async def message(desk: Desk, id: HandlerRun) -> None:
        """Show the message that the run of a handler is there for."""
        async with desk.client() as client:
            found = await client.topics.message(id)
        if desk.as_json:
            desk.document({"run_id": id, "message": found})
        else:
            desk.print_raw(to_json(found))

    @verb(topics, "complete")
    async def complete(
        desk: Desk,
        id: HandlerRun,
        values: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="What it returns; values are JSON, or else texts."),
        ] = None,
    ) -> None:
        """Say that what the run of a handler was to do is done, by somebody outside."""
        returned = params.values(values or (), None, "NAME=VALUE")
        async with desk.client() as client:
            await client.topics.complete(id, returned, actor=actor())
        _done(desk, "completed", id)

    @verb(topics, "fail")
    async def fail(
        desk: Desk,
        id: HandlerRun,
        reason: Annotated[str, typer.Argument(metavar="REASON", help="Why it cannot be done.")],
    ) -> None:
        """Say that what the run of a handler was to do cannot be done, and that nothing of it is left."""
        async with desk.client() as client:
            await client.topics.fail(id, reason, actor=actor())
        _done(desk, "failed", id)

    @verb(topics, "complete-rollback")
    async def complete_rollback(desk: Desk, id: HandlerRun) -> None:
        """Say that what somebody outside did for a handler is undone, as its emitter asked for."""
        async with desk.client() as client:
            await client.topics.complete_rollback(id, actor=actor())
        _done(desk, "rolled back", id)


def _add_roots(roots: typer.Typer) -> None:
    @verb(roots, "cancel")
    async def cancel(desk: Desk, id: Root, reason: Why = "") -> None:
        """Have a hierarchy, or the part of it from a run on, give up: each run rolls back at its next step boundary."""
        from perdure.api.hierarchies import cancel_or_refuse

        async with desk.client() as client:
            with _advised():
                await cancel_or_refuse(client.session, id, reason=reason, actor=actor())
        _done(desk, "cancelled", id)

    @verb(roots, "cancel-token")
    async def cancel_by_token(
        desk: Desk,
        name: Annotated[str, typer.Argument(metavar="NAME", help="The name of the cancellation token.")],
        reason: Why = "",
    ) -> None:
        """Have all runs give up that were emitted with a cancellation token, and those that will be."""
        from perdure.models.cooperation.context import CancellationToken

        async with desk.client() as client:
            is_first = await client.topics.cancel_token(CancellationToken(name), reason=reason, actor=actor())
        _done(desk, "cancelled" if is_first else "cancelled before", name)

    @verb(roots, "roll-back")
    async def roll_back(desk: Desk, id: Root, reason: Why = "") -> None:
        """Undo a hierarchy that has ended, or the part of it from a run on."""
        from perdure.api.hierarchies import roll_back_or_refuse

        async with desk.client() as client:
            await roll_back_or_refuse(client.session, id, reason=reason, actor=actor())
        _done(desk, "rolling back", id)


def _done(desk: Desk, what: str, id: str) -> None:
    if desk.as_json:
        desk.document({"result": what, "id": id})
    else:
        desk.line(what, id)


__all__ = ["add_to"]
