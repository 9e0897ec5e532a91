"""`perdure emit` and `perdure topics`: topics, their handlers, and the hierarchies that messages begin."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from perdure import errors
from perdure.cli import params
from perdure.cli.commands import command, group
from perdure.cli.errors import Code, Refusal, refused
from perdure.cli.formats import to_json
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.api.root_handle import RootHandle

TopicName = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]
HandlerName = Annotated[str, typer.Argument(metavar="HANDLER", help="The handler's name.")]
HandlerRun = Annotated[str, typer.Argument(metavar="ID", help="The id of the handler's run.")]
Root = Annotated[str, typer.Argument(metavar="ID", help="The id of a hierarchy, or of one of its runs.")]
Reason = Annotated[str, typer.Option("--reason", help="Why. The runs' audit trails keep it.")]


def add_to(app: typer.Typer) -> None:
    _add_emit(app)
    topics = group(app, "topics", "Topics, their handlers, and what follows from messages.")
    _add_handlers(topics)
    _add_outside(topics)
    _add_roots(topics)


def _add_emit(app: typer.Typer) -> None:
    @command(app, "emit")
    async def emit(
        terminal: Terminal,
        topic: TopicName,
        fields: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Fields of the message. A value that is not JSON is text."),
        ] = None,
        message: Annotated[
            str | None,
            typer.Option("--message", "-m", metavar="JSON", help="The whole message: JSON, @FILE, or - for stdin."),
        ] = None,
        id: Annotated[
            str | None, typer.Option("--id", help="The message's id. Emitting it again then changes nothing.")
        ] = None,
        tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="NAME=VALUE", help="A tag.")] = None,
        deadline: Annotated[
            str | None,
            typer.Option("--deadline", help="The time by which all must be done; else it rolls back: 2h, or a time."),
        ] = None,
        rollback_deadline: Annotated[
            str | None,
            typer.Option("--rollback-deadline", help="The time by which a rollback must be done; else it has failed."),
        ] = None,
        delay: Annotated[str | None, typer.Option("--delay", help="Handlers begin after this time: 90s, 5m.")] = None,
        token: Annotated[
            list[str] | None,
            typer.Option(
                "--token", metavar="NAME", help="A cancellation token (perdure topics cancel-token). Repeatable."
            ),
        ] = None,
        wait: Annotated[
            bool, typer.Option("--wait", help="Wait until all is done. Exits with 1 if it failed.")
        ] = False,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Wait no longer than this: 90s, 5m.")] = None,
    ) -> int:
        """Emit a message on a topic.

        Every handler that is registered for the topic gets the message. The message is durable when the command
        returns."""
        from perdure.models.cooperation.context import CancellationToken

        what = params.values(fields or (), message, "--message")
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        async with terminal.client() as client:
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
        if terminal.as_json:
            terminal.document({"id": root.id, "message_id": root.message_id, "run_ids": root.run_ids})
        else:
            terminal.line(root.id)
        return Code.DONE


@contextmanager
def _advised() -> Generator[None, None, None]:
    """Replace the advice for runs by advice for hierarchies, because `perdure runs show` cannot show a hierarchy."""
    try:
        yield
    except (errors.RunExists, errors.RunFinished) as error:
        refusal = refused(error)
        assert refusal is not None
        refusal.todo = f"see what it did: perdure runs tree {quote(error.run_id)}"
        raise refusal from error


async def _finished(root: RootHandle, limit_s: float | None) -> None:
    from perdure.errors import ScopeFailed

    tree = f"see what it did: perdure runs tree {root.id}"
    try:
        async with asyncio.timeout(limit_s):
            await root.finished()
    except TimeoutError:
        raise Refusal(
            f"hierarchy {root.id!r} has not ended within {limit_s:g} s; it continues",
            tree,
            code=Code.TIMED_OUT,
            kind="timed_out",
        ) from None
    except ScopeFailed as failed:
        raise Refusal(str(failed), tree, code=Code.FAILED, kind="scope_failed") from failed


def _add_handlers(topics: typer.Typer) -> None:
    @command(topics, "list")
    async def list_topics(terminal: Terminal) -> None:
        """List the topics that have handlers, with the handlers."""
        async with terminal.client() as client:
            found = await client.topics.handlers()
        if terminal.as_json:
            terminal.document({"topics": [{"topic": topic, "handlers": names} for topic, names in found.items()]})
            return
        rows = [(topic, name) for topic, names in found.items() for name in names]
        terminal.table(("topic", "handler"), rows, empty="no topic has a handler")

    @command(topics, "register")
    async def register(terminal: Terminal, topic: TopicName, handler: HandlerName) -> None:
        """Register an outside handler.

        An outside handler is a person or another system. From then on, messages of the topic wait for this handler."""
        async with terminal.client() as client:
            await client.topics.register(topic, handler, actor=actor())
        _show_handler(terminal, "registered", topic, handler)

    @command(topics, "retire")
    async def retire(
        terminal: Terminal,
        topic: TopicName,
        handler: HandlerName,
        release: Annotated[
            bool, typer.Option("--release", help="Messages that it has not begun no longer wait for it.")
        ] = False,
    ) -> None:
        """Retire a handler.

        Messages that are emitted from now on do not wait for it."""
        async with terminal.client() as client:
            done = await client.topics.retire(topic, handler, release=release, actor=actor())
        if not done:
            raise Refusal(
                f"the topic {topic!r} has no handler {handler!r}",
                "list the handlers: perdure topics list",
                code=Code.NOT_FOUND,
                kind="handler_not_found",
            )
        _show_handler(terminal, "retired", topic, handler)


def _show_handler(terminal: Terminal, what: str, topic: str, handler: str) -> None:
    if terminal.as_json:
        terminal.document({"result": what, "topic": topic, "handler": handler})
    else:
        terminal.line(what, topic, handler)


def _add_outside(topics: typer.Typer) -> None:
    @command(topics, "message")
    async def message(terminal: Terminal, id: HandlerRun) -> None:
        """Show the message that a handler's run handles."""
        async with terminal.client() as client:
            found = await client.topics.message(id)
        if terminal.as_json:
            terminal.document({"run_id": id, "message": found})
        else:
            terminal.print_raw(to_json(found))

    @command(topics, "complete")
    async def complete(
        terminal: Terminal,
        id: HandlerRun,
        values: Annotated[
            list[str] | None,
            typer.Argument(
                metavar="NAME=VALUE", help="Values that the handler returns. A value that is not JSON is text."
            ),
        ] = None,
    ) -> None:
        """Complete the run of an outside handler.

        An outside handler is a person or another system."""
        returned = params.values(values or (), None, "NAME=VALUE")
        async with terminal.client() as client:
            await client.topics.complete(id, returned, actor=actor())
        _done(terminal, "completed", id)

    @command(topics, "fail")
    async def fail(
        terminal: Terminal,
        id: HandlerRun,
        reason: Annotated[str, typer.Argument(metavar="REASON", help="Why the handler could not do it.")],
    ) -> None:
        """Fail the run of an outside handler.

        Do this only if no work of the handler needs to be undone."""
        async with terminal.client() as client:
            await client.topics.fail(id, reason, actor=actor())
        _done(terminal, "failed", id)

    @command(topics, "complete-rollback")
    async def complete_rollback(terminal: Terminal, id: HandlerRun) -> None:
        """Complete the rollback of an outside handler.

        Do this once the handler's work is undone, as the emitter requested."""
        async with terminal.client() as client:
            await client.topics.complete_rollback(id, actor=actor())
        _done(terminal, "rolled back", id)


