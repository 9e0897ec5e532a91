"""Read-ahead: a run reads many events in one commit if they were sent before the run asked for them.

Usually a run gets an event after its wait for the event is committed. If the event is already in the mailbox, the run
does not wait. The event is journaled together with the run's next requests. So fifty thousand events take a few hundred
commits.
"""

from __future__ import annotations

from typing import Final

from msgspec.json import encode as to_json

from perdure.kernel import wait_matches
from perdure.kernel.wait_matches import Mailbox
from perdure.models.functions.commands import Ask
from perdure.models.functions.waits import misfit_of, won_by_event
from perdure.ports import Codec

# Limits for one advance of a run. Nothing else runs in the process during an advance, and all its events are in one
# batch.
EVENTS_MAX: Final = 128
CHARS_MAX: Final = 1_000_000


class ReadAhead:
    """The events that one advance of a run may read. They come from the last committed state of the run's mailbox.

    An event that was sent to a run stays in the run's mailbox until the run reads it, or until it expires.
    """

    def __init__(self, run_id: str, mailbox: Mailbox, codec: Codec) -> None:
        self._run_id = run_id
        self._box = mailbox
        self._codec = codec
        self._chars = 0
        self._is_over = False
        self.event_ids: list[str] = []

    def read(self, ask: Ask, at: int) -> str | None:
        """Return the value of the journal entry for a request for events, if a matching event is in the mailbox.

        The event is the one that the kernel would deliver. Returns None if no event matches.

        If the event does not fit the event class that the run waits for, this and all later calls return None. Then the
        event is delivered in the usual way and becomes a dead letter. Later events are delivered after it. So the order
        of waits and the order of events do not change.
        """
        if self._is_over or not self._box.unread:
            return None
        found = wait_matches.first_of(self._box, ask.what.rows(self._run_id, ask), at)
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
