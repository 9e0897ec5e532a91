"""What all verbs have in common: --store and --json, an event loop, and how errors are told."""

from __future__ import annotations

import asyncio
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Coroutine
from typing import Annotated, Any, Concatenate, ParamSpec, cast

import typer

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, Refusal, refused
from perdure.cli.texts import tame, tame_lines, to_json

P = ParamSpec("P")
Body = Callable[Concatenate[Desk, P], Coroutine[Any, Any, int | None]]

_STORE = Annotated[
    str | None,
    typer.Option("--store", "-s", metavar="URL", envvar="PERDURE_STORE", help="The store; else that of perdure.toml."),
]
_JSON = Annotated[bool, typer.Option("--json", help="JSON instead of text.")]


def verb(app: typer.Typer, name: str) -> Callable[[Body[P]], Body[P]]:
    """Make a coroutine function a verb. It gets a Desk, and what its other parameters say; an integer that it returns
    is the exit code."""

    def add(body: Body[P]) -> Body[P]:
        signature = inspect.signature(body, eval_str=True)
        do = cast("Callable[..., Any]", body)
        own = list(signature.parameters.values())[1:]
        common = [
            inspect.Parameter("store", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=_STORE),
            inspect.Parameter("as_json", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=_JSON),
        ]

        def command(**given: Any) -> None:
            desk = Desk(given.pop("store"), given.pop("as_json"))
            raise typer.Exit(perform(desk, lambda: do(desk, **given)))

        command.__doc__ = body.__doc__
        command.__name__ = body.__name__
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own] + common
        vars(command)["__signature__"] = inspect.Signature(parameters)
        app.command(name)(command)
        return body

    return add


def perform(desk: Desk, body: Callable[[], Coroutine[Any, Any, int | None]]) -> int:
    """Do it, and tell of what went wrong; the exit code."""
    try:
        code = asyncio.run(body())
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read our output has had enough. Python would try to write the rest at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Code.FAILED
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        return Code.INTERRUPTED
    except typer.Exit:
        raise
    except BaseException as error:  # noqa: BLE001 - the one place where errors become messages
        return _tell(desk, error)
    return code if isinstance(code, int) else Code.DONE


def _tell(desk: Desk, error: BaseException) -> int:
    if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        return _tell(desk, error.exceptions[0])
    refusal = refused(error)
    if refusal is None:
        trace = "".join(traceback.format_exception(error))
        refusal = Refusal(f"this should not have happened\n{trace}", code=Code.BUG, kind="bug")
    sys.stdout.flush()
    if desk.as_json:
        told = {"code": refusal.kind, "message": refusal.what, "todo": refusal.todo, "exit": int(refusal.code)}
        sys.stderr.write(f"{to_json({'error': told})}\n")
    else:
        sys.stderr.write(f"perdure: {tame_lines(refusal.what)}\n")
        if refusal.todo:
            sys.stderr.write(f"  {tame(refusal.todo)}\n")
    return int(refusal.code)


def group(app: typer.Typer, name: str, about: str) -> typer.Typer:
    """Verbs about one thing: `perdure runs list`."""
    made = typer.Typer(no_args_is_help=True, help=about, rich_markup_mode=None)
    app.add_typer(made, name=name)
    return made


__all__ = ["group", "perform", "verb"]
