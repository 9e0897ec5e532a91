"""Mail between engines: what others ask of this engine's runs is decided as if it had been asked here, and what callers
of this engine ask of others' runs is answered as if it had been decided here.

Mail is read as often as need be, and consumed once, by the commit that does what it asks. So a crash on either side
loses nothing and does nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.coordinator.coordinator import Coordinator
from perdure.coordinator.patience import unavailable
from perdure.errors import EngineBug, PerdureError, StoreError
from perdure.kernel import mail
from perdure.kernel.ops import CheckFence, Op, TellMembers
from perdure.kernel.records import Mail
from perdure.ports import Store

_READ_AT_ONCE = 500


class MailRoom:
    """The mail of one engine. `find_members` puts the next runs to be told, as a store has them, into a TellMembers; it
    may raise StoreError."""

    def __init__(self, store: Store, find_members: Callable[[TellMembers, Store], Awaitable[TellMembers]]) -> None:
        self._store = store
        self._find_members = find_members
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        self._since: dict[str, float] = {}  # the loop's time at which each was asked for
        self._away_since: float | None = None
        self._reading = asyncio.Lock()

    @property
    def is_awaiting(self) -> bool:
        """Whether callers wait for answers."""
        return bool(self._awaited)

    def expect(self, slot: str, reply: asyncio.Future[Any]) -> None:
        """A caller's request has been left for another engine, which will put its answer into this slot."""
        self._awaited[slot] = reply
        self._since[slot] = asyncio.get_running_loop().time()
        reply.add_done_callback(lambda _: self._forget(slot))

    def _forget(self, slot: str) -> None:
        self._awaited.pop(slot, None)
        self._since.pop(slot, None)

    async def read(self, coordinator: Coordinator) -> bool:
        """Have all mail decided that this engine may answer; whether that could be done. If not, a run has got another
        owner meanwhile, or one that has died without this engine's knowing. Raises StoreError."""
        return await self._read(coordinator, self._store)

    async def read_for_caller(self, coordinator: Coordinator, patient_store: Store) -> None:
        """As `read`, for a caller, who waits for the store as long as callers do. Raises StoreError: StoreUnavailable
        if the store is away. What is not decided then is read again later."""
        await coordinator.callers.wait_for(self._read(coordinator, patient_store))

    async def _read(self, coordinator: Coordinator, store: Store) -> bool:
        is_done = True
        async with self._reading:
            while letters := await store.mail(coordinator.engine.id, _READ_AT_ONCE):
                requests = [(await self._request(letter, store), letter.id) for letter in letters]
                is_done = await coordinator.decide_mail(requests)
                # The commit that tells some members may leave mail for this engine: about the next ones, or its runs.
                has_members = any(isinstance(op, TellMembers) for op, _ in requests)
                if (len(letters) < _READ_AT_ONCE and not has_members) or not is_done:
                    break
        return is_done

    async def _request(self, letter: Mail, store: Store) -> Op:
        op = _request(letter)
        return await self._find_members(op, store) if isinstance(op, TellMembers) else op

    async def collect(self) -> None:
        """Hand the answers that have come to those who wait for them. Raises StoreError."""
        loop = asyncio.get_running_loop()
        self._away_since = loop.time() if self._away_since is None else self._away_since
        found = await self._store.collect(list(self._awaited))
        self._away_since = None
        for slot, text in found.items():
            reply = self._awaited.get(slot)
            if reply is None or reply.done():
                continue  # Whoever asked has given up meanwhile.
            try:
                reply.set_result(mail.reply_of(text))
            except PerdureError as error:
                reply.set_exception(error)

    def lose_patience(self, error: StoreError, patience_s: float) -> None:
        """The store cannot be asked for answers: tell those who have waited for long enough since that is so."""
        if self._away_since is None:
            return
        away_since, now = self._away_since, asyncio.get_running_loop().time()

        def overdue(since: float) -> PerdureError | None:
            waited = now - max(since, away_since)
            return unavailable(waited, error, is_unknown=True) if waited >= patience_s else None

        self.give_up(overdue)

    def give_up(self, overdue: Callable[[float], PerdureError | None]) -> None:
        """Tell those who wait for answers for whom `overdue` has an error: it is given since when each has waited."""
        for slot, reply in list(self._awaited.items()):
            if not reply.done() and (error := overdue(self._since[slot])) is not None:
                reply.set_exception(error)

    def close(self, error: BaseException) -> None:
        """Nobody will bring answers any more; what was asked may still be done."""
        for reply in list(self._awaited.values()):
            if not reply.done():
                reply.set_exception(error)


def _request(letter: Mail) -> Op:
    try:
        return mail.request(letter)
    except EngineBug as bug:
        # From a newer engine, perhaps: whoever asked is told, instead of waiting for ever.
        return CheckFence(run_id=letter.run_id, at=letter.at, error=str(bug))
