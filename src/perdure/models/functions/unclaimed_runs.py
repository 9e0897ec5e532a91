"""Runs that go on before they are claimed. They are replayed from a recent read of the store, and then given their due
timer.

They are kept apart from the runs that this engine has claimed. Nothing that these runs request is done before the
commit that claims them. If that commit does not happen, these runs are closed and have had no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import Struct

from perdure.kernel.ops import Advance
from perdure.kernel.pieces import PIECE_ITEMS_MAX, at_once
from perdure.kernel.runs import Run
from perdure.models.functions.commands import TimerRequest
from perdure.models.functions.live_runs import LiveRuns
from perdure.models.functions.replay import replay
from perdure.models.functions.resumption import Resumed, resume
from perdure.models.functions.runner import LiveRun
from perdure.ports import Clock, Journal

log = logging.getLogger("perdure")


class _Prepared(Struct):
    live: LiveRun
    timers: Sequence[TimerRequest]  # the timers that the run still waits for, without the timer that has fired


class UnclaimedRuns:
    """The runs that have gone on and are not claimed yet."""

    def __init__(self, clock: Clock, live_runs: LiveRuns) -> None:
        self._clock = clock
        self._live_runs = live_runs
        self.runs: dict[str, _Prepared] = {}

    def prepare(self, run: Run, journal: Journal) -> Advance | None:
        """Return the next advance of a run that waits only for timers and has a due timer.

        Returns None if the run must be claimed first, or if the run cannot go on. `run` is the run in the state that it
        will have once it is claimed.
        """
        now = self._clock.now()
        if journal.staged or not journal.waits or any(wait.kind != "timer" for wait in journal.waits):
            return None
        if len(journal.entries) > PIECE_ITEMS_MAX:  # A long journal is replayed in pieces, once the run is claimed.
            return None
        if min(wait.due_at or 0 for wait in journal.waits) > now:
            return None
        live: LiveRun | None = None
        prepared: _Prepared | None = None
        advance: Advance | None = None
        try:
            if (live := self._live_runs.make(run)) is not None:
                prepared, advance = _gone_on(live, run, journal, now)
        except Exception:  # noqa: BLE001 - it happens again once the run is claimed, and then the run is held
            prepared = None
        if prepared is None or advance is None:
            if live is not None:
                _close(live)
            return None
        self.forgo(run.id)
        self.runs[run.id] = prepared
        return advance

    def adopt(self, run: Run) -> tuple[LiveRun, Sequence[TimerRequest]] | None:
        """Return the prepared live run of a run that is now claimed, and the timers that it still waits for.

        Returns None if the run was not prepared here, or was prepared for another claim.
        """
        prepared = self.runs.pop(run.id, None)
        if prepared is not None and prepared.live.claim == run.claim:
            return prepared.live, prepared.timers
        if prepared is not None:
            _close(prepared.live)
        return None

    def forgo(self, run_id: str) -> None:
        """Close a prepared run. Another engine has claimed it, it must not go on, or its state is out of date."""
        if (prepared := self.runs.pop(run_id, None)) is not None:
            _close(prepared.live)

    def close(self) -> None:
        for run_id in list(self.runs):
            self.forgo(run_id)


def _gone_on(live: LiveRun, run: Run, journal: Journal, now: int) -> tuple[_Prepared | None, Advance | None]:
    commands = at_once(replay(live, journal.input, journal.entries, run.started_at or run.created_at, is_begun=True))
    resumed: Resumed = resume(live, commands, journal.waits, now)
    if not live.idle or resumed.asks or not resumed.timers or not resumed.is_all_of(commands):
        return None, None
    first = min(resumed.timers, key=lambda timer: timer.due_at)
    if first.due_at > now:
        return None, None
    advance = live.timer_fired(first, now)
    others = [timer for timer in resumed.timers if timer is not first]
    return (_Prepared(live, others), advance) if _is_alone(advance) else (None, None)


def _is_alone(advance: Advance) -> bool:
    """Return whether an advance depends only on the journal that was read.

    The advance must not change if something is sent to the run after the read. The kernel must be able to decide about
    the advance without reading more. An advance that waits for an event, or that continues the run as another call,
    depends on more. An advance that cancels children needs to read the children.
    """
    return (
        all(wait.kind == "timer" for wait in advance.waits)
        and advance.continuation is None
        and not advance.cancels
        and not (advance.events_read or advance.read_ahead or advance.rejected or advance.consumed)
    )


def _close(live: LiveRun) -> None:
    try:
        live.close()
    except Exception:
        log.exception("run %s did not close cleanly", live.id)
