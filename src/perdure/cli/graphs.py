"""`perdure graph`: check, draw and try graphs, from files with YAML or JSON or from modules; look at their runs."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.modules import load
from perdure.cli.settings import actor
from perdure.cli.starts import ended
from perdure.cli.texts import ago
from perdure.cli.verbs import group, verb

if TYPE_CHECKING:
    from perdure.graph import Graph

Target = Annotated[
    str, typer.Argument(metavar="FILE|MODULE:NAME", help="A file with YAML or JSON, or a graph in code.")
]

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        help="Import this first: a file refers only to what is imported. Repeatable.",
    ),
]
Id = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]
OfRun = Annotated[
    str | None,
    typer.Argument(metavar="[FILE|MODULE:NAME]", help="The graph, if the store does not have the run's definition."),
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
    _add_tokens(graph)
    _add_events(graph)
    _add_definition(graph)


def _add_validate(graph: typer.Typer) -> None:
    @verb(graph, "validate")
    async def validate(desk: Desk, target: Target, module: Modules = None) -> int:
        """Check a graph: everything that is wrong with it, each with its place. Imports nothing but what you name."""
        from perdure.errors import InvalidDefinition

        problems: list[str] = []
        name = None
        try:
            found = _loaded(desk, target, module).build()
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
        module: Modules = None,
    ) -> None:
        """Draw a graph: as a Mermaid flowchart, as SVG, or its definition; with the tokens of one of its runs."""
        found = _loaded(desk, target, module)
        tokens = None
        if run is not None:
            async with desk.client() as client:
                tokens = await client.handle(run).tokens(graph=found)
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
        module: Modules = None,
    ) -> int:
        """Run a graph here and now, with an engine of its own, and show what it came to."""
        from perdure import Engine

        found = _loaded(desk, target, module).build()
        limit_s = None if timeout is None else params.length(timeout, "--timeout").total_seconds()
        is_given = bool(arguments) or input is not None
        values = params.values(arguments or (), input, "--input") if is_given else None
        store = desk.settings.store if keep else "memory://"
        async with Engine(store, workflows=[found], codec=desk.settings.codec if keep else None) as engine:
            arguments_given = {"input": values} if is_given else {}
            handle = await engine.start(found.name, arguments_given, version=found.version, id=id, actor=actor())
            return await ended(desk, engine, handle.id, limit_s)


def _add_tokens(graph: typer.Typer) -> None:
    @verb(graph, "tokens")
    async def tokens(desk: Desk, id: Id, target: OfRun = None, module: Modules = None) -> None:
        """Show the tokens of a run: where each of them is, and how it stands."""
        found = None if target is None else _loaded(desk, target, module)
        async with desk.client() as client:
            view = await client.handle(id).tokens(graph=found)
        if desk.as_json:
            desk.document(view)
            return
        rows = [
            (
                one.id,
                one.path,
                one.node,
                one.state,
                "" if one.parent is None else one.parent,
                ago(one.since) if desk.is_terminal else one.since,
                one.reason or (one.error or {}).get("message", ""),
            )
            for one in view.tokens
        ]
        desk.table(("token", "path", "node", "state", "from", "since", "why"), rows, empty="it has no tokens yet")


def _add_events(graph: typer.Typer) -> None:
    @verb(graph, "events")
    async def events(
        desk: Desk,
        id: Id,
        target: OfRun = None,
        after: Annotated[int, typer.Option("--after", min=0, help="The number of the last event you have.")] = 0,
        limit: Annotated[int, typer.Option("--limit", min=1, max=10_000)] = 1_000,
        module: Modules = None,
    ) -> None:
        """Show what happened in a run of a graph: tokens, edges, nodes and joins, in order."""
        found = None if target is None else _loaded(desk, target, module)
        async with desk.client() as client:
            page = await client.handle(id).graph_events(after=after, limit=limit, graph=found)
        if desk.as_json:
            desk.document(page)
            return
        rows = [
            (one.seq, one.at, one.kind, one.node or "", "" if one.token is None else one.token, one.edge or "")
            for one in page.events
        ]
        desk.table(("seq", "at", "kind", "node", "token", "edge"), rows, empty="nothing happened")


def _add_definition(graph: typer.Typer) -> None:
    @verb(graph, "definition")
    async def definition(desk: Desk, id: Id) -> None:
        """Show the definition that a run was started with, as JSON."""
        async with desk.client() as client:
            view = await client.handle(id).definition()
        if desk.as_json:
            desk.document(view)
        else:
            desk.print_raw(json.dumps(view.definition, indent=2, ensure_ascii=False))


def _loaded(desk: Desk, target: str, modules: list[str] | None = None) -> Graph[Any, Any]:
    """A graph from a file, which refers to what is in `modules`, or from code. Nothing else is imported."""
    from perdure.errors import InvalidDefinition
    from perdure.graph import Graph

    path = Path(target)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        for module in modules or ():
            load(module, desk.settings)
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
