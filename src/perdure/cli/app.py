"""The command with all its subcommands. Each module adds its own commands. A new module must be added to NOUNS,
COMMANDS or TOOLS."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache

import typer
import typer.main

from perdure.cli import (
    artifacts,
    audit,
    bench,
    dead_letters,
    definitions,
    demo,
    doctor,
    engines,
    events,
    explore,
    graphs,
    migration,
    projects,
    records,
    runs,
    server,
    start,
    tasks,
    tokens,
    topics,
    worker,
)

# Commands without a group. They create a project, run engines and servers, start runs, and maintain a store.
COMMANDS = (projects, demo, worker, server, start)
TOOLS = (doctor, migration, bench, explore)

# Groups of commands about one noun. They have the order that the HTTP API, the dashboard and the docs use too.
NOUNS = (runs, tasks, artifacts, records, events, dead_letters, topics, engines, definitions, audit, tokens, graphs)


@cache
def command() -> Callable[..., object]:
    """Return the command with all its subcommands."""
    app = typer.Typer(
        name="perdure",
        help="Durable workflows: start runs, watch them, and operate the engines that execute them.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback(invoke_without_command=True)
    def about(
        version: bool = typer.Option(False, "--version", help="Show the version and exit."),
    ) -> None:
        if version:
            from importlib.metadata import version as version_of

            sys.stdout.write(f"perdure {version_of('perdure')}\n")
            raise typer.Exit

    for module in (*COMMANDS, *NOUNS, *TOOLS):
        module.add_to(app)
    return typer.main.get_command(app)


def run() -> None:
    """Run the command line of this process, and exit."""
    command()(prog_name="perdure")


__all__ = ["command", "run"]
