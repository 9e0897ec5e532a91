"""`perdure worker`: run an engine until a signal stops it."""

from __future__ import annotations

import inspect
import logging
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli import params
from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.formats import tame
from perdure.cli.settings import not_in_memory, shown
from perdure.cli.signals import StopSignals
from perdure.cli.terminal import Terminal
from perdure.cli.user_modules import load

if TYPE_CHECKING:
    from perdure.engine import Engine

Modules = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODULE[:NAME]", help="Modules with workflows. Default: `modules` in perdure.toml."),
]
Grace = Annotated[str, typer.Option("--grace", help="At a stop: how long running steps may take to end.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def add_to(app: typer.Typer) -> None:
    @command(app, "worker")
    async def worker(
        terminal: Terminal,
        modules: Modules = None,
        grace: Grace = "10s",
        steps_max: Annotated[int, typer.Option("--steps-max", min=1, help="How many steps run at once.")] = 1000,
        threads_max: Annotated[
            int, typer.Option("--threads-max", min=1, help="How many threads run steps that are plain functions.")
        ] = 32,
        processes_max: Annotated[
            int | None, typer.Option("--processes-max", min=1, help="How many processes run steps that need one.")
        ] = None,
        log_level: LogLevel = "info",
    ) -> int:
        """Run an engine until Ctrl-C or SIGTERM.

        The engine has all workflows, graphs and operations that the modules define.

        At the first signal the engine lets running steps end and releases its runs. A second signal stops it at once;
        that loses nothing either.

        MODULE:NAME may name a workflow, a list of workflows, an Engine, or a function that returns an Engine or a list
        of workflows. The function may take the store's URL.

        If the engine stops by itself, because its store is broken, the command exits with 5."""
        set_up_logging(log_level)
        grace_s = params.length(grace, "--grace").total_seconds()
        engine = assembled(
            terminal,
            modules or (),
            {"steps_max": steps_max, "threads_max": threads_max, "processes_max": processes_max},
        )
        return await serve(terminal, engine, grace_s)


def set_up_logging(level: str) -> None:
    """Write logs of this level and above to standard error. Raises Refusal."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise Refusal(f"there is no log level {level!r}", "use debug, info, warning or error")
    logging.basicConfig(stream=sys.stderr, level=number, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def assembled(terminal: Terminal, targets: Sequence[str], bounds: Mapping[str, Any]) -> Engine:
    """Return an engine for the workflows of these modules, with these limits. Raises Refusal."""
    targets = targets or terminal.settings.modules
    if not targets:
        raise Refusal(
            "no module with workflows is named",
            'name one as in an import: perdure worker MODULE; or put `modules = ["MODULE"]` into perdure.toml',
        )
    chosen: list[Any] = []
    is_whole = False
    for target in targets:
        _, found = load(target, terminal.settings)
        if found is None:
            is_whole = True
            continue
        found = _made(terminal, target, found)
        if _is_engine(found):
            if len(targets) > 1:
                raise Refusal(f"{target} is an engine, and other modules are named beside it", "name the engine alone")
            engine: Engine = found
            return engine
        chosen += found if isinstance(found, (list, tuple)) else [found]
    if is_whole and chosen:
        raise Refusal("some modules have a :NAME, and some have none", "give all of them a :NAME, or none")
    from perdure import Engine as NewEngine
    from perdure import Limits

    not_in_memory(terminal.settings.store)
    workflows = None if is_whole else chosen
    return NewEngine(
        terminal.settings.store, workflows=workflows, codec=terminal.settings.codec, limits=Limits(**bounds)
    )


def _made(terminal: Terminal, target: str, found: Any) -> Any:
    """Return the object that a name refers to. If it is a function, return the function's result."""
    from perdure import Workflow

    if isinstance(found, Workflow) or not inspect.isfunction(found):
        return found
    made = found(terminal.settings.store) if inspect.signature(found).parameters else found()
    if not _is_engine(made) and not isinstance(made, (list, tuple)):
        raise Refusal(f"the function {target} returned {made!r:.80}, which is neither an Engine nor workflows")
    return made


def _is_engine(found: object) -> bool:
    from perdure import Engine as SomeEngine

    return isinstance(found, SomeEngine)


async def serve(terminal: Terminal, engine: Engine, grace_s: float) -> int:
    """Run an engine until a signal arrives, and return the exit code. Raises Refusal if the engine stops by itself."""
    signals = StopSignals(lambda: terminal.note("stopped at once: steps that were running will run again"))
    await engine.open()
    try:
        workflows = await _served(engine)
        if not workflows:
            raise Refusal(
                "these modules define no workflow, graph or operation",
                "define one with @workflow, or name other modules",
            )
        _announce(terminal, workflows)
        await signals.wait(engine)
        steps = engine.runtime.steps_running
        if terminal.as_json:
            terminal.json_line({"event": "stopping", "signal": signals.name, "steps_running": steps})
        else:
            terminal.note(
                f"stopping after {signals.name}: {steps} running steps have {grace_s:g} s to end; a second signal stops"
                " at once"
            )
    finally:
        await engine.shutdown(grace=grace_s)
    if terminal.as_json:
        terminal.json_line({"event": "stopped"})
    else:
        terminal.note("stopped")
    return Code.DONE


async def _served(engine: Engine) -> list[tuple[str, str]]:
    me = (socket.gethostname(), os.getpid())
    mine = [one for one in await engine.engines.list() if (one.host, one.pid) == me]
    return mine[-1].workflows if mine else []


def _announce(terminal: Terminal, workflows: Sequence[tuple[str, str]]) -> None:
    store = shown(terminal.settings.store) if terminal.settings.names_store else ""
    if terminal.as_json:
        named = [{"name": name, "version": version} for name, version in workflows]
        terminal.json_line({"event": "serving", "store": store, "pid": os.getpid(), "workflows": named})
        return
    where = f" on {store}" if store else ""
    terminal.print_text(f"the engine of process {os.getpid()}{where} serves {len(workflows)} workflows:")
    for name, version in workflows:
        terminal.print_text(f"  {tame(f'{name} {version}'.rstrip())}")
    terminal.note("Ctrl-C stops it")


__all__ = ["add_to", "assembled", "serve", "set_up_logging"]
