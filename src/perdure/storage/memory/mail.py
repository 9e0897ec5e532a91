"""Mail and replies."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple

from perdure.kernel.rows import Mail
from perdure.storage.memory.commit import check_storable
from perdure.storage.memory.connection import MemorySlice
from perdure.storage.memory.database import MemoryDatabase


class MemoryMail(MemorySlice):
    """Mail and replies."""

    async def leave_mail(self, mail: Mail) -> int:
        database = self._db.opened()
        check_storable(*astuple(mail))
        with database.lock:
            mail_id = database.leave_mail(mail)
        self._db.notify_others()
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        database = self._db.opened()
        with database.lock:
            own = [one for one in database.mail.values() if is_for(database, one, engine_id)]
        return own[: max(0, limit)]

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        replies = self._db.opened().replies
        return {slot: replies.pop(slot)[0] for slot in slots if slot in replies}


def is_for(database: MemoryDatabase, mail: Mail, engine_id: str) -> bool:
    stored = database.runs.get(mail.run_id)
    return stored is None or stored.run.owner == engine_id or not database.is_alive(stored.run.owner)
