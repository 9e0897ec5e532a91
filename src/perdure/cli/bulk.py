"""Doing the same to several things: by id at once, by what they are like only after somebody said yes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct

from perdure.cli.desk import Desk
from perdure.cli.failures import Code, refused

_AT_ONCE = 50
_SHOWN = 10


class Result(Struct, frozen=True):
    """What became of one of them. `error` is the code of what it was refused with."""

    id: str
    result: str
    error: str | None = None
    message: str | None = None


async def each(desk: Desk, what: str, ids: Sequence[str], act: Callable[[str], Awaitable[str]]) -> int:
    """Do it to each; tell of each what became of it; the exit code. One that is refused leaves the others alone; one
    that is the only one raises what it is refused with."""
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

    with desk.progress(what, len(ids)) as advance:
        results = await asyncio.gather(*[one(id, advance) for id in ids])
    is_refused = any(result.error for result in results)
    if desk.as_json:
        desk.document({"results": results})
    elif len(results) > _SHOWN and desk.is_terminal:
        counts: dict[str, int] = {}
        for result in results:
            counts[result.result] = counts.get(result.result, 0) + 1
        desk.say(", ".join(f"{count} {name}" for name, count in counts.items()))
        desk.table(("id", "why not"), [(r.id, r.message) for r in results if r.error][:_SHOWN], empty="")
    else:
        for result in results:
            desk.say(f"{result.result} {result.id}" + (f": {result.message}" if result.message else ""))
    return Code.FAILED if is_refused else Code.DONE


def announce(desk: Desk, what: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], *, yes: bool) -> None:
    """Show what is about to be done, and ask. Raises Refusal if the answer is no, or if there is nobody to give it."""
    if not yes and desk.is_terminal:
        desk.table(columns, rows[:_SHOWN], empty="")
        if len(rows) > _SHOWN:
            desk.say(f"… and {len(rows) - _SHOWN} more")
    desk.confirm(f"{what}?", yes=yes)


__all__ = ["Result", "announce", "each"]
