"""`perdure worker`: an engine, until it is told to stop."""

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
from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal
from perdure.cli.modules import load
from perdure.cli.settings import not_in_memory, shown
from perdure.cli.signals import StopSignals
from perdure.cli.texts import tame
from perdure.cli.verbs import verb

if TYPE_CHECKING:
    from perdure.engine import Engine

Modules = Annotated[
    list[str] | None,
    typer.Argument(metavar="MODULE[:NAME]", help="Where the workflows are; else the `modules` of perdure.toml."),
]
Grace = Annotated[str, typer.Option("--grace", help="How long running steps may take to end: 10s.")]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]


def add_to(app: typer.Typer) -> None:
    @verb(app, "worker")
    async def worker(
        desk: Desk,
        modules: Modules = None,
        grace: Grace = "10s",
        steps_max: Annotated[int, typer.Option("--steps-max", min=1, help="How many steps run at once.")] = 1000,
        threads_max: Annotated[int, typer.Option("--threads-max", min=1, help="Threads for plain functions.")] = 32,
        processes_max: Annotated[
            int | None, typer.Option("--processes-max", min=1, help="Processes for steps that want one.")
        ] = None,
        log_level: LogLevel = "info",
    ) -> int:
        """Run an engine with all workflows, graphs and operations of some modules, until Ctrl-C or SIGTERM.

        It then lets running steps end, and gives its runs up; a second Ctrl-C or SIGTERM stops it at once, which loses
        nothing either. MODULE:NAME takes one workflow, a list of some, an Engine, or a function that makes one (it may
        take the store's URL).

        If the engine cannot go on, since its store is broken, the command ends with exit code 5."""
        set_up_logging(log_level)
        grace_s = params.length(grace, "--grace").total_seconds()
        engine = assembled(
            desk, modules or (), {"steps_max": steps_max, "threads_max": threads_max, "processes_max": processes_max}
        )
        return await serve(desk, engine, grace_s)


def set_up_logging(level: str) -> None:
    """Logs go to standard error. Raises Refusal."""
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise Refusal(f"there is no log level {level!r}", "there are debug, info, warning and error")
    logging.basicConfig(stream=sys.stderr, level=number, format="%(asctime)s %(levelname)s %(name)s: %(message)s")


def assembled(desk: Desk, targets: Sequence[str], bounds: Mapping[str, Any]) -> Engine:
    """Return an engine for the workflows of these modules, with these limits. Raises Refusal."""
    targets = targets or desk.settings.modules
    if not targets:
        raise Refusal(
            "nothing says where the workflows are",
            'perdure worker MODULE, as one would import it; or `modules = ["MODULE"]` in perdure.toml',
        )
    chosen: list[Any] = []
    is_whole = False
    for target in targets:
        _, found = load(target, desk.settings)
        if found is None:
            is_whole = True
            continue
        found = _made(desk, target, found)
        if _is_engine(found):
            if len(targets) > 1:
                raise Refusal(f"{target} is a whole engine, and there are other modules beside it", "name it alone")
            engine: Engine = found
            return engine
        chosen += found if isinstance(found, (list, tuple)) else [found]
    if is_whole and chosen:
        raise Refusal("some modules are given whole, and some with names", "give all of them with names, or none")
    from perdure import Engine as NewEngine
    from perdure import Limits

    not_in_memory(desk.settings.store)
    workflows = None if is_whole else chosen
    return NewEngine(desk.settings.store, workflows=workflows, codec=desk.settings.codec, limits=Limits(**bounds))


def _made(desk: Desk, target: str, found: Any) -> Any:
    """What a name stands for: itself, or what the function that it is makes."""
    from perdure import Workflow

    if isinstance(found, Workflow) or not inspect.isfunction(found):
        return found
    made = found(desk.settings.store) if inspect.signature(found).parameters else found()
    if not _is_engine(made) and not isinstance(made, (list, tuple)):
        raise Refusal(f"{target} is a function that gave {made!r:.80}, and not an Engine or workflows")
    return made


def _is_engine(found: object) -> bool:
    from perdure import Engine as SomeEngine

    return isinstance(found, SomeEngine)


async def serve(desk: Desk, engine: Engine, grace_s: float) -> int:
    """Have an engine work until a signal comes. Raises Refusal if the engine stops by itself."""
    signals = StopSignals(lambda: desk.aside("stopped at once: steps that ran will run again"))
    await engine.open()
    try:
        workflows = await _served(engine)
        if not workflows:
            raise Refusal(
                "these modules have no workflow, graph or operation", "define one with @workflow, or name other modules"
            )
        _announce(desk, workflows)
        await signals.wait(engine)
        steps = engine.runtime.steps_running
        if desk.as_json:
            desk.json_line({"event": "stopping", "signal": signals.name, "steps_running": steps})
        else:
            desk.aside(
                f"stopping after {signals.name}: {steps} steps run, and have {grace_s:g} s; again to stop at once"
            )
    finally:
        await engine.shutdown(grace=grace_s)
    if desk.as_json:
        desk.json_line({"event": "stopped"})
    else:
        desk.aside("stopped")
    return Code.DONE


async def _served(engine: Engine) -> list[tuple[str, str]]:
    me = (socket.gethostname(), os.getpid())
    mine = [one for one in await engine.engines.list() if (one.host, one.pid) == me]
    return mine[-1].workflows if mine else []


def _announce(desk: Desk, workflows: Sequence[tuple[str, str]]) -> None:
    store = shown(desk.settings.store) if desk.settings.names_store else ""
    if desk.as_json:
        named = [{"name": name, "version": version} for name, version in workflows]
        desk.json_line({"event": "serving", "store": store, "pid": os.getpid(), "workflows": named})
        return
    where = f" on {store}" if store else ""
    desk.say(f"engine of process {os.getpid()}{where} serves {len(workflows)} workflows:")
    for name, version in workflows:
        desk.say(f"  {tame(f'{name} {version}'.rstrip())}")
    desk.aside("Ctrl-C stops it")


__all__ = ["add_to", "assembled", "serve", "set_up_logging"]
