"""One change that is made to several things. If ids are given, the change is made at once. If options select the
things, the user must confirm the change first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any

import typer
from msgspec import Struct

from perdure.cli.errors import Code, Refusal, refused
from perdure.cli.terminal import Terminal

_AT_ONCE = 50
_SHOWN = 10

Everything = Annotated[
    bool, typer.Option("--all", help="Select all. Needed if you give neither ids nor an option that selects.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]
AtMost = Annotated[int, typer.Option("--at-most", min=1, help="Refuse if more than this many are selected.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be changed, and change nothing.")]


class Result(Struct, frozen=True):
    """The result of the change for one thing. If the change was refused, `error` is the code of the error, and
    `message` says why.
    """

    id: str
    result: str
    error: str | None = None
    message: str | None = None


async def each(terminal: Terminal, what: str, ids: Sequence[str], act: Callable[[str], Awaitable[str]]) -> int:
    """Make a change for each id, show the results, and return the exit code.

    If one change is refused, the other changes are made nevertheless. If there is only one id, the error of its change
    is raised.
    """
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(id: str, advance: Callable[[], object]) -> Result:
        async with room:
            try:
                return Result(id, await act(id))
            except Exception as error:
                refusal = refused(error)
                if refusal is None or len(ids) == 1:
                    raise
                return Result(id, "refused", refusal.kind, refusal.what)
            finally:
                advance()

    with terminal.progress(what, len(ids)) as advance:
        results = await asyncio.gather(*[one(id, advance) for id in ids])
    is_refused = any(result.error for result in results)
    if terminal.as_json:
        terminal.document({"results": results})
    elif len(results) > _SHOWN and terminal.is_tty:
        counts: dict[str, int] = {}
        for result in results:
            counts[result.result] = counts.get(result.result, 0) + 1
        terminal.print_text(", ".join(f"{count} {name}" for name, count in counts.items()))
        terminal.table(("id", "why not"), [(r.id, r.message) for r in results if r.error][:_SHOWN], empty="")
    else:
        for result in results:
            terminal.print_text(f"{result.result} {result.id}" + (f": {result.message}" if result.message else ""))
    return Code.FAILED if is_refused else Code.DONE


def announce(
    terminal: Terminal, what: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, yes: bool
) -> None:
    """Show what will be changed, and ask for confirmation. Raises Refusal if the answer is no, or if nobody can
    answer.
    """
    if not yes and terminal.is_tty:
        terminal.table(columns, rows[:_SHOWN], empty="")
        if len(rows) > _SHOWN:
            terminal.print_text(f"… and {len(rows) - _SHOWN} more")
    terminal.confirm(f"{what}?", yes=yes)


def too_many(at_most: int) -> Refusal:
    """Return the refusal to change more than `--at-most` things."""
    return Refusal(f"more than {at_most} are selected", "select fewer, or allow more with --at-most")


__all__ = ["AtMost", "DryRun", "Everything", "Result", "Yes", "announce", "each", "too_many"]
