"""Mail between engines.

If others send ops to this engine's runs, the ops are decided as if they had been submitted here. If callers of this
engine send ops to other engines' runs, the callers get replies as if the ops had been decided here.

Mail may be read many times. The commit that decides its op consumes it once. So a crash on either side loses nothing,
and no op is carried out twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from perdure.coordinator.caller_patience import unavailable
from perdure.coordinator.coordinator import Coordinator
from perdure.errors import EngineBug, PerdureError, StoreError
from perdure.kernel import mail
from perdure.kernel.ops import CheckFence, NotifyMembers, Op
from perdure.kernel.rows import Mail
from perdure.ports import Store

_READ_AT_ONCE = 500


class MailRoom:
    """The mail of one engine. `find_members` reads the next runs that have a token from a store, and puts notices for
    them into a NotifyMembers. It may raise StoreError.
    """

    def __init__(self, store: Store, find_members: Callable[[NotifyMembers, Store], Awaitable[NotifyMembers]]) -> None:
        self._store = store
        self._find_members = find_members
        self._awaited: dict[str, asyncio.Future[Any]] = {}
        self._since: dict[str, float] = {}  # by slot: the loop's time at which the request was made
        self._away_since: float | None = None
        self._reading = asyncio.Lock()

    @property
    def is_awaiting(self) -> bool:
        """Whether callers wait for replies."""
        return bool(self._awaited)

    def expect(self, slot: str, reply: asyncio.Future[Any]) -> None:
        """Wait for the reply to a caller's request. Another engine will put the reply into this slot."""
        self._awaited[slot] = reply
        self._since[slot] = asyncio.get_running_loop().time()
        reply.add_done_callback(lambda _: self._forget(slot))

    def _forget(self, slot: str) -> None:
        self._awaited.pop(slot, None)
        self._since.pop(slot, None)

    async def read(self, coordinator: Coordinator) -> bool:
        """Decide all mail that this engine may decide. Return whether all of it was decided. If not, a run has another
        owner now, or its owner has died and this engine does not know that yet. Raises StoreError.
        """
        return await self._read(coordinator, self._store)

    async def read_for_caller(self, coordinator: Coordinator, patient_store: Store) -> None:
        """Read mail as `read` does, on behalf of a caller. The caller waits for the store for at most `patience_s`.
        Raises StoreUnavailable if the store does not answer, and other StoreErrors. Mail that was not decided will be
        read again later.
        """
        await coordinator.callers.wait_for(self._read(coordinator, patient_store))

    async def _read(self, coordinator: Coordinator, store: Store) -> bool:
        is_done = True
        async with self._reading:
            while mails := await store.mail(coordinator.engine.id, _READ_AT_ONCE):
                requests = [(await self._request(one, store), one.id) for one in mails]
                is_done = await coordinator.decide_mail(requests)
                # The commit that notifies some members may leave mail for this engine. The mail is for the next
                # members, or for this engine's own runs.
                has_members = any(isinstance(op, NotifyMembers) for op, _ in requests)
                if (len(mails) < _READ_AT_ONCE and not has_members) or not is_done:
                    break
        return is_done

    async def _request(self, one: Mail, store: Store) -> Op:
        op = _request(one)
        return await self._find_members(op, store) if isinstance(op, NotifyMembers) else op

    async def collect(self) -> None:
        """Hand the replies that have arrived to the waiting callers. Raises StoreError."""
        loop = asyncio.get_running_loop()
        self._away_since = loop.time() if self._away_since is None else self._away_since
        found = await self._store.collect(list(self._awaited))
        self._away_since = None
        for slot, text in found.items():
            reply = self._awaited.get(slot)
            if reply is None or reply.done():
                continue  # The caller has given up in the meantime.
            try:
                reply.set_result(mail.reply_of(text))
            except PerdureError as error:
                reply.set_exception(error)

    def lose_patience(self, error: StoreError, patience_s: float) -> None:
        """Raise StoreUnavailable in the callers who have waited for `patience_s`, because the store does not answer."""
        if self._away_since is None:
            return
        away_since, now = self._away_since, asyncio.get_running_loop().time()

        def overdue(since: float) -> PerdureError | None:
            waited = now - max(since, away_since)
            return unavailable(waited, error, is_unknown=True) if waited >= patience_s else None

        self.give_up(overdue)

    def give_up(self, overdue: Callable[[float], PerdureError | None]) -> None:
        """Raise the error that `overdue` returns in the callers who wait for replies. `overdue` gets the time at which
        a caller began to wait. It returns None for a caller who must keep waiting.
        """
        for slot, reply in list(self._awaited.items()):
            if not reply.done() and (error := overdue(self._since[slot])) is not None:
                reply.set_exception(error)

    def close(self, error: BaseException) -> None:
        """Raise the error in all callers who wait for replies. Other engines may still decide the ops of these
        callers.
        """
        for reply in list(self._awaited.values()):
            if not reply.done():
                reply.set_exception(error)


def _request(one: Mail) -> Op:
    try:
        return mail.request(one)
    except EngineBug as bug:
        # The mail may come from a newer engine. Its sender gets the error. Otherwise the sender would wait forever.
        return CheckFence(run_id=one.run_id, at=one.at, error=str(bug))
