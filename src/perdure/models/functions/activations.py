"""Activations: they run the code of live runs, turn the progress of runs into ops for the coordinator, and hold runs
that cannot go on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from perdure.kernel.ops import Advance, SetHold
from perdure.kernel.runs import Hold, Run
from perdure.models.common.crash_blame import Blame
from perdure.models.common.deployment import deployed
from perdure.models.common.host_parts import HostParts
from perdure.models.functions.live_runs import LiveRuns
from perdure.models.functions.loop import Livelock
from perdure.models.functions.mismatch import Mismatch
from perdure.models.functions.runner import LiveRun
from perdure.values.failures import to_failure

log = logging.getLogger("perdure")

_DETAILS_MAX = 20_000


class Activations:
    """Activates runs, and passes their progress to the coordinator. A failure in one run does not affect other runs."""

    def __init__(self, parts: HostParts, runs: LiveRuns, blame: Blame) -> None:
        self._clock = parts.clock
        self._enqueue = parts.coordinator.enqueue
        self._runs = runs
        self._leaving = runs.leaving
        self._blame = blame

    def made(self, run: Run) -> LiveRun | None:
        """Return a new live run for a run that this engine has claimed.

        If this engine does not have the run's workflow, holds the run and returns None.
        """
        live = self._runs.make(run)
        if live is None:
            self.hold(run.id, run.claim, f"this engine has no workflow {run.workflow!r}")
            return None
        self._blame.watch(run)
        return live

    def guarded(self, live: LiveRun, activate: Callable[..., None], *args: Any) -> None:
        """Activate a run. If the activation raises, hold the run."""
        try:
            activate(live, *args)
        except Exception as error:  # noqa: BLE001 - the hold names the error
            self.set_aside(live, error)

    def write(self, live: LiveRun, advance: Advance) -> None:
        """Enqueue a run's advance.

        The requests of this advance wait at the run's gate until the advance is committed.
        """
        if self._leaving:
            self._leaving.discard(live.id)
        if self._blame.watched and advance.entries:
            self._blame.forget(live.id)
        self._enqueue(advance)
        if advance.idle and live.is_stuck:
            reason = "the workflow waits for something that can never happen: nothing that it asked for is outstanding"
            self.hold(live.id, live.claim, reason, live.loop.stack(), live)

    def set_aside(self, live: LiveRun, error: BaseException) -> None:
        """Hold a run whose activation has raised an error."""
        if isinstance(error, Mismatch):
            self.hold(live.id, live.claim, f"the code does not fit the journal: {error}", error.details, live)
        elif isinstance(error, Livelock):
            self.hold(live.id, live.claim, str(error).partition("; it stands at")[0], error.stack, live)
        else:
            log.error("run %s cannot go on", live.id, exc_info=error)
            self.hold(live.id, live.claim, f"engine bug: {error!r}", to_failure(error).stack, live)

    def hold(self, run_id: str, claim: int, reason: str, details: str = "", live: LiveRun | None = None) -> None:
        """Hold a run as blocked, until code that fits is deployed or a person decides."""
        if live is not None:
            live.ended = True
        hold = Hold(
            kind="blocked",
            reason=reason,
            details=details[:_DETAILS_MAX],
            fingerprint=deployed(live.workflow) if live is not None else "",
            at=self._clock.now(),
        )
        self._enqueue(SetHold(run_id=run_id, at=hold.at, hold=hold, claim=claim))


__all__ = ["Activations"]
