"""Order on workflows' loops. In some places asyncio's order depends on addresses or on the version of Python. Here, a
replay gets the same order.

`wait` and `as_completed` begin with `set(arguments)`. For coroutines, the order of that set depends on addresses.
Replacing the two functions would miss a name that was imported before, as in `from asyncio import as_completed`. So
this module replaces the name `set` inside asyncio.tasks. Outside a workflow's loop it returns a plain set.
"""

from __future__ import annotations

import asyncio
import asyncio.tasks
import sys
from collections.abc import Iterable
from typing import Any

from perdure.models.functions.forbidden import in_workflow


def install() -> None:
    """Install the replacements. Called once, when the loop's module is imported."""
    asyncio.tasks.set = _set  # type: ignore[attr-defined]
    asyncio.tasks._GatheringFuture.__hash__ = _gathering_hash  # type: ignore[attr-defined]
    if sys.version_info < (3, 12):
        _wait_for.__doc__ = asyncio.wait_for.__doc__
        asyncio.wait_for = asyncio.tasks.wait_for = _wait_for


def _set(items: Iterable[Any] = ()) -> Any:
    # asyncio fills an empty set with tasks and futures, which have fixed hashes.
    if items and in_workflow():
        return dict.fromkeys(items)
    return set(items)


def _gathering_hash(gathering: asyncio.Future[Any]) -> int:
    """Return a hash for a result of `gather`. The class of this future is asyncio's own. So the future gets its number
    when it is first put into a set.
    """
    numbered = getattr(gathering.get_loop(), "next_number", None)
    if numbered is None:
        return object.__hash__(gathering)
    number: int | None = getattr(gathering, "number", None)
    if number is None:
        number = gathering.number = numbered()  # type: ignore[attr-defined]
    return number


_original_wait_for = asyncio.wait_for


async def _wait_for(fut: Any, timeout: float | None) -> Any:
    # Python 3.11 creates a task for the coroutine, and later versions do not. A run must survive an upgrade of Python,
    # so no version creates a task here.
    if not in_workflow() or timeout is None or timeout <= 0:
        return await _original_wait_for(fut, timeout)
    async with asyncio.timeout(timeout):
        return await fut
