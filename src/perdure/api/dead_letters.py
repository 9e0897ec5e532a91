"""`engine.dead_letters`: events that their run did not read before it ended, or could not read."""

from __future__ import annotations

from typing import Final

from perdure.api.events import LISTED_MAX, received
from perdure.api.records import Records
from perdure.coordinator.call_spans import whole_calls
from perdure.errors import DeadLetterNotFound
from perdure.kernel import ops
from perdure.kernel.events import DeadLetter
from perdure.kernel.events import Event as EventRecord
from perdure.kernel.rules.delivery import Delivered, Queued, Sent
from perdure.models.functions.events import check_text
from perdure.session import Session
from perdure.values.arguments import checked
from perdure.values.checks import checked_limit, checked_option, checked_text
from perdure.views import DeadLetterView, dead_letter_view

REMOVAL_RECORD: Final = "perdure.dead-letter-removal"  # the kind of the records of removals

DeadLetterViews = list[DeadLetterView]  # inside the class, the name `list` means the method


@whole_calls()
@checked(constructor=False)
class DeadLetters:
    """Dead letters. They stay in the store until they are replayed or removed."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._records = Records(session)

    async def list(self, *, name: str | None = None, after: str | None = None, limit: int = 100) -> DeadLetterViews:
        """Return dead letters, oldest first. `after` is the id of the last dead letter that you have."""
        session = self._session
        session.check_open()
        checked_option(name, "name")
        checked_option(after, "after")
        limit = checked_limit(limit, LISTED_MAX)
        found = await session.caller_store.dead_letters(name=name, after=after, limit=limit)
        return [dead_letter_view(letter, session.codec) for letter in found]

    async def get(self, id: str) -> DeadLetterView:
        """Return a dead letter. Raises DeadLetterNotFound."""
        return dead_letter_view(await self._letter(id), self._session.codec)

    async def replay(self, id: str, *, to: str | None = None, actor: str = "api") -> Delivered | Queued:
        """Send the event of a dead letter again: to a run, or as a broadcast.

        The dead letter is removed in the same commit.

        Raises DeadLetterNotFound, RunNotFound and RunFinished. Raises InvalidArguments if the event does not fit the
        event class that has its name in this process. After an error, the dead letter stays.
        """
        session = self._session
        letter = await self._letter(id)
        check_text(letter.name, session.codec.decode(letter.value))
        now = session.clock.now()
        record = EventRecord(
            id=letter.id,
            name=letter.name,
            value=letter.value,
            fields=letter.fields,
            run_id=None if to is None else checked_text(to, "a run's id"),
            consumed=letter.consumed or to is not None,
            expires_at=now + session.event_retention_us,
            fallback="dead_letter",
            actor=actor,
            at=letter.at,
        )
        sent: Sent = await session.coordinator.submit(
            ops.Send(
                run_id=to or "",
                at=now,
                actor=actor,
                event=record,
                dead_letter=letter.id,
                pending_max=session.limits.events_pending_max,
            )
        )
        return received(sent, "the dead letter stays")

    async def remove(self, id: str, *, actor: str = "api") -> bool:
        """Remove a dead letter for good. Returns False if no dead letter has this id.

        A record is kept of the removal, with the `actor`. The record is written before the removal. So a crash may
        leave a record of a dead letter that was not removed, but no dead letter is ever removed without a record.
        """
        session = self._session
        checked_text(actor, "an actor")
        try:
            letter = await self.get(id)
            note = {"event": letter.name, "to": letter.to, "sent_at": letter.sent_at}
            await self._records.put(REMOVAL_RECORD, id, note, actor=actor)
            op = ops.Forget(run_id="", at=session.clock.now(), actor=actor, dead_letter=id)
            return bool(await session.coordinator.submit(op))
        except DeadLetterNotFound:
            return False

    async def _letter(self, id: str) -> DeadLetter:
        self._session.check_open()
        letter = await self._session.caller_store.dead_letter(checked_text(id, "a dead letter's id"))
        if letter is None:
            raise DeadLetterNotFound(f"there is no dead letter {id!r}: it was replayed or removed", letter_id=id)
        return letter


__all__ = ["REMOVAL_RECORD", "DeadLetters"]
