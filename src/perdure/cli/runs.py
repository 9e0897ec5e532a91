"""`perdure runs`: list and count runs, and look at one run.

run_details.py shows single aspects of a run, run_changes.py changes runs, and run_watch.py follows runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli import run_changes, run_details, run_watch
from perdure.cli.commands import command, group
from perdure.cli.formats import brief, span, tame, to_json
from perdure.cli.params import Id
from perdure.cli.run_lines import COLUMNS, existing, fields, row, wait_text, waits_of
from perdure.cli.run_selection import Before, Hold, Parent, Selection, Since, Statuses, Tags, Workflow
from perdure.cli.terminal import COLOURS, Terminal

if TYPE_CHECKING:
    from rich.tree import Tree

    from perdure.engine import AnyClient
    from perdure.views import AuditView, EntryView, RunTree, RunView

_COUNT_MAX = 10_000_000
_AUDIT = ("version", "at", "was", "became", "cause", "actor", "details")
_JOURNAL = ("seq", "position", "kind", "name", "at", "took", "attempts", "value")


def add_to(app: typer.Typer) -> None:
    runs = group(app, "runs", "Find runs, look at them, and change them.")
    _add_list(runs)
    _add_count(runs)
    _add_show(runs)
    _add_history(runs)
    _add_tree(runs)
    run_details.add_to(runs)
    run_changes.add_to(runs)
    run_watch.add_to(runs)


def _add_list(runs: typer.Typer) -> None:
    @command(runs, "list")
    async def list_runs(
        terminal: Terminal,
        workflow: Workflow = None,
        status: Statuses = None,
        hold: Hold = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=1000, help="List at most this many.")] = 50,
        cursor: Annotated[str | None, typer.Option("--cursor", help="The cursor that the previous page gave.")] = None,
    ) -> None:
        """List runs, newest first."""
        selection = Selection(
            workflow=workflow, status=status, hold=hold, tag=tag, parent=parent, since=since, before=before
        )
        async with terminal.client() as client:
            found, following = await selection.page(client, limit, cursor)
        if terminal.as_json:
            terminal.document({"runs": found, "cursor": following})
            return
        terminal.table(COLUMNS, [row(run, relative=terminal.is_tty) for run in found], empty="no run matches")
        if following is not None:
            terminal.note(f"there are more: --cursor {following}")


def _add_count(runs: typer.Typer) -> None:
    @command(runs, "count")
    async def count(
        terminal: Terminal,
        workflow: Workflow = None,
        status: Statuses = None,
        hold: Hold = None,
        tag: Tags = None,
        parent: Parent = None,
        since: Since = None,
        before: Before = None,
        limit: Annotated[
            int, typer.Option("--limit", "-n", min=1, max=_COUNT_MAX, help="Stop counting at this number.")
        ] = 10_000,
    ) -> None:
        """Count runs."""
        selection = Selection(
            workflow=workflow, status=status, hold=hold, tag=tag, parent=parent, since=since, before=before
        )
        async with terminal.client() as client:
            found = await selection.count(client, limit)
        if terminal.as_json:
            terminal.document({"count": found, "limit": limit})
        else:
            terminal.line(found)
            if found == limit:
                terminal.note("there may be more: count further with --limit")


def _add_show(runs: typer.Typer) -> None:
    @command(runs, "show")
    async def show(terminal: Terminal, id: Id) -> None:
        """Show a run.

        The output has the run's input, its output or its failure, and what the run waits for."""
        async with terminal.client() as client:
            run = await existing(client, id)
            waits = await waits_of(client, run)
            published = await client.handle(id).published()
            entry = await _failed_entry(client, run)
        if terminal.as_json:
            terminal.document({"run": run, "waits": waits, "published": published, "failed_entry": entry})
            return
        terminal.fields(fields(run))
        terminal.fields(("waits for", text) for text in map(wait_text, waits))
        terminal.fields(("published", f"{name} = {to_json(value)}") for name, value in published.items())
        if entry is not None:
            terminal.fields([("failed at", f"{entry.kind} {entry.name}, position {entry.position}")])
        failure = entry.failure if entry is not None else run.failure
        if failure is not None and failure.stack and terminal.is_tty:
            terminal.print_lines(["", *failure.stack.splitlines()])


async def _failed_entry(client: AnyClient, run: RunView) -> EntryView | None:
    """Return the journal entry whose failure ended the run, or None. The entry has the stack of the step."""
    if run.failure is None or run.failure.entry is None:
        return None
    history = await client.handle(run.id).history()
    return next((entry for entry in history.journal if entry.seq == run.failure.entry and entry.failure), None)


def _add_history(runs: typer.Typer) -> None:
    @command(runs, "history")
    async def history(terminal: Terminal, id: Id) -> None:
        """Show what a run did: the entries of its journal."""
        async with terminal.client() as client:
            found = await client.handle(id).history()
        if terminal.as_json:
            terminal.document(found)
            return
        width = 60 if terminal.is_tty else 10_000
        terminal.table(_JOURNAL, [_entry(one, width) for one in found.journal], empty="it has done nothing so far")

    @command(runs, "audit")
    async def audit(terminal: Terminal, id: Id) -> None:
        """Show the changes of a run, and who requested them.

        These are changes of its status, its hold, its tags and its deadline."""
        async with terminal.client() as client:
            found: list[AuditView] = await client.handle(id).audit()
        if terminal.as_json:
            terminal.document({"audit": found})
            return
        terminal.table(_AUDIT, [[getattr(one, name) for name in _AUDIT] for one in found], empty="nothing changed")


def _entry(entry: EntryView, width: int) -> tuple[object, ...]:
    return (
        entry.seq,
        entry.position,
        entry.kind,
        entry.name,
        entry.at,
        span(entry.at - entry.started_at),
        entry.attempts,
        brief(entry.value if entry.failure is None else f"failed: {entry.failure.text}", width),
    )


def _add_tree(runs: typer.Typer) -> None:
    @command(runs, "tree")
    async def tree(terminal: Terminal, id: Id) -> None:
        """Show a run and all runs below it."""
        async with terminal.client() as client:
            found = await client.handle(id).tree()
        if terminal.as_json:
            terminal.document(found)
        elif terminal.is_tty:
            terminal.console.print(_drawn(found))
        else:
            for depth, run in _flat(found):
                terminal.line(f"{'  ' * depth}{run.id}", run.workflow, run.status)


def _drawn(tree: RunTree) -> Tree:
    from rich.text import Text
    from rich.tree import Tree

    def label(run: RunView) -> Text:
        text = Text(tame(run.id))
        text.append(f"  {tame(run.workflow)}", style="dim")
        text.append(f"  {run.status}", style=COLOURS.get(run.status, ""))
        return text

    root = Tree(label(tree.run), guide_style="dim")
    ahead = [(root, tree)]
    while ahead:
        branch, part = ahead.pop()
        ahead += [(branch.add(label(child.run)), child) for child in part.children]
    return root


def _flat(tree: RunTree) -> Iterator[tuple[int, RunView]]:
    ahead = [(0, tree)]
    while ahead:
        depth, part = ahead.pop()
        yield depth, part.run
        ahead += [(depth + 1, child) for child in reversed(part.children)]


__all__ = ["add_to"]
