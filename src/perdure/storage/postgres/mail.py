"""Mail and replies. commit.py writes mail that a batch leaves or consumes."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from perdure.errors import StoreBusy
from perdure.kernel.rows import Mail
from perdure.storage.postgres.database import PostgresSlice
from perdure.storage.postgres.queries import QUERIES
from perdure.storage.postgres.rows import mail_of, pair_of


class PostgresMail(PostgresSlice):
    """Mail and replies."""

    async def leave_mail(self, mail: Mail) -> int:
        """Store a mail. If the connection breaks, the caller may try again. In that case, mail with a slot is stored
        only once, but mail without a slot may be stored twice.
        """
        left = {"run_id": mail.run_id, "sender": mail.sender, "slot": mail.slot or None, "op": mail.op, "at": mail.at}
        rows = await self._db.write(QUERIES["post"], **left)
        self._db.notifier.notify([mail.run_id])
        self._db.neighbour.notify()
        mail_id: int = rows[0][0]
        return mail_id

    async def mail(self, engine_id: str, limit: int) -> list[Mail]:
        found = [mail_of(row) for row in await self._db.read(QUERIES["mail"], engine_id=engine_id, limit=max(0, limit))]
        self._db.senders = {mail.id: mail.sender for mail in found if mail.slot}
        return found

    async def collect(self, slots: Sequence[str]) -> dict[str, str]:
        # Replies are first read and then deleted. If one statement did both and its answer was lost, the replies would
        # be lost too. Replies that could not be deleted are removed later by `purge`.
        found = dict(map(pair_of, await self._db.read(QUERIES["replies"], slots=[*slots]))) if slots else {}
        if found:
            with suppress(StoreBusy):
                await self._db.write(QUERIES["delete_replies"], slots=[*found])
        return found
