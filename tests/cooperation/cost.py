"""What a hierarchy costs, counted: calls of functions on the event loop's thread, rows written and read, bytes stored.

Sizes double, and what is counted may grow by a factor of little more than two. Nothing here looks at a clock.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from types import CodeType, FrameType
from typing import Any

from msgspec import Struct

from perdure.kernel.batch import Batch, Committed
from perdure.kernel.cooperation import ScopeRows
from perdure.models.cooperation.define import Operation
from perdure.ports import Store
from perdure.testing import Environment
from perdure.testing.environment import StoreSource
from perdure.testing.proxy import StoreProxy

_OURS = f"{os.sep}perdure{os.sep}"
_FOR_TESTS = f"{_OURS}testing{os.sep}"


class Cost(Struct):
    calls: int = 0  # of functions, on the thread of the loop
    rows: int = 0  # message events that were written
    bytes: int = 0  # that they and their runs take
    largest: int = 0  # the row with most bytes
    read: int = 0  # rows that were read for runs in memory


class Counting(StoreProxy):
    """Counts what goes to the store and comes from it."""

    def __init__(self, inner: Store, cost: Cost) -> None:
        super().__init__(inner)
        self._cost = cost

    async def commit(self, batch: Batch) -> Committed:
        committed = await self.inner.commit(batch)
        for row in batch.cooperation.events if batch.cooperation is not None else ():
            size = len(row.exception or "") + len(row.context or "") + len(row.cooperation_lineage)
            self._cost.rows += 1
            self._cost.bytes += size
            self._cost.largest = max(self._cost.largest, size)
        for write in batch.runs.values():
            self._cost.bytes += len(write.run.origin) if write.expected_version is None else 0
            failure = write.outcome.failure if write.outcome is not None else None
            self._cost.bytes += len(failure or "")
        self._cost.bytes += sum(len(mail.op) for mail in batch.mail)
        return committed

    async def scopes(self, ids: Sequence[str]) -> ScopeRows:
        found = await self.inner.scopes(ids)
        self._cost.read += len(found.runs) + len(found.events) + len(found.messages) + len(found.values)
        return found


@contextmanager
def counted(cost: Cost) -> Iterator[None]:
    """Count the calls that are made meanwhile in Perdure's own code, or from there. How often an event loop looks
    whether a commit is done says how fast the machine is."""
    known: dict[CodeType, bool] = {}

    def look(frame: FrameType, event: str, _arg: Any) -> None:
        if event in ("call", "c_call"):
            code = frame.f_code
            is_ours = known.get(code)
            if is_ours is None:
                is_ours = known[code] = _OURS in code.co_filename and _FOR_TESTS not in code.co_filename
            cost.calls += is_ours

    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)


async def costs_of(
    operations: Sequence[Operation[Any]],
    source: StoreSource,
    work: Callable[[Environment, int], Awaitable[None]],
    sizes: Sequence[int],
    **options: Any,
) -> list[Cost]:
    """What `work` costs at these sizes, once an engine has done it at the size 1."""
    cost = Cost()
    found: list[Cost] = []
    watch = lambda store: Counting(store, cost)  # noqa: E731 - it is given away at once
    async with Environment(list(operations), source, watch=watch, **options) as env:
        await work(env, 1)
        await env.settle()
        for size in sizes:
            cost.calls = cost.rows = cost.bytes = cost.largest = cost.read = 0
            with counted(cost):
                await work(env, size)
                await env.settle()
            found.append(copy(cost))
    return found


def assert_linear(small: Cost, large: Cost, *, times: int, slack: float = 1.3) -> None:
    """That nothing has grown by much more than the size has."""
    for field in ("calls", "rows", "bytes", "read"):
        was, became = getattr(small, field), getattr(large, field)
        allowed = was * times * slack + 100
        assert became <= allowed, f"{field}: {was:,} became {became:,} at {times} times the size"
