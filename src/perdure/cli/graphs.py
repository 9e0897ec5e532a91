"""`perdure graph`: check, draw and try a graph before you deploy it. run_details.py has the commands for runs of
graphs.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from perdure.cli import params
from perdure.cli.commands import command, group
from perdure.cli.errors import Code
from perdure.cli.graph_source import Modules, graph_at
from perdure.cli.settings import actor
from perdure.cli.start import ended
from perdure.cli.terminal import Terminal, write_file

Source = Annotated[
    str, typer.Argument(metavar="FILE|MODULE:NAME", help="A file with YAML or JSON, or a graph in a module.")
]


class Form(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"
    YAML = "yaml"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    graph = group(app, "graph", "Check, draw and try a graph: a file, or one in a module.")
    _add_validate(graph)
    _add_draw(graph)
    _add_run(graph)


def _add_validate(graph: typer.Typer) -> None:
    @command(graph, "validate")
    async def validate(terminal: Terminal, source: Source, module: Modules = None) -> int:
        """Check a graph.

        The output has every problem with its place in the graph. The command exits with 1 if there are problems."""
        from perdure.errors import InvalidDefinition

        problems: list[str] = []
        name = None
        try:
            found = graph_at(terminal, source, module).build()
            name = found.name
        except InvalidDefinition as error:
            problems = list(getattr(error, "problems", None) or [str(error)])
        if terminal.as_json:
            terminal.document({"graph": name, "valid": not problems, "problems": problems})
        elif problems:
            for problem in problems:
                terminal.line(problem)
        else:
            terminal.line(f"graph {name} is valid")
        return Code.FAILED if problems else Code.DONE


def _add_draw(graph: typer.Typer) -> None:
    @command(graph, "draw")
    async def draw(
        terminal: Terminal,
        source: Source,
        form: Annotated[Form, typer.Option("--form", "-f", help="The format to write.")] = Form.MERMAID,
        output: Annotated[
            Path | None, typer.Option("--output", "-o", help="Write to this file instead of standard output.")
        ] = None,
        module: Modules = None,
    ) -> None:
        """Draw a graph, or write its definition.

        The picture is a Mermaid flowchart or SVG; the definition is YAML or JSON.

        To draw a run with its tokens, use perdure runs drawing."""
        found = graph_at(terminal, source, module)
        if form is Form.MERMAID:
            text = found.to_mermaid()
        elif form is Form.SVG:
            text = found.to_svg()
        else:
            text = found.dump("yaml" if form is Form.YAML else "json")
        if output is not None:
            write_file(output, text)
        if terminal.as_json:
            path = None if output is None else str(output)
            terminal.document({"graph": found.name, "form": str(form), "text": text, "path": path})
        elif output is None:
            terminal.print_raw(text.rstrip("\n"))


def _add_run(graph: typer.Typer) -> None:
    @command(graph, "run")
    async def run(
        terminal: Terminal,
        source: Source,
        arguments: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Fields of the input. A value that is not JSON is text."),
        ] = None,
        input: Annotated[
            str | None,
            typer.Option("--input", "-i", metavar="JSON", help="The whole input: JSON, @FILE, or - for stdin."),
        ] = None,
        keep: Annotated[
            bool, typer.Option("--keep", help="Keep the run in the store. Otherwise it runs in memory.")
        ] = False,
        id: Annotated[
            str | None, typer.Option("--id", help="The run's id. With --keep, a run with this id is continued.")
        ] = None,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after this time: 90s, 5m.")] = None,
        module: Modules = None,
    ) -> int:
        """Run a graph in this process, and show the result."""
        from perdure import Engine

        found = graph_at(terminal, source, module).build()
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        is_given = bool(arguments) or input is not None
        values = params.values(arguments or (), input, "--input") if is_given else None
        store = terminal.settings.store if keep else "memory://"
        async with Engine(store, workflows=[found], codec=terminal.settings.codec if keep else None) as engine:
            arguments_given = {"input": values} if is_given else {}
            handle = await engine.start(found.name, arguments_given, version=found.version, id=id, actor=actor())
            return await ended(terminal, engine, handle.id, limit_s)


__all__ = ["add_to"]
