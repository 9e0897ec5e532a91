"""`perdure start`: start a run of a workflow. After that, an engine executes the run."""

from __future__ import annotations

import asyncio
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal, refused
from perdure.cli.formats import to_json
from perdure.cli.settings import actor
from perdure.cli.terminal import Terminal

if TYPE_CHECKING:
    from perdure.engine import AnyClient


def add_to(app: typer.Typer) -> None:
    @command(app, "start")
    async def start(
        terminal: Terminal,
        workflow: Annotated[str, typer.Argument(metavar="WORKFLOW", help="The workflow's name.")],
        arguments: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Its arguments. A value that is not JSON is text."),
        ] = None,
        input: Annotated[
            str | None,
            typer.Option(
                "--input", "-i", metavar="JSON", help="All arguments as an object: JSON, @FILE, or - for stdin."
            ),
        ] = None,
        id: Annotated[
            str | None, typer.Option("--id", help="The run's id. Starting it again then changes nothing.")
        ] = None,
        tag: Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="NAME=VALUE", help="A tag.")] = None,
        deadline: Annotated[
            str | None, typer.Option("--deadline", help="The time by which the run must end: 2h, or a time.")
        ] = None,
        version: Annotated[
            str | None, typer.Option("--version", help="The workflow's version. Default: that of a live engine.")
        ] = None,
        wait: Annotated[
            bool, typer.Option("--wait", help="Wait until the run has ended. Exits with 1 if it failed.")
        ] = False,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Wait no longer than this: 90s, 5m.")] = None,
    ) -> int:
        """Start a run of a workflow. An engine that has the workflow executes the run."""
        arguments_given = params.values(arguments or (), input, "--input")
        if not isinstance(arguments_given, dict):
            raise Refusal("--input is not an object with a value for each argument", """--input '{"order": "o-17"}'""")
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        async with terminal.client() as client:
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
                return await ended(terminal, client, run.id, limit_s)
        if terminal.as_json:
            terminal.document({"id": run.id})
        else:
            terminal.line(run.id)
        return Code.DONE


async def ended(terminal: Terminal, client: AnyClient, id: str, limit_s: float | None) -> int:
    """Wait until a run has ended, show its result, and return the exit code. Raises Refusal if the run fails or takes
    longer than `limit_s`."""
    from perdure.errors import Outcome

    value: Any = None
    failed: Outcome | None = None
    try:
        async with asyncio.timeout(limit_s):
            value = await client.handle(id).result()
    except TimeoutError:
        raise Refusal(
            f"run {id!r} has not ended within {limit_s:g} s; it continues",
            f"follow it: perdure runs watch {quote(id)}",
            code=Code.TIMED_OUT,
            kind="timed_out",
        ) from None
    except Outcome as error:
        failed = error
    if terminal.as_json:
        terminal.document({"run": await client.runs.get(id)})
        return Code.FAILED if failed else Code.DONE
    if failed is not None:
        refusal = refused(failed)
        raise Refusal(
            refusal.what if refusal else str(failed),
            f"see what it did: perdure runs history {quote(id)}; run it again: perdure runs retry {quote(id)}",
            code=Code.FAILED,
            kind="run_failed",
        )
    terminal.print_raw(to_json(value))
    return Code.DONE


__all__ = ["add_to", "ended"]
