"""Events that were sent to a run before it asked for them: it reads them at once, many in one commit.

A run that waits for an event is handed it once the wait is committed. Where the event is there already, the run does
not wait: what it reads is journaled with what it asks for next. So fifty thousand events take a few hundred commits.
"""

from __future__ import annotations

from typing import Final

from msgspec.json import encode as to_json

from perdure.kernel import mailboxes
from perdure.kernel.mailboxes import Mailbox
from perdure.models.functions.commands import Ask
from perdure.models.functions.waits import misfit_of, won_by_event
from perdure.ports import Codec

# In one advance of a run. Meanwhile nothing else runs in the process, and all of it is in one batch.
EVENTS_MAX: Final = 128
CHARS_MAX: Final = 1_000_000


class ReadAhead:
    """What one advance of a run may read of its mailbox, as last committed. An event that was sent to a run stays in
    its
    mailbox until this run reads it, or until the event expires."""

    def __init__(self, run_id: str, mailbox: Mailbox, codec: Codec) -> None:
        self._run_id = run_id
        self._box = mailbox
        self._codec = codec
        self._chars = 0
        self._is_over = False
        self.event_ids: list[str] = []

    def read(self, ask: Ask, at: int) -> str | None:
        """The value of the entry of a request for events, if one of them is there: the one that would be given to it.

        An event that does not fit the class by which it is waited for is left to be set aside, and what comes after it
        with it: the order of waiting and that of sending stay as they are.
        """
        if self._is_over or not self._box.unread:
            return None
        found = mailboxes.first_of(self._box, ask.what.rows(self._run_id, ask), at)
        if found is None:
            return None
        mailbox, event, option = found
        won = won_by_event(event, option, self._codec)
        if misfit_of(ask.what, won):
            self._is_over = True
            return None
        self._box = mailbox
        self._chars += len(event.value)
        self.event_ids.append(event.id)
        self._is_over = len(self.event_ids) >= EVENTS_MAX or self._chars >= CHARS_MAX
        return to_json(won).decode()
