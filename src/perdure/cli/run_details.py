"""Commands that show one aspect of a run: `perdure runs waits`, `published`, `streams` and `stream`. For a run of a
graph, there are also `tokens`, `graph-events`, `definition` and `drawing`.
"""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import command
from perdure.cli.formats import ago, brief, to_json
from perdure.cli.graph_source import Modules, graph_at
from perdure.cli.params import Id
from perdure.cli.run_lines import existing, wait_text
from perdure.cli.terminal import Terminal, write_file

if TYPE_CHECKING:
    from perdure.graph import Graph

_EVENTS_MAX = 10_000

GraphSource = Annotated[
    str | None,
    typer.Argument(
        metavar="[FILE|MODULE:NAME]", help="The graph. Needed only if the store lacks the run's definition."
    ),
]
StreamName = Annotated[str, typer.Argument(metavar="NAME", help="The stream's name.")]


class Form(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"


def add_to(runs: typer.Typer) -> None:
    _add_waits(runs)
    _add_published(runs)
    _add_streams(runs)
    _add_tokens(runs)
    _add_graph_events(runs)
    _add_definition(runs)
    _add_drawing(runs)


def _add_waits(runs: typer.Typer) -> None:
    @command(runs, "waits")
    async def waits(terminal: Terminal, id: Id) -> None:
        """Show what a run waits for."""
        async with terminal.client() as client:
            found = await client.handle(id).waits()
        if terminal.as_json:
            terminal.document({"waits": found})
            return
        rows = [
            (one.kind, wait_text(one), ago(one.since) if terminal.is_tty else one.since, one.position) for one in found
        ]
        terminal.table(("kind", "waits for", "since", "position"), rows, empty="it waits for nothing")


def _add_published(runs: typer.Typer) -> None:
    @command(runs, "published")
    async def published(
        terminal: Terminal,
        id: Id,
        key: Annotated[str | None, typer.Argument(metavar="[KEY]", help="Show only the value under this key.")] = None,
    ) -> None:
        """Show the values that a run has published."""
        async with terminal.client() as client:
            handle = client.handle(id)
            found: dict[str, Any] = (
                await handle.published() if key is None else {key: await handle.published(key)}
            )  # fmt: skip
        if terminal.as_json:
            terminal.document({"published": found})
        elif key is not None:
            terminal.print_raw(to_json(found[key]))
        else:
            terminal.table(("key", "value"), found.items(), empty="it has published nothing")


def _add_streams(runs: typer.Typer) -> None:
    @command(runs, "streams")
    async def streams(terminal: Terminal, id: Id) -> None:
        """List a run's streams, with the number of items in each."""
        async with terminal.client() as client:
            found = await client.handle(id).streams()
        if terminal.as_json:
            terminal.document({"streams": found})
        else:
            terminal.table(("stream", "items"), found.items(), empty="it has no streams")

    @command(runs, "stream")
    async def stream(
        terminal: Terminal,
        id: Id,
        name: StreamName,
        after: Annotated[int, typer.Option("--after", min=0, help="The offset of the last item that you have.")] = 0,
        follow: Annotated[
            bool, typer.Option("--follow", "-f", help="Wait for more items, until the run has ended.")
        ] = False,
    ) -> None:
        """Show the items of a run's stream, in order.

        With --json, the output has one document per line."""
        async with terminal.client() as client:
            await existing(client, id)
            async for item in client.handle(id).stream(name, after=after, follow=follow):
                if terminal.as_json:
                    terminal.json_line(item)
                elif terminal.is_tty:
                    terminal.line(item.offset, brief(item.value, 200))
                else:
                    terminal.line(item.offset, item.at, to_json(item.value))


def _given(terminal: Terminal, target: str | None, modules: list[str] | None) -> Graph[Any, Any] | None:
    return None if target is None else graph_at(terminal, target, modules)


def _add_tokens(runs: typer.Typer) -> None:
    @command(runs, "tokens")
    async def tokens(terminal: Terminal, id: Id, target: GraphSource = None, module: Modules = None) -> None:
        """Show the tokens of a graph's run.

        The output has the path, the node and the state of each token."""
        found = _given(terminal, target, module)
        async with terminal.client() as client:
            view = await client.handle(id).tokens(graph=found)
        if terminal.as_json:
            terminal.document(view)
            return
        rows = [
            (
                one.id,
                one.path,
                one.node,
                one.state,
                "" if one.parent is None else one.parent,
                ago(one.since) if terminal.is_tty else one.since,
                one.reason or (one.error or {}).get("message", ""),
            )
            for one in view.tokens
        ]
        terminal.table(("token", "path", "node", "state", "from", "since", "why"), rows, empty="it has no tokens yet")


def _add_graph_events(runs: typer.Typer) -> None:
    @command(runs, "graph-events")
    async def graph_events(
        terminal: Terminal,
        id: Id,
        target: GraphSource = None,
        after: Annotated[int, typer.Option("--after", min=0, help="The number of the last event that you have.")] = 0,
        limit: Annotated[int, typer.Option("--limit", "-n", min=1, max=_EVENTS_MAX, help="List at most this many.")] = (
            1_000
        ),
        module: Modules = None,
    ) -> None:
        """Show the events of a graph's run, in order.

        These are events of tokens, edges, nodes and joins."""
        found = _given(terminal, target, module)
        async with terminal.client() as client:
            page = await client.handle(id).graph_events(after=after, limit=limit, graph=found)
        if terminal.as_json:
            terminal.document(page)
            return
        rows = [
            (one.seq, one.at, one.kind, one.node or "", "" if one.token is None else one.token, one.edge or "")
            for one in page.events
        ]
        terminal.table(("seq", "at", "kind", "node", "token", "edge"), rows, empty="nothing has happened")


def _add_definition(runs: typer.Typer) -> None:
    @command(runs, "definition")
    async def definition(terminal: Terminal, id: Id) -> None:
        """Show the definition of a graph's run, as JSON.

        This is the definition that the run was started or last retried with, even if the code has changed since
        then."""
        async with terminal.client() as client:
            view = await client.handle(id).definition()
        if terminal.as_json:
            terminal.document(view)
        else:
            terminal.print_raw(json.dumps(view.definition, indent=2, ensure_ascii=False))


def _add_drawing(runs: typer.Typer) -> None:
    @command(runs, "drawing")
    async def drawing(
        terminal: Terminal,
        id: Id,
        target: GraphSource = None,
        form: Annotated[Form, typer.Option("--form", "-f", help="The format of the picture.")] = Form.MERMAID,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
        ] = None,
        module: Modules = None,
    ) -> None:
        """Draw a graph's run with its tokens.

        The picture is a Mermaid flowchart or SVG."""
        found = _given(terminal, target, module)
        async with terminal.client() as client:
            text = await client.handle(id).drawing(form.value, graph=found)
        if output is not None:
            write_file(output, text)
        if terminal.as_json:
            path = None if output is None else str(output)
            terminal.document({"run_id": id, "form": str(form), "text": text, "path": path})
        elif output is None:
            terminal.print_raw(text.rstrip("\n"))


__all__ = ["add_to"]