def _add_roots(topics: typer.Typer) -> None:
    @command(topics, "hierarchy")
    async def hierarchy(terminal: Terminal, id: Root) -> None:
        """Show the hierarchy that followed from a message.

        The output has the events of each message of the hierarchy, in order. To see the runs, use perdure runs tree."""
        async with terminal.client() as client:
            found = await client.handle(id).hierarchy()
        if terminal.as_json:
            terminal.document(found)
            return
        rows = [
            (one.at, one.topic, one.kind, one.name, one.scope, "" if one.failure is None else one.failure.text)
            for one in found.events
        ]
        terminal.table(("at", "topic", "kind", "name", "run", "failure"), rows, empty="nothing has happened")

    @command(topics, "cancel")
    async def cancel(terminal: Terminal, id: Root, reason: Reason = "") -> None:
        """Cancel a hierarchy, or the part of it below a run. Each run rolls back at its next step boundary."""
        from perdure.api.hierarchies import cancel_or_refuse

        async with terminal.client() as client:
            with _advised():
                await cancel_or_refuse(client.session, id, reason=reason, actor=actor())
        _done(terminal, "cancelled", id)

    @command(topics, "cancel-token")
    async def cancel_by_token(
        terminal: Terminal,
        name: Annotated[str, typer.Argument(metavar="NAME", help="The cancellation token's name.")],
        reason: Reason = "",
    ) -> None:
        """Cancel a cancellation token.

        All runs of messages that were emitted with the token roll back. Runs of messages that are emitted with it later
        roll back too."""
        from perdure.models.cooperation.context import CancellationToken

        async with terminal.client() as client:
            is_first = await client.topics.cancel_token(CancellationToken(name), reason=reason, actor=actor())
        _done(terminal, "cancelled" if is_first else "cancelled before", name)

    @command(topics, "roll-back")
    async def roll_back(terminal: Terminal, id: Root, reason: Reason = "") -> None:
        """Roll back a hierarchy that has ended.

        With the id of a run, only that run and the runs below it are rolled back."""
        from perdure.api.hierarchies import roll_back_or_refuse

        async with terminal.client() as client:
            await roll_back_or_refuse(client.session, id, reason=reason, actor=actor())
        _done(terminal, "rolling back", id)


def _done(terminal: Terminal, what: str, id: str) -> None:
    if terminal.as_json:
        terminal.document({"result": what, "id": id})
    else:
        terminal.line(what, id)


__all__ = ["add_to"]
