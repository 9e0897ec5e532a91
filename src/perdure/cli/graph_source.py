"""The graph that a user names on the command line. It is a file with YAML or JSON, or a graph in a module."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.errors import Code, Refusal
from perdure.cli.user_modules import load

if TYPE_CHECKING:
    from perdure.cli.terminal import Terminal
    from perdure.graph import Graph

Modules = Annotated[
    list[str] | None,
    typer.Option(
        "--module",
        "-m",
        metavar="MODULE",
        help="Import this module first. A graph file can name only code that is imported. Repeatable.",
    ),
]


def graph_at(terminal: Terminal, target: str, modules: list[str] | None = None) -> Graph[Any, Any]:
    """Return the graph in a file, or the graph MODULE:NAME. A graph in a file may use the names that `modules` define.

    No other module is imported. Raises Refusal. Raises InvalidDefinition if the file is not a valid graph.
    """
    from perdure.errors import InvalidDefinition
    from perdure.graph import Graph

    path = Path(target)
    if path.suffix in (".yaml", ".yml", ".json") or path.is_file():
        for module in modules or ():
            load(module, terminal.settings)
        try:
            return Graph.load(path)
        except OSError as error:
            raise Refusal(f"cannot read {path}: {error}", code=Code.NOT_FOUND, kind="file_not_found") from error
        except UnicodeDecodeError as error:
            raise InvalidDefinition(f"{path} is not a text file: {error}") from error
    if ":" not in target:
        raise Refusal(f"{target!r} is neither a file nor MODULE:NAME", "write graph.yaml, or package.module:graph")
    found = load(target, terminal.settings)[1]
    if not isinstance(found, Graph):
        raise Refusal(f"{target} is not a graph but {found!r:.80}")
    return found


__all__ = ["Modules", "graph_at"]
