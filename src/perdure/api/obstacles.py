"""Obstacles: why a run that a caller waits for does not continue. Either the run is held, or no live engine has its
code.

These obstacles are logged. The caller keeps waiting: the run may continue as soon as somebody lifts the hold or starts
an engine.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from perdure.coordinator.notices import todo
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.views import RunView

log = logging.getLogger("perdure")

_LOOKS_FIRST: Final = 4  # During the first checks an engine may just be taking the run.


class Obstacles:
    """Logs the reason why a run does not continue while a caller waits for it.

    A reason is logged again only after it has changed.
    """

    def __init__(self, stranded: Callable[[Run], Awaitable[str | None]]) -> None:
        self._stranded = stranded
        self._looks = 0
        self._said = ""

    async def look(self, run: Run) -> None:
        """Check a run that was read and has not ended. Raises StoreError."""
        self._looks += 1
        if run.hold is not None:
            reason, advice = f"it is held ({run.hold.kind}): {run.hold.reason}", todo(run, run.hold)
        else:
            # Most runs are running or wait for something. So the check for their code is done less and less often.
            if self._looks < _LOOKS_FIRST or self._looks & (self._looks - 1):
                return
            reason = await self._stranded(run) or ""
            advice = "start one that has it (perdure worker MODULE)"
            if run.status not in (Status.CANCELLING, Status.ROLLING_BACK):
                advice += f", or perdure runs cancel {run.id}"
        if reason and reason != self._said:
            log.warning("run %s is waited for and does not go on: %s. What to do: %s", run.id, reason, advice)
        self._said = reason


class Strandings:
    """Logs the code that some runs need and that no live engine has.

    Missing code is logged once, as long as it stays missing. Engines check this regularly.
    """

    def __init__(self) -> None:
        self._said: frozenset[str] = frozenset()

    def found(self, runs: Iterable[RunView]) -> None:
        """Check the newest runs that have not ended."""
        stranded: dict[str, list[str]] = {}
        for run in runs:
            if run.stranded is not None and run.hold is None:
                stranded.setdefault(run.stranded, []).append(run.id)
        for reason, ids in stranded.items():
            if reason not in self._said:
                log.warning(
                    "%s, and %d runs wait for it (%s, …). What to do: start an engine that has it (perdure worker"
                    " MODULE), or cancel them: perdure runs cancel ID",
                    reason, len(ids), ", ".join(ids[:3]),
                )  # fmt: skip
        self._said = frozenset(stranded)


__all__ = ["Obstacles", "Strandings"]
