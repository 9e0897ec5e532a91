"""`perdure runs watch`: what happens, as it happens."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.desk import Desk, rich_table
from perdure.cli.failures import Code, Refusal
from perdure.cli.selection import Choice, Statuses, Tags, Workflow
from perdure.cli.texts import brief, span
from perdure.cli.verbs import verb

if TYPE_CHECKING:
    from perdure.engine import AnyClient
    from perdure.views import EntryView, RunView

_LOOK_EVERY_S = 0.25
_FAILED = ("failed", "cancelled", "rolled_back", "rollback_failed")


def add_to(runs: typer.Typer) -> None:
    @verb(runs, "watch")
    async def watch(
        desk: Desk,
        id: Annotated[str | None, typer.Argument(metavar="ID", help="One run; all of them without it.")] = None,
        workflow: Workflow = None,
        status: Statuses = None,
        tag: Tags = None,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after so long: 90s, 5m.")] = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=200, help="How many of all runs.")] = 20,
    ) -> int:
        """Follow a run until it ends: every entry of its journal. Exits with 1 if it does not succeed. Without an id,
        follow all runs until Ctrl-C."""
        choice = Choice(workflow=workflow, status=status, tag=tag)
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        try:
            async with desk.client() as client, asyncio.timeout(limit_s):
                if id is not None:
                    return await follow(desk, client, id)
                await _follow_all(desk, client, choice, limit)
        except TimeoutError:
            if id is not None:
                raise Refusal(
                    f"run {id!r} has not ended within {timeout}; it goes on", code=Code.TIMED_OUT, kind="timed_out"
                ) from None
        return Code.DONE


async def follow(desk: Desk, client: AnyClient, id: str) -> int:
    """Show a run until it has ended; the exit code. Raises RunNotFound."""
    from perdure.cli.runs import existing

    if desk.is_terminal:
        return await _follow_live(desk, client, id)
    seen, status = 0, ""
    while True:
        run = await existing(client, id)  # First, so that no entry of a run that has ended is missed.
        journal = (await client.handle(id).history()).journal
        if len(journal) < seen:
            seen = 0  # It was retried, or goes on as another call.
        for entry in journal[seen:]:
            seen += 1
            if desk.as_json:
                desk.json_line({"entry": entry})
            else:
                desk.line(entry.at, entry.kind, entry.name, _outcome(entry))
        if run.status != status:
            status = run.status
            if desk.as_json:
                desk.json_line({"run": run})
            else:
                desk.line(run.updated_at, status, _came_to(run))
        if run.completed_at is not None:
            return _code(run)
        await asyncio.sleep(_LOOK_EVERY_S)


async def _follow_live(desk: Desk, client: AnyClient, id: str) -> int:
    from rich.console import Group
    from rich.text import Text

    from perdure.cli.desk import COLOURS
    from perdure.cli.runs import existing, told

    with desk.live() as live:
        while True:
            run = await existing(client, id)
            entries = (await client.handle(id).history()).journal
            waits = await client.handle(id).waits() if run.completed_at is None else []
            waits = [wait for wait in waits if wait.kind != "code"]  # It is stranded, which is said already.
            published = await client.handle(id).published()
            passed = (run.completed_at or datetime.now(UTC)) - run.created_at
            head = Text(f"{brief(run.id)}  {brief(run.workflow)}  ")
            head.append(run.status, style=COLOURS.get(run.status, ""))
            head.append(f"  {span(passed)}", style="dim")
            rows = [
                (one.name or one.kind, span(one.at - one.started_at), _outcome(one))
                for one in entries[-max(5, desk.console.height - 10) :]
            ]
            parts: list[Any] = [head]
            if rows:
                parts.append(rich_table(("did", "took", "value"), rows))
            parts += [Text(f"waits for {brief(told(one), 200)}", style="blue") for one in waits[:5]]
            parts += [Text(f"{brief(name)} = {brief(value)}", style="dim") for name, value in published.items()]
            if run.completed_at is not None:
                parts.append(Text(_came_to(run)))
            live.update(Group(*parts), refresh=True)
            if run.completed_at is not None:
                return _code(run)
            await asyncio.sleep(_LOOK_EVERY_S)


async def _follow_all(desk: Desk, client: AnyClient, choice: Choice, limit: int) -> None:
    from perdure.cli.runs import COLUMNS, row

    if desk.is_terminal:
        with desk.live() as live:
            while True:
                found, _ = await choice.page(client, limit)
                live.update(rich_table(COLUMNS, [row(run, people=True) for run in found]), refresh=True)
                await asyncio.sleep(_LOOK_EVERY_S)
    versions: dict[str, int] = {}
    while True:
        found, _ = await choice.page(client, limit)
        for run in reversed(found):
            if versions.get(run.id) != run.version:
                if desk.as_json:
                    desk.json_line({"run": run})
                else:
                    desk.table(COLUMNS, [row(run, people=False)], empty="")
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
