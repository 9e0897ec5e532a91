"""The closing of runs, in pieces. Closing a run with many tasks takes several turns of the event loop, and other runs
go on between these turns.
"""

from __future__ import annotations

import asyncio
import logging

from perdure.errors import PerdureError
from perdure.kernel.pieces import Pieces, at_once

log = logging.getLogger("perdure")


class Closings:
    """Does the first piece of each closing at once. Most closings have only one piece. The longer closings are finished
    one after the other, one piece in each turn of the loop.
    """

    def __init__(self) -> None:
        self._open: dict[Pieces[None], str] = {}

    def begin(self, run_id: str, work: Pieces[None]) -> None:
        """Close a run. After this call, nothing may be handed to the run."""
        if self._is_more(run_id, work):
            if not self._open:
                asyncio.get_running_loop().call_soon(self._go_on)
            self._open[work] = run_id

    def _go_on(self) -> None:
        if not self._open:
            return  # `finish` has closed all runs.
        work, run_id = next(iter(self._open.items()))
        if not self._is_more(run_id, work):
            del self._open[work]
        if self._open:
            asyncio.get_running_loop().call_soon(self._go_on)

    @staticmethod
    def _is_more(run_id: str, work: Pieces[None]) -> bool:
        """Do the next piece. Returns whether another piece is left to do."""
        try:
            next(work)
        except StopIteration:
            return False
        except PerdureError:
            log.exception("run %s did not close cleanly", run_id)
            return False
        return True

    async def ended(self) -> None:
        """Wait until all runs are closed."""
        while self._open:  # noqa: ASYNC110 - each turn of the loop does a piece
            await asyncio.sleep(0)

    def finish(self) -> None:
        """Close all remaining runs at once, because the engine ends and the event loop may end too."""
        while self._open:
            work, run_id = self._open.popitem()
            try:
                at_once(work)
            except PerdureError:
                log.exception("run %s did not close cleanly", run_id)


__all__ = ["Closings"]
