"""Mail between engines: what others ask of this engine's runs is decided as if it had been asked here, and what callers
of this engine ask of others' runs is answered as if it had been decided here.

Mail is read as often as need be, and consumed once, by the commit that does what it asks. So a crash on either side
loses nothing and does nothing twice.
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.coordinator.coordinator import Coordinator
from perdure.errors import EngineBug, PerdureError
from perdure.kernel import mail
from perdure.kernel.ops import Op, Prove
from perdure.kernel.records import Mail
from perdure.ports import Store

_READ_AT_ONCE = 500


class PostOffice:
    """The mail of one engine."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._awaited: dict[str, asyncio.Future[Any]] = {}

    @property
    def is_awaiting(self) -> bool:
        """Whether callers wait for answers."""
        return bool(self._awaited)

    def expect(self, slot: str, reply: asyncio.Future[Any]) -> None:
        """A caller's request has been left for another engine, which will put its answer into this slot."""
        self._awaited[slot] = reply
        reply.add_done_callback(lambda _: self._awaited.pop(slot, None))

    async def read(self, coordinator: Coordinator) -> bool:
        """Have all mail decided that this engine may answer; whether that could be done. If not, a run has got another
        owner meanwhile, or one that has died without this engine's knowing. Raises StoreError."""
        is_done = True
        while letters := await self._store.mail(coordinator.engine.id, _READ_AT_ONCE):
            is_done = await coordinator.decide_mail([(_request(letter), letter.id) for letter in letters])
            if len(letters) < _READ_AT_ONCE or not is_done:
                break
        return is_done

    async def collect(self) -> None:
        """Hand the answers that have come to those who wait for them. Raises StoreError."""
        for slot, text in (await self._store.collect(list(self._awaited))).items():
            reply = self._awaited.get(slot)
            if reply is None or reply.done():
                continue  # Whoever asked has given up meanwhile.
            try:
                reply.set_result(mail.reply_of(text))
            except PerdureError as error:
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
        return Prove(run_id=letter.run_id, at=letter.at, error=str(bug))
