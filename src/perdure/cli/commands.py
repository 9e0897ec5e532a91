"""The frame of all commands: the options --store and --json, an event loop, and the conversion of errors to messages
and exit codes.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Concatenate, ParamSpec, cast

import typer

from perdure.cli.errors import Code, Refusal, refused
from perdure.cli.formats import tame, tame_lines, to_json
from perdure.cli.terminal import Terminal

P = ParamSpec("P")
Body = Callable[Concatenate[Terminal, P], Coroutine[Any, Any, int | None]]

_STORE = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="URL", envvar="PERDURE_STORE", help="The store. Default: `store` in perdure.toml."
    ),
]
_JSON = Annotated[bool, typer.Option("--json", help="Write JSON instead of text.")]


def command(app: typer.Typer, name: str) -> Callable[[Body[P]], Body[P]]:
    """Make a coroutine function a command. Its first parameter gets a Terminal. The other parameters are arguments and
    options. If the function returns an integer, it is the exit code.
    """

    def add(body: Body[P]) -> Body[P]:
        signature = inspect.signature(body, eval_str=True)
        do = cast("Callable[..., Any]", body)
        own = list(signature.parameters.values())[1:]
        common = [
            inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_STORE),
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_JSON),
        ]

        def invoke(**given: Any) -> None:
            terminal = Terminal(given.pop("store"), given.pop("as_json"))
            raise typer.Exit(perform(terminal, lambda: do(terminal, **given)))

        invoke.__doc__ = body.__doc__
        invoke.__name__ = body.__name__
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + common
        vars(invoke)["__signature__"] = inspect.Signature(parameters)
        app.command(name)(invoke)
        return body

    return add


def perform(terminal: Terminal, body: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Run the command, and return the exit code. If the command raises an error, write its message."""
    try:
        code = asyncio.run(body())
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Without this, Python would try to write the rest when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Code.FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return Code.INTERRUPTED
    except typer.Exit:
        raise
    except BaseException as error:  # noqa: BLE001 - the one place where errors become messages
        return _report(terminal, error)
    return code if isinstance(code, int) else Code.DONE


def _report(terminal: Terminal, error: BaseException) -> int:
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _report(terminal, error.exceptions[0])
    refusal = refused(error)
    if refusal is None:
        trace = "".join(traceback.format_exception(error))
        refusal = Refusal(f"this is a bug in Perdure\n{trace}", code=Code.BUG, kind="bug")
    sys.stdout.flush()
    if terminal.as_json:
        report = {"code": refusal.kind, "message": refusal.what, "todo": refusal.todo, "exit": int(refusal.code)}
        sys.stderr.write(f"{to_json({'error': report})}\n")
    else:
        sys.stderr.write(f"perdure: {tame_lines(refusal.what)}\n")
        if refusal.todo:
            sys.stderr.write(f"  {tame(refusal.todo)}\n")
    return int(refusal.code)


def group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """Add a group of commands about one noun: `perdure runs list`."""
    made = typer.Typer(no_args_is_help=True, help=about, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


__all__ = ["command", "group", "perform"]
