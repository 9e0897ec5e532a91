"""`perdure explore`: run a workflow with a crash, a failure and a cancellation at every place, and report what goes
wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from perdure.cli import params
from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.formats import tame, to_json
from perdure.cli.terminal import Terminal
from perdure.cli.user_modules import load

if TYPE_CHECKING:
    from perdure import Event, RunCall


def add_to(app: typer.Typer) -> None:
    @command(app, "explore")
    async def explore_(
        terminal: Terminal,
        workflow: Annotated[
            str, typer.Argument(metavar="MODULE:WORKFLOW", help="The workflow: a function, or a graph.")
        ],
        arguments: Annotated[
            list[str] | None,
            typer.Argument(metavar="NAME=VALUE", help="Its arguments. A value that is not JSON is text."),
        ] = None,
        input: Annotated[
            str | None,
            typer.Option(
                "--input", "-i", metavar="JSON", help="All arguments as an object: JSON, @FILE, or - for stdin."
            ),
        ] = None,
        world: Annotated[
            list[str] | None,
            typer.Option(
                "--world",
                "-w",
                metavar="MODULE:CLASS",
                help="A class whose instances stand for a service that the steps get from `resource`. Repeatable.",
            ),
        ] = None,
        event: Annotated[
            list[str] | None,
            typer.Option(
                "--event",
                "-e",
                metavar="MODULE:CLASS=JSON",
                help="An event that the run gets when it waits. Repeatable, in their order.",
            ),
        ] = None,
        only: Annotated[str | None, typer.Option("--only", help="Run only this trial, which a finding names.")] = None,
        orders: Annotated[
            int, typer.Option("--orders", min=1, help="How many orders of steps' ends are tried at most.")
        ] = 100,
        trials: Annotated[int, typer.Option("--trials", min=1, help="How many trials are run at most.")] = 1_000,
    ) -> int:
        """Run a workflow again and again in memory, with everything that can go wrong.

        The trials have a crash at every commit, a failure of each step, a cancellation at every commit, and every order
        in which steps can end.

        The command finds steps that are not idempotent, code that is not deterministic, results that differ after a
        crash, and compensations that do not undo. It exits with 1 if it has found something. The effects of steps
        outside of Perdure are real and happen many times, so pass fakes of the services with --world."""
        from perdure.testing import explore

        _, found = load(workflow, terminal.settings)
        report = await explore(
            _call(workflow, found, params.values(arguments or (), input, "--input")),
            world={kind: kind for kind in (_class(one, "--world", terminal) for one in world or ())},
            events=[_event(one, terminal) for one in event or ()],
            only=only,
            orders_max=orders,
            trials_max=trials,
        )
        if terminal.as_json:
            terminal.document(report)
        else:
            for line in str(report).splitlines():
                terminal.line(tame(line))
        return Code.FAILED if report.findings else Code.DONE


def _call(name: str, found: Any, arguments: Any) -> RunCall[Any]:
    from perdure import Workflow

    if not isinstance(found, Workflow):
        raise Refusal(f"{name!r} does not name a workflow", "write MODULE:WORKFLOW, such as shop:checkout")
    if not isinstance(arguments, dict):
        raise Refusal("--input is not an object with a value for each argument", """--input '{"order": "o-17"}'""")
    args, kwargs = found.signature.read(to_json(arguments))
    return found(*args, **kwargs)


def _class(name: str, option: str, terminal: Terminal) -> type[Any]:
    _, found = load(name, terminal.settings)
    if not isinstance(found, type):
        raise Refusal(f"{option} {name!r} does not name a class", "write MODULE:CLASS, such as shop:Bank")
    return found


def _event(text: str, terminal: Terminal) -> Event:
    from perdure import Event

    name, _, value = text.partition("=")
    kind = _class(name, "--event", terminal)
    if not issubclass(kind, Event):
        raise Refusal(
            f"--event {name!r} is not a class of events", "write MODULE:CLASS=JSON: shop:Paid='{\"amount\": 5}'"
        )
    try:
        return msgspec.convert(params.json_value(value or "{}", "--event"), kind)
    except msgspec.ValidationError as error:
        raise Refusal(f"--event {name!r}: {error}", "the JSON after = must have the fields of the event") from error
