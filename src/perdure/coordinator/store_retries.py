"""Requests to the store. Batches are resent until their outcome is known, and reads are repeated until they succeed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from perdure.coordinator.notices import Outage
from perdure.coordinator.parts import Parts
from perdure.coordinator.queued_ops import Item
from perdure.errors import OutcomeUnknown, PerdureError, StoreBusy, StoreError, StoreMisconfigured, StoreUnavailable
from perdure.kernel.batch import Batch, Committed

T = TypeVar("T")


class StoreRequests:
    """The requests of one coordinator. Callers who wait for a request may give up before it ends."""

    def __init__(self, parts: Parts) -> None:
        self._store = parts.store
        self._limits = parts.limits
        self._callers = parts.callers
        self._stats = parts.stats
        self._commit_outage = Outage("commit", parts.stats.outages)
        self._read_outage = Outage("read", parts.stats.outages)

    async def commit(self, batch: Batch) -> Committed:
        """Send a batch until its outcome is known. Every attempt sends exactly the same batch, because an earlier
        attempt may have been committed. Raises StoreUnavailable if nothing was written and callers have given up. Then
        the batch is decided again without their ops.
        """
        delay, is_unknown = self._limits.resend_first_s, False
        while True:
            self._callers.asking("commit")
            try:
                committed = await self._store.commit(batch)
            except (StoreBusy, OutcomeUnknown) as error:
                is_unknown = is_unknown or isinstance(error, OutcomeUnknown)
                self._commit_outage.failed(f"batch {batch.number} is sent again until the store takes it", error)
                self._callers.failed(error)
                failure: StoreError = error
            except StoreMisconfigured as error:
                if is_unknown:
                    self._callers.doubt(error)
                raise
            except StoreError:
                self._callers.answered("commit")
                raise
            else:
                self._callers.answered("commit")
                if self._commit_outage.failures:
                    self._commit_outage.worked()
                return committed
            for pause_s in (0, delay):  # Callers may give up during the pause too.
                await asyncio.sleep(pause_s)
                if self._callers.has_given_up() and not is_unknown:
                    raise StoreUnavailable(f"callers have given up: {failure}") from failure
            self._stats.resends += 1
            delay = min(delay * 2, self._limits.resend_max_s)

    async def read(self, request: Callable[[], Awaitable[T]], items: Sequence[Item] | None = None) -> T:
        """Repeat a request until the store answers. Callers whose ops are in `items` may give up before the request
        ends. When this returns, they have got their error.
        """
        delay = self._limits.resend_first_s
        while True:
            self._callers.asking("read", items)
            try:
                answer = await request()
            except StoreBusy as error:
                self._read_outage.failed("a request to the store is repeated", error)
                self._callers.failed(error)
            except StoreMisconfigured:
                raise
            except PerdureError:
                self._callers.answered("read")
                raise
            else:
                self._callers.answered("read")
                if self._read_outage.failures:
                    self._read_outage.worked()
                return answer
            await asyncio.sleep(delay)
            delay = min(delay * 2, self._limits.resend_max_s)


__all__ = ["StoreRequests"]
