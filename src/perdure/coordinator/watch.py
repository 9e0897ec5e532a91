"""The watch: it notices the work of other engines and clients. It looks into the store after each hint, and regularly.

Hints make it quick, looking makes it certain.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.mail import MailRoom
from perdure.coordinator.notices import Outage
from perdure.errors import Fenced, StoreError, StoreReplaced
from perdure.ports import Clock, Offer, Store

log = logging.getLogger("perdure")

_RECOVERIES_APART_US = 100_000


class Watch:
    """Runs until it is cancelled. `recover` goes on with runs that no living engine owns. `is_behind` returns whether
    the last recovery was interrupted.
    """

    def __init__(
        self,
        store: Store,
        coordinator: Coordinator,
        mail_room: MailRoom,
        clock: Clock,
        *,
        offers: Callable[[], Sequence[Offer]],
        recover: Callable[[], Awaitable[object]],
        is_behind: Callable[[], bool] = lambda: False,
        poll_s: float,
    ) -> None:
        self._store = store
        self._coordinator = coordinator
        self._mail_room = mail_room
        self._clock = clock
        self._offers = offers
        self._recover = recover
        self._is_behind = is_behind
        self._poll_us = round(poll_s * 1_000_000)
        self._woken = asyncio.Event()
        self._is_hinted = False
        self._recovered_at = clock.monotonic()
        self._outage = Outage("look", coordinator.stats.outages)

    async def run(self) -> None:
        self._store.listen(self._hint)
        while True:
            timer = self._clock.call_after(self._poll_us, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                timer.cancel()
            self._woken.clear()
            try:
                await self._look()
            except (Fenced, StoreReplaced):
                await self._coordinator.check_fence()
            except StoreError as error:
                self._outage.failed("looking for what others left is tried again", error)
                self._mail_room.lose_patience(error, self._coordinator.limits.patience_s)
            except Exception:
                # Catch every error. An engine that stops looking would get no mail, and nobody would notice.
                log.exception("looking for what others left failed and is tried again")
            else:
                self._outage.worked()

    def _hint(self) -> None:
        self._is_hinted = True
        self._woken.set()

    async def _look(self) -> None:
        if not self._store.is_surely_alive():
            # Otherwise, an engine that was marked dead and has nothing to commit would never find out.
            await self._coordinator.check_fence()
        is_hinted, self._is_hinted = self._is_hinted, False
        if self._mail_room.is_awaiting:
            await self._mail_room.collect()
        # After a hint, read mail first, without asking whether there is any, because a caller may be waiting.
        is_read = not is_hinted or await self._mail_room.read(self._coordinator)
        engine_id = self._coordinator.engine.id
        found = await self._store.look(engine_id=engine_id, offers=self._offers(), at=self._clock.now())
        if found.mail:
            is_read = await self._mail_room.read(self._coordinator)
        # The recovery also finds out which engines have died.
        is_stray = found.stray or found.blocked or not is_read or self._is_behind()
        now = self._clock.monotonic()
        early = self._recovered_at + _RECOVERIES_APART_US - now
        if found.dead or (is_stray and early <= 0):
            self._recovered_at = now
            await self._recover()
        elif is_stray:
            self._clock.call_after(early, self._woken.set)
