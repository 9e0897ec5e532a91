"""`perdure runs watch`: follow a run, or all runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.formats import brief, span
from perdure.cli.run_lines import COLUMNS, existing, row, wait_text, waits_of
from perdure.cli.run_selection import Selection, Statuses, Tags, Workflow
from perdure.cli.terminal import COLOURS, Terminal, rich_table

if TYPE_CHECKING:
    from perdure.engine import AnyClient
    from perdure.views import EntryView, RunView

_LOOK_EVERY_S = 0.25
_FAILED = ("failed", "cancelled", "rolled_back", "rollback_failed")


def add_to(runs: typer.Typer) -> None:
    @command(runs, "watch")
    async def watch(
        terminal: Terminal,
        id: Annotated[str | None, typer.Argument(metavar="ID", help="The run to follow. Without it, all runs.")] = None,
        workflow: Workflow = None,
        status: Statuses = None,
        tag: Tags = None,
        timeout: Annotated[
            str | None, typer.Option("--timeout", help="Stop following after this time: 90s, 5m.")
        ] = None,
        limit: Annotated[
            int, typer.Option("--limit", "-n", min=1, max=200, help="Without an id: how many of the newest runs.")
        ] = 20,
    ) -> int:
        """Follow a run until it has ended.

        The command shows each entry of the journal. It exits with 1 unless the run succeeds. Without an id, it follows
        all runs until Ctrl-C."""
        selection = Selection(workflow=workflow, status=status, tag=tag)
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        try:
            async with terminal.client() as client, asyncio.timeout(limit_s):
                if id is not None:
                    return await follow(terminal, client, id)
                await _follow_all(terminal, client, selection, limit)
        except TimeoutError:
            if id is not None:
                raise Refusal(
                    f"run {id!r} has not ended within {timeout}; it continues", code=Code.TIMED_OUT, kind="timed_out"
                ) from None
        return Code.DONE


async def follow(terminal: Terminal, client: AnyClient, id: str) -> int:
    """Show a run until it has ended, and return the exit code. Raises RunNotFound."""
    if terminal.is_tty:
        return await _follow_live(terminal, client, id)
    seen, status = 0, ""
    while True:
        run = await existing(
            client, id
        )  # The run is read before its journal. So if the run has ended, its journal is complete.
        journal = (await client.handle(id).history()).journal
        if len(journal) < seen:
            # A retry set entries aside, or the run continued as another call. So show the journal again from the
            # beginning.
            seen = 0
        for entry in journal[seen:]:
            seen += 1
            if terminal.as_json:
                terminal.json_line({"entry": entry})
            else:
                terminal.line(entry.at, entry.kind, entry.name, _outcome(entry))
        if run.status != status:
            status = run.status
            if terminal.as_json:
                terminal.json_line({"run": run})
            else:
                terminal.line(run.updated_at, status, _came_to(run))
        if run.completed_at is not None:
            return _code(run)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _follow_live(terminal: Terminal, client: AnyClient, id: str) -> int:
    from rich.console import Group
    from rich.text import Text

    with terminal.live() as live:
        while True:
            run = await existing(client, id)
            entries = (await client.handle(id).history()).journal
            waits = await waits_of(client, run)
            published = await client.handle(id).published()
            passed = (run.completed_at or datetime.now(UTC)) - run.created_at
            head = Text(f"{brief(run.id)}  {brief(run.workflow)}  ")
            head.append(run.status, style=COLOURS.get(run.status, ""))
            head.append(f"  {span(passed)}", style="dim")
            rows = [
                (one.name or one.kind, span(one.at - one.started_at), _outcome(one))
                for one in entries[-max(5, terminal.console.height - 10) :]
            ]
            parts: list[Any] = [head]
            if rows:
                parts.append(rich_table(("did", "took", "value"), rows))
            parts += [Text(f"waits for {brief(wait_text(one), 200)}", style="blue") for one in waits[:5]]
            parts += [Text(f"{brief(name)} = {brief(value)}", style="dim") for name, value in published.items()]
            if run.completed_at is not None:
                parts.append(Text(_came_to(run)))
            live.update(Group(*parts), refresh=True)
            if run.completed_at is not None:
                return _code(run)
            await asyncio.sleep(_LOOK_EVERY_S)


async def _follow_all(terminal: Terminal, client: AnyClient, selection: Selection, limit: int) -> None:
    if terminal.is_tty:
        with terminal.live() as live:
            while True:
                found, _ = await selection.page(client, limit)
                live.update(rich_table(COLUMNS, [row(run, relative=True) for run in found]), refresh=True)
                await asyncio.sleep(_LOOK_EVERY_S)
    versions: dict[str, int] = {}
    while True:
        found, _ = await selection.page(client, limit)
        for run in reversed(found):
            if versions.get(run.id) != run.version:
                if terminal.as_json:
                    terminal.json_line({"run": run})
                else:
                    terminal.table(COLUMNS, [row(run, relative=False)], empty="")
        versions = {run.id: run.version for run in found}
        await asyncio.sleep(_LOOK_EVERY_S)


def _outcome(entry: EntryView) -> str:
    return brief(entry.value if entry.failure is None else f"failed: {entry.failure.text}")


def _came_to(run: RunView) -> str:
    if run.failure is not None:
        return brief(f"{run.failure.type.partition(':')[2]}: {run.failure.text}", 200)
    return brief(run.output, 200) if run.status == "succeeded" else ""


def _code(run: RunView) -> int:
    return Code.FAILED if run.status in _FAILED else Code.DONE


__all__ = ["add_to", "follow"]
