"""Runs that go on before they are claimed: replayed from what the store had a moment ago, and what their timer brings.

They are apart from the runs that this engine has. Nothing they ask for is done until the commit that claims them; if
there is none, they are closed, and nobody has heard of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from msgspec import Struct

from perdure.kernel.ops import Advance
from perdure.kernel.pieces import PIECE_ITEMS_MAX, at_once
from perdure.kernel.records import Run
from perdure.models.functions.commands import TimerRequest
from perdure.models.functions.resumption import Resumed, resume
from perdure.models.functions.runner import LiveRun
from perdure.ports import Clock, Journal

log = logging.getLogger("perdure")


class _Prepared(Struct):
    live: LiveRun
    timers: Sequence[TimerRequest]  # those that it waits for beside the one that has fired


class Ahead:
    """The runs that have gone on and are not claimed yet. `make` brings a run to life whose code this engine has."""

    def __init__(self, clock: Clock, make: Callable[[Run], LiveRun | None]) -> None:
        self._clock = clock
        self._make = make
        self.runs: dict[str, _Prepared] = {}

    def prepare(self, run: Run, journal: Journal) -> Advance | None:
        """What a run does next, which waits for nothing but timers and has one that is due; None if it must be claimed
        first, or if something is wrong with it. `run` is the run as it is once it is claimed."""
        now = self._clock.now()
        if journal.staged or not journal.waits or any(wait.kind != "timer" for wait in journal.waits):
            return None
        if len(journal.entries) > PIECE_ITEMS_MAX:  # A long journal is replayed in turns, once the run is claimed.
            return None
        if min(wait.due_at or 0 for wait in journal.waits) > now:
            return None
        live: LiveRun | None = None
        prepared: _Prepared | None = None
        advance: Advance | None = None
        try:
            if (live := self._make(run)) is not None:
                prepared, advance = _gone_on(live, run, journal, now)
        except Exception:  # noqa: BLE001 - it will be found again once the run is claimed, and the run is held then
            prepared = None
        if prepared is None or advance is None:
            if live is not None:
                _close(live)
            return None
        self.forgo(run.id)
        self.runs[run.id] = prepared
        return advance

    def adopt(self, run: Run) -> tuple[LiveRun, Sequence[TimerRequest]] | None:
        """A run that is claimed now, with what it did before, and the timers that it still waits for. None if it is
        not here, or was prepared for another claim."""
        prepared = self.runs.pop(run.id, None)
        if prepared is not None and prepared.live.claim == run.claim:
            return prepared.live, prepared.timers
        if prepared is not None:
            _close(prepared.live)
        return None

    def forgo(self, run_id: str) -> None:
        """Somebody else has the run, or it is not to go on, or not from here."""
        if (prepared := self.runs.pop(run_id, None)) is not None:
            _close(prepared.live)

    def close(self) -> None:
        for run_id in list(self.runs):
            self.forgo(run_id)


def _gone_on(live: LiveRun, run: Run, journal: Journal, now: int) -> tuple[_Prepared | None, Advance | None]:
    commands = at_once(live.replay(journal.input, journal.entries, run.started_at or run.created_at, is_begun=True))
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
    """Whether an advance is the same whatever the run has been sent since it was read, and can be decided without
    reading more. One that waits for an event is not, nor one that takes the run to another life; one that cancels
    children needs to know these."""
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
