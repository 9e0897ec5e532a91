"""`perdure new`: a small project that runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Final

import typer

from perdure.cli.commands import command
from perdure.cli.errors import Code, Refusal
from perdure.cli.settings import FILE
from perdure.cli.terminal import Terminal

_SETTINGS: Final = """\
# Settings of `perdure` for this folder and those below. A relative file is beside this one.
store = "sqlite:///{name}.db"
modules = ["workflows"]
"""

_WORKFLOWS: Final = '''\
"""An order: reserve stock, wait for the payment, send the parcel.

Steps do the side effects. The result of a step is stored, and the step does not run again after that. The workflow
around the steps is plain asyncio. Kill the worker at any time: its runs continue where they were.
"""

from datetime import timedelta

from perdure import Event, TimeReached, event, first, step, timer, workflow


class Paid(Event, event_name="paid"):
    amount: int


@step
async def reserve(order: str) -> str:
    return f"stock for {order}"


@step
async def ship(order: str) -> str:
    return f"parcel {order}"


@workflow
async def checkout(order: str, days: float = 7) -> str:
    await reserve(order)
    match await first(event(Paid), timer(timedelta(days=days))):
        case Paid(amount=amount):
            return f"{await ship(order)}, paid {amount}"
        case TimeReached():
            return "expired"
'''

_TESTS: Final = """\
import asyncio

from perdure import Engine
from workflows import Paid, checkout


def test_an_order_is_sent_once_it_is_paid() -> None:
    async def scenario() -> None:
        async with Engine("memory://", workflows=[checkout]) as engine:
            run = await engine.start(checkout("o-1"), id="o-1")
            await engine.send(Paid(amount=100), to=run.id)
            assert await run.result() == "parcel o-1, paid 100"

    asyncio.run(scenario())


def test_an_order_that_nobody_pays_expires() -> None:
    async def scenario() -> None:
        async with Engine("memory://", workflows=[checkout]) as engine:
            assert await engine.run(checkout("o-2", days=0)) == "expired"

    asyncio.run(scenario())
"""

_README: Final = """\
# {name}

    pip install 'perdure[cli]' pytest
    perdure worker                                  # an engine; kill it and start it again at any time

In another terminal:

    perdure start checkout order=o-17 --id o-17
    perdure runs show o-17                          # it waits for the payment
    perdure send paid amount=100 --to o-17
    perdure runs watch o-17
    perdure doctor

The workflows are in `workflows.py`, their tests in `test_workflows.py` (`python -m pytest`), the settings in
`perdure.toml`.
"""

_IGNORED: Final = """\
*.db
*.db-*
*.db.*
__pycache__/
"""

FILES: Final = {
    "perdure.toml": _SETTINGS,
    "workflows.py": _WORKFLOWS,
    "test_workflows.py": _TESTS,
    "README.md": _README,
    ".gitignore": _IGNORED,
}


def add_to(app: typer.Typer) -> None:
    @command(app, "new")
    async def new(
        terminal: Terminal, folder: Annotated[Path, typer.Argument(metavar="NAME", help="The folder to create.")]
    ) -> None:
        """Write a small project that runs.

        The project has a workflow, its tests, and settings. Existing files are never overwritten."""
        name = re.sub(r"[^a-z0-9_-]+", "-", folder.resolve().name.lower()).strip("-") or "project"
        taken = [file for file in FILES if (folder / file).exists()]
        if taken:
            raise Refusal(
                f"{folder} has {', '.join(taken)} already; nothing was written",
                "use another name",
                code=Code.CONFLICT,
                kind="file_exists",
            )
        try:
            for made in reversed([one for one in (folder, *folder.parents) if not one.exists()]):
                made.mkdir(
                    0o755
                    # This does not depend on the umask, because perdure.toml is refused in a folder to which others may
                    # write.
                )
            for file, text in FILES.items():
                (folder / file).write_text(text.format(name=name) if file in _NAMED else text, "utf-8")
            (folder / FILE).chmod(0o644)  # Perdure refuses a file to which others may write.
        except OSError as error:
            raise Refusal(f"cannot create {folder}: {error}", code=Code.FAILED, kind="cannot_write") from error
        if terminal.as_json:
            terminal.document({"folder": str(folder), "files": sorted(FILES)})
            return
        terminal.print_text(f"wrote {folder}: {', '.join(FILES)}")
        terminal.print_lines(["next:", f"  cd {folder}", "  perdure worker", "and in another terminal:"])
        terminal.print_lines(
            ["  perdure start checkout order=o-17 --id o-17", "  perdure send paid amount=100 --to o-17"]
        )
        terminal.print_text("  perdure runs watch o-17")


_NAMED: Final = ("perdure.toml", "README.md")

__all__ = ["FILES", "add_to"]
