"""`perdure start`: have an engine run something."""

from __future__ import annotations

import asyncio
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal, refused
from perdure.cli.settings import actor
from perdure.cli.texts import to_json
from perdure.cli.verbs import verb

if TYPE_CHECKING:
    from perdure.engine import AnyClient


def add_to(app: typer.Typer) -> None:
    @verb(app, "start")
    async def start(
        desk: Desk,
        workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")],
        arguments: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Its arguments; values are JSON, or else texts."),
        ] = None,
        input: Annotated[
            str | None, typer.Option("--input", "-i", metavar="JSON", help="All arguments as an object; @FILE, or -.")
        ] = None,
        id: Annotated[
            str | None, typer.Option("--id", help="The run's id; starting it again then does nothing.")
        ] = None,
        tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="NAME=VALUE", help="A tag.")] = None,
        deadline: Annotated[
            str | None, typer.Option("--deadline", help="When it must have ended: 2h, or a time.")
        ] = None,
        version: Annotated[str | None, typer.Option("--version", help="Of the workflow; what an engine has.")] = None,
        wait: Annotated[bool, typer.Option("--wait", help="Until it has ended; exits with 1 if it failed.")] = False,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Wait no longer than this: 90s, 5m.")] = None,
    ) -> int:
        """Start a run of a workflow by name. An engine that has it carries it out."""
        arguments_given = params.values(arguments or (), input, "--input")
        if not isinstance(arguments_given, dict):
            raise Refusal("the arguments are an object: a name and a value for each", """--input '{"order": "o-17"}'""")
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        async with desk.client() as client:
            run = await client.start(
                workflow,
                arguments_given,
                version=version,
                id=id,
                tags=params.tags(tag or ()),
                deadline=params.deadline(deadline),
                actor=actor(),
            )
            if wait or timeout is not None:
                return await ended(desk, client, run.id, limit_s)
        if desk.as_json:
            desk.document({"id": run.id})
        else:
            desk.line(run.id)
        return Code.DONE


async def ended(desk: Desk, client: AnyClient, id: str, limit_s: float | None) -> int:
    """Wait for a run's end and show what it came to; the exit code. Raises Refusal if it takes too long."""
    from perdure.errors import Outcome

    value: Any = None
    failed: Outcome | None = None
    try:
        async with asyncio.timeout(limit_s):
            value = await client.handle(id).result()
    except TimeoutError:
        raise Refusal(
            f"run {id!r} has not ended within {limit_s:g} s; it goes on",
            f"follow it: perdure runs watch {quote(id)}",
            code=Code.TIMED_OUT,
            kind="timed_out",
        ) from None
    except Outcome as error:
        failed = error
    if desk.as_json:
        desk.document({"run": await client.runs.get(id)})
        return Code.FAILED if failed else Code.DONE
    if failed is not None:
        refusal = refused(failed)
        raise Refusal(
            refusal.what if refusal else str(failed),
            f"what it did: perdure runs history {quote(id)}; again from there: perdure runs retry {quote(id)}",
            code=Code.FAILED,
            kind="run_failed",
        )
    desk.print_raw(to_json(value))
    return Code.DONE


__all__ = ["add_to", "ended"]
