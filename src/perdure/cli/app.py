"""The app: every capability adds its verbs. A new one is a module here and a line in CAPABILITIES."""

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
    demo,
    doctor,
    engines,
    events,
    graphs,
    migration,
    projects,
    runs,
    serve,
    starts,
    tasks,
    tokens,
    topics,
    worker,
)

CAPABILITIES = (
    demo,
    projects,
    worker,
    serve,
    tokens,
    starts,
    runs,
    events,
    dead_letters,
    topics,
    tasks,
    artifacts,
    audit,
    graphs,
    engines,
    doctor,
    migration,
    bench,
)


@cache
def command() -> Callable[..., object]:
    """The command with all its verbs."""
    app = typer.Typer(
        name="perdure",
        help="Durable workflows: run them, start them, and see what they do.",
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

    for capability in CAPABILITIES:
        capability.add_to(app)
    return typer.main.get_command(app)


def run() -> None:
    """Do what the process was called with, and exit."""
    command()(prog_name="perdure")


__all__ = ["command", "run"]
