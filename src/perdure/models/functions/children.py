"""Children: runs that a run starts, waits for, or leaves to themselves."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from perdure.errors import Misuse
from perdure.models.functions.checks import checked_tags, checked_text
from perdure.models.functions.commands import ChildCall
from perdure.models.functions.context import require_loop
from perdure.models.functions.define import RunCall
from perdure.models.functions.waiting import RunChoice, RunEnded, first

R = TypeVar("R")


class ChildHandle(RunChoice[R]):
    """A run, as another run sees it. One of the things that `first` can wait for."""

    __slots__ = ()

    @property
    def id(self) -> str:
        return self.run_id

    async def result(self) -> R:
        """Wait durably for its end; its result. Raises ChildFailed unless it succeeded."""
        ended: RunEnded[R] = await first(self)
        return ended.result()

    def __repr__(self) -> str:
        return f"<run {self.run_id!r}>"


async def start(
    call: RunCall[R],
    *,
    detached: bool = False,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: timedelta | None = None,
) -> ChildHandle[R]:
    """Start a child and go on; its handle. Its failure concerns nobody who does not wait for it.

    It is cancelled when this run is, unless `detached`. With an `id` this is idempotent, as `Engine.start` is.
    """
    loop = require_loop("start")
    if not isinstance(call, RunCall):
        raise Misuse(f"start() takes a called workflow, as in start(checkout('o-17')), not {call!r}")
    child = ChildCall(
        call.workflow,
        call.input(),
        "detached" if detached else "started",
        None if id is None else checked_text(id, "a run's id"),
        checked_tags(tags),
        None if deadline is None else deadline // timedelta(microseconds=1),
    )
    run_id: str = await loop.ask("start", call.workflow.name, child)
    return ChildHandle(run_id, call.workflow.signature.result)


def run_of(run_id: str) -> ChildHandle[Any]:
    """Any run, known by its id: to wait for its end with `first` or `result()`."""
    return ChildHandle(checked_text(run_id, "a run's id"), None)
