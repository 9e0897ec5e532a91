"""Drafts of commits are made here. The draft of a step with many children is made in pieces, over many turns of the
event loop.

While a draft is being made, the run's state does not change. The machine must see one state from the first piece to the
last. Notifications that arrive in this time wait until the draft is complete. Then the run takes them in, before the
draft is sent to the coordinator. It is as if they had arrived during the commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from perdure.kernel.effects import Notified
from perdure.kernel.pieces import PIECE_ITEMS_MAX, Pieces
from perdure.models.cooperation.live_run import LiveOperation

log = logging.getLogger("perdure")

SMALL_AT_ONCE_MAX: Final = 128  # how many waiting drafts of one piece are made in one turn of the loop

Making = Pieces[Callable[[], None] | None]  # returns the function to call once the draft is complete, or None


class Drafts:
    """Makes drafts. `take_in` hands a run a notification that arrived while its draft was being made."""

    def __init__(self, take_in: Callable[[LiveOperation, Notified], None]) -> None:
        self._take_in = take_in
        self._open: dict[LiveOperation, deque[Notified]] = {}
        self._queue: deque[tuple[LiveOperation, Making]] = deque()
        self._is_due = False  # whether the next piece is in the loop's queue

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def make(self, live: LiveOperation, draft: Making) -> None:
        """Do the first piece now, and one more piece in each of the loop's next turns.

        If the run is closed in the meantime, its draft is dropped. If other drafts are unfinished, the first piece
        waits for its turn too, because many large steps may end at once.
        """
        if not self._queue:
            try:
                next(draft)
            except StopIteration as done:
                if done.value is not None:
                    done.value()
                return
        live.is_drafting = True
        self._open[live] = deque()
        self._queue.append((live, draft))
        self._schedule()

    def defer(self, live: LiveOperation, effect: Notified) -> None:
        """Keep a notification until the draft of its run is complete (`is_drafting`)."""
        self._open[live].append(effect)

    def take_in(self, live: LiveOperation) -> Pieces[None]:
        """Let a run take in all notifications that arrived while its draft was being made. After the last piece, no
        notification is left.
        """
        waiting = self._open.get(live)
        while waiting:
            for _ in range(min(len(waiting), PIECE_ITEMS_MAX)):
                try:
                    self._take_in(live, waiting.popleft())
                except Exception:
                    log.exception("run %s could not take in what it was notified of", live.id)
            if waiting:
                yield

    async def drain(self) -> None:
        """Wait until all drafts are complete."""
        while self._open:  # noqa: ASYNC110 - each turn of the loop does a piece
            await asyncio.sleep(0)

    def _schedule(self) -> None:
        if self._queue and not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._next)

    def _next(self) -> None:
        """Do one piece of each waiting draft, in order. Stop at the first draft that needs more pieces."""
        self._is_due = False
        for _ in range(min(len(self._queue), SMALL_AT_ONCE_MAX)):
            live, draft = self._queue.popleft()
            try:
                is_complete = self._do_piece(live, draft)
            except Exception:
                log.exception("run %s could not go on", live.id)
            else:
                if not is_complete:
                    self._queue.append((live, draft))
                    break
        self._schedule()

    def _do_piece(self, live: LiveOperation, draft: Making) -> bool:
        """Do one piece of a draft. Return whether the draft is complete or was dropped."""
        done: Callable[[], None] | None = None
        try:
            if not live.is_closed:
                next(draft)
                return False
            draft.close()
        except StopIteration as stop:
            done = stop.value
        except BaseException:
            self._end(live)
            raise
        self._end(live)
        if done is not None:
            done()
        return True

    def _end(self, live: LiveOperation) -> None:
        live.is_drafting = False
        del self._open[live]
