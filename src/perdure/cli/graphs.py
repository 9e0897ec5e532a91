"""`perdure graph`: check, draw and try graphs, from files with YAML or JSON or from modules."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import given
from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.loading import load
from perdure.cli.settings import actor, see_modules
from perdure.cli.starting import ended
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from perdure.graph import Graph

Target = Annotated[
    str, typer.Argument(metavar="FILE|MODULE:NAME", help="A file with YAML or JSON, or a graph in code.")
]


class Form(StrEnum):
    MERMAID = "mermaid"
    SVG = "svg"
    YAML = "yaml"
    JSON = "json"


def add_to(app: typer.Typer) -> None:
    graph = group(app, "graph", "Check, draw and try graphs.")
    _add_validate(graph)
    _add_draw(graph)
    _add_run(graph)


def _add_validate(graph: typer.Typer) -> None:
    @verb(graph, "validate")
    async def validate(desk: Desk, target: Target) -> int:
        """Check a graph: everything that is wrong with it, each with its place."""
        from perdure.errors import InvalidDefinition

        problems: list[str] = []
        name = None
        try:
            found = _loaded(desk, target).build()
            name = found.name
        except InvalidDefinition as error:
            problems = list(getattr(error, "problems", None) or [str(error)])
        if desk.as_json:
            desk.document({"graph": name, "valid": not problems, "problems": problems})
        elif problems:
            for problem in problems:
                desk.line(problem)
        else:
            desk.line(f"graph {name} is valid")
        return Code.FAILED if problems else Code.DONE


def _add_draw(graph: typer.Typer) -> None:
    @verb(graph, "draw")
    async def draw(
        desk: Desk,
        target: Target,
        form: Annotated[Form, typer.Option("--form", "-f", help="What to write.")] = Form.MERMAID,
        run: Annotated[str | None, typer.Option("--run", metavar="ID", help="With the tokens of this run.")] = None,
        output: Annotated[Path | None, typer.Option("--output", "-o", help="A file; else standard output.")] = None,
    ) -> None:
        """Draw a graph: as a Mermaid flowchart, as SVG, or its definition; with the tokens of one of its runs."""
        found = _loaded(desk, target)
        tokens = None
        if run is not None:
            async with desk.client() as client:
                tokens = await client.tokens(run, graph=found)
        if form is Form.MERMAID:
            text = found.to_mermaid(tokens)
        elif form is Form.SVG:
            text = found.to_svg(tokens)
        else:
            text = found.dump("yaml" if form is Form.YAML else "json")
        if output is not None:
            try:
                output.write_text(text, "utf-8")
            except OSError as error:
                raise Refusal(f"{output} cannot be written: {error}", code=Code.FAILED, kind="cannot_write") from error
        if desk.as_json:
            path = None if output is None else str(output)
            desk.document({"graph": found.name, "form": str(form), "text": text, "path": path})
        elif output is None:
            desk.print_raw(text.rstrip("\n"))


def _add_run(graph: typer.Typer) -> None:
    @verb(graph, "run")
    async def run(
        desk: Desk,
        target: Target,
        arguments: Annotated[
            list[str] | None, typer.Argument(metavar="NAME=VALUE", help="Its input; values are JSON, or texts.")
        ] = None,
        input: Annotated[
            str | None, typer.Option("--input", "-i", metavar="JSON", help="All of its input; @FILE, or -.")
        ] = None,
        keep: Annotated[bool, typer.Option("--keep", help="In the store; else it is gone with its end.")] = False,
        id: Annotated[str | None, typer.Option("--id", help="The run's id; with --keep one goes on with it.")] = None,
        timeout: Annotated[str | None, typer.Option("--timeout", help="Give up after so long: 90s, 5m.")] = None,
    ) -> int:
        """Run a graph here and now, with an engine of its own, and show what it came to."""
        from perdure import Engine

        found = _loaded(desk, target).build()
        limit_s = None if timeout is None else given.length(timeout, "--timeout").total_seconds()
        is_given = bool(arguments) or input is not None
        values = given.values(arguments or (), input, "--input") if is_given else None
        store = desk.settings.store if keep else "memory://"
        async with Engine(store, workflows=[found], codec=desk.settings.codec if keep else None) as engine:
            arguments_given = {"input": values} if is_given else {}
            handle = await engine.start(found.name, arguments_given, version=found.version, id=id, actor=actor())
            return await ended(desk, engine, handle.id, limit_s)


def _loaded(desk: Desk, target: str) -> Graph[Any, Any]:
    from perdure.errors import InvalidDefinition
    from perdure.graph import Graph

    path = Path(target)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        see_modules(desk.settings.folder)
        see_modules(Path.cwd())
        try:
            return Graph.load(path)
        except OSError as error:
            raise Refusal(f"{path} cannot be read: {error}", code=Code.NOT_FOUND, kind="file_not_found") from error
        except UnicodeDecodeError as error:
            raise InvalidDefinition(f"{path} is no text: {error}") from error
    if ":" not in target:
        raise Refusal(f"{target!r} is neither a file nor MODULE:NAME", "graph.yaml, or package.module:graph")
    found = load(target, desk.settings)[1]
    if not isinstance(found, Graph):
        raise Refusal(f"{target} is {found!r:.80}, and no graph")
    return found


__all__ = ["add_to"]
