"""Children: runs that another run starts. The parent may wait for them or not."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, TypeVar

from perdure.errors import InvalidArguments, Misuse
from perdure.models.functions.commands import ChildCall
from perdure.models.functions.context import require_loop
from perdure.models.functions.define import RunCall
from perdure.models.functions.positions import NEVER_US
from perdure.models.functions.waits import RunChoice, RunEnded, first
from perdure.values.arguments import Duration, checked, span_of
from perdure.values.checks import checked_tags, checked_text

R = TypeVar("R")


class ChildHandle(RunChoice[R]):
    """A handle of a run, for use in the code of another run. `first` can wait for a handle."""

    __slots__ = ()

    @property
    def id(self) -> str:
        return self.run_id

    async def result(self) -> R:
        """Wait durably until the run has ended, and return its result. Raises ChildFailed unless the run succeeded."""
        ended: RunEnded[R] = await first(self)
        return ended.result()

    def __repr__(self) -> str:
        return f"<run {self.run_id!r}>"


@checked
async def start(
    call: RunCall[R],
    *,
    detached: bool = False,
    id: str | None = None,
    tags: Mapping[str, str] | None = None,
    deadline: Duration | None = None,
) -> ChildHandle[R]:
    """Start a child, and return its handle at once.

    If the child fails, this run notices only if it waits for the child. When this run is cancelled, the child is
    cancelled too, unless it is `detached`. With an `id` the start is idempotent, as `Engine.start` is.
    """
    loop = require_loop("start")
    if not isinstance(call, RunCall):
        raise Misuse(f"start() takes a called workflow, as in start(checkout('o-17')), not {call!r}")
    child = ChildCall(
        call.workflow,
        call.input(loop.payload_max),
        "detached" if detached else "started",
        None if id is None else checked_text(id, "a run's id"),
        checked_tags(tags),
        None if deadline is None else _span_us(deadline, loop.now()),
        call.digest_for(loop),
    )
    run_id: str = await loop.ask("start", call.workflow.name, child)
    return ChildHandle(run_id, call.workflow.signature.result)


def _span_us(deadline: Duration, now: int) -> int:
    """Return a child's deadline in microseconds after its start. Raises InvalidArguments."""
    span = span_of(deadline, "a child's deadline, from its start on,") // timedelta(microseconds=1)
    if now + span >= NEVER_US:
        raise InvalidArguments(f"the deadline {deadline!r} is beyond the year 9999; leave it out for none at all")
    return span


@checked
def run_of(run_id: str) -> ChildHandle[Any]:
    """Return a handle of any run, by its id. Wait for the run's end with `first` or `result()`."""
    return ChildHandle(checked_text(run_id, "a run's id"), None)
