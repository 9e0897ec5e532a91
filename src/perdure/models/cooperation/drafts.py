"""Drafts in the making: has those of steps with many children made piece by piece, over many turns of the event loop.

While a draft is made, the run's state stays as it is: the rules must see one state from the first piece to the last.
What the run is told meanwhile waits until the draft is complete, and is taken in before the draft is sent to the
coordinator. For the run that is the same as if it had been told during the commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import Final

from perdure.kernel.ops import Tell
from perdure.kernel.pieces import PIECE_ITEMS_MAX, Pieces
from perdure.models.cooperation.live import LiveOperation

log = logging.getLogger("perdure")

SMALL_AT_ONCE_MAX: Final = 128  # drafts of one piece in one turn, of those that had to wait

Making = Pieces[Callable[[], None] | None]  # returns what is to be done once the draft is complete, if anything is


class Drafts:
    """Makes drafts. `hear` has a run take in what it was told while its draft was made."""

    def __init__(self, hear: Callable[[LiveOperation, Tell], None]) -> None:
        self._hear = hear
        self._open: dict[LiveOperation, deque[Tell]] = {}
        self._queue: deque[tuple[LiveOperation, Making]] = deque()
        self._is_due = False  # The next piece is in the loop's queue.

    @property
    def busy(self) -> bool:
        return bool(self._open)

    def make(self, live: LiveOperation, draft: Making) -> None:
        """Do the first piece now, and the others in the loop's next turns, one in each turn.

        A run that is closed meanwhile has its draft dropped. While others' drafts are unfinished, the first piece waits
        for its turn too: many large steps may end at once.
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

    def defer(self, live: LiveOperation, tell: Tell) -> None:
        """Have a run that `is_drafting` told something once its draft is complete."""
        self._open[live].append(tell)

    def hear(self, live: LiveOperation) -> Pieces[None]:
        """Have a run take in all that it was told while its draft was made. With the last piece nothing is left."""
        waiting = self._open.get(live)
        while waiting:
            for _ in range(min(len(waiting), PIECE_ITEMS_MAX)):
                try:
                    self._hear(live, waiting.popleft())
                except Exception:
                    log.exception("run %s could not take in what it was told", live.id)
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
        """Do one piece of the draft that has waited longest; of drafts of a single piece, several."""
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
        """Whether the draft is complete, or dropped."""
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
