"""Activations: they turn the next moves of live runs into ops for the coordinator, and hold runs that cannot go on.

A move that needs no code shares the commit of the move before it. Code runs only after everything that it depends on is
committed.
"""

from __future__ import annotations

import logging
from functools import partial

from msgspec.structs import replace

from perdure.errors import PerdureError
from perdure.kernel.effects import Notified
from perdure.kernel.operation_notices import ASK, JOIN, NEWS
from perdure.kernel.rows import Staged
from perdure.kernel.status import Status
from perdure.models.common.deployment import deployed
from perdure.models.common.step_tasks import Carriers
from perdure.models.cooperation.commits import Commits
from perdure.models.cooperation.drafts import Drafts, Making
from perdure.models.cooperation.executor import Executor
from perdure.models.cooperation.live_run import Code, Draft, LiveOperation
from perdure.models.cooperation.machine import next_move
from perdure.models.cooperation.moves import Nothing, Outcome, Wait
from perdure.models.cooperation.operation_parts import OperationParts
from perdure.models.cooperation.progress import Mismatch
from perdure.models.cooperation.run_reader import RunReader
from perdure.models.cooperation.runner import Blocked
from perdure.models.cooperation.step_execution import armed, pause
from perdure.models.cooperation.steps import Steps
from perdure.models.cooperation.transactions import Transactions
from perdure.models.cooperation.turns import Turns

log = logging.getLogger("perdure")


class Activations:
    """Goes on with runs. It writes the moves that need no code, and then runs code or waits. The parts that run code
    and commit drafts report to this class.

    A run does one thing at a time.
    """

    def __init__(
        self, parts: OperationParts, executor: Executor, carriers: Carriers, transactions: Transactions
    ) -> None:
        self._clock = parts.engine.clock
        self._timers = parts.engine.timers
        self._codec = parts.engine.codec
        self._lookup = parts.engine.coordinator.loaded
        self._runner = parts.runner
        self._runs = parts.runs
        self._holds = parts.holds
        self._blame = parts.blame
        self._transactions = transactions
        self.turns = Turns()
        self.drafts = Drafts(self.take_in)
        self.steps = Steps(parts, executor, carriers, self)
        self._landings = self.steps.landings
        self.reader = RunReader(parts, self.steps, self)
        self._commits = Commits(
            parts, reader=self.reader, landings=self._landings, drafts=self.drafts, turns=self.turns, listener=self
        )
        self.proceed = self._commits.proceed

    @property
    def busy(self) -> bool:
        return self.turns.waiting or self.drafts.busy or self.reader.busy

    def take_in(self, live: LiveOperation, effect: Notified) -> None:
        """Give a run a notification, and go on with it."""
        notice = effect.notice
        self._runs.stays(live.id)
        live.notified = effect.number
        if notice.kind == JOIN:
            self.reader.joining.add(live.id)
        elif notice.kind != NEWS:
            live.asked = live.notified
            self._landings.withdraw(live)
        if notice.kind == NEWS and notice.about and live.take_in(self._runner.notifications.read_report(notice.about)):
            self.go_on(live)
        elif notice.kind == ASK and notice.about and not live.is_stale:
            live.ask(self._runner.notifications.read_ask(notice.about))
            self.turns.soon(live, partial(self.go_on, live))
        else:
            self.reader.read_anew(live)

    def go_on(self, live: LiveOperation, *, is_loaded: bool = False) -> None:
        """Go on from the state that the run's rows show. Write the moves that need no code, and then run code or
        wait.
        """
        if live.is_busy or live.is_closed or live.is_stale:
            return
        run = self._lookup(live.id)
        if run is None or run.claim != live.claim:
            return
        if live.staged is not None:
            self._land_staged(live, live.staged)
            return
        self.drafts.make(live, self._draft(live, run.status, is_loaded=is_loaded))

    def _draft(self, live: LiveOperation, status: Status, *, is_loaded: bool) -> Making:
        try:
            draft = yield from self._runner.go_on(live, Draft(status), self._clock.now())
        except Blocked as blocked:
            self.hold(live, str(blocked))
            return None
        if live.attempts is not None and draft.code is not None:
            pause(live, draft, draft.code, self._codec, self._clock.now())
        return (yield from self._commits.write(live, draft, is_loaded=is_loaded))

    def committed(self, live: LiveOperation, draft: Draft) -> None:
        """Go on after a commit: run code, or wait."""
        if live.is_closed or draft.state is not None:
            return
        if live.timer is not None:
            live.timer.cancel()
            live.timer = None
        if draft.code is not None:
            if live.is_stale or live.asked > draft.asked:
                self.go_on(live)  # The run was, or may have been, asked to give up after the draft was made.
            else:
                self.steps.execute(live, draft.code)
            return
        if draft.until is not None:
            live.timer = armed(live, draft.until, self._timers, self._clock.now(), partial(self._due, live))
            if live.attempts is not None and not live.attempts.is_durable:
                self._blame.rest(live.id)
        if self._has_changed(live, draft):
            self.go_on(live)
        else:
            self._runs.rests(live.id)
            self._runs.evict()

    def _has_changed(self, live: LiveOperation, draft: Draft) -> bool:
        """Return whether the run can go on now. It can if it was notified while it was busy, or if its status differs
        from its draft's.
        """
        run = self._lookup(live.id)
        if run is None or run.status is not draft.status:
            return run is not None
        now = self._clock.now()
        move = next_move(live.plan, live.view(now), live.progress)
        if isinstance(move, Code):
            return not live.is_pausing(move, now)
        # According to its rows the run may have ended. Another engine may have taken the run without this engine
        # knowing it yet.
        return not isinstance(move, (Wait, Nothing))

    def _due(self, live: LiveOperation) -> None:
        live.timer = None
        self.go_on(live)

    # Outcomes of code.

    def land(self, live: LiveOperation, code: Code, outcome: Outcome, *, is_loaded: bool = False) -> None:
        """Write the outcome of a run's code."""
        run = self._lookup(live.id)
        if run is not None and run.claim == live.claim:
            self.drafts.make(live, self._draft_landing(live, code, outcome, run.status, is_loaded=is_loaded))

    def _draft_landing(
        self, live: LiveOperation, code: Code, outcome: Outcome, status: Status, *, is_loaded: bool
    ) -> Making:
        try:
            draft = yield from self._runner.land(live, code, outcome, Draft(status), self._clock.now())
        except PerdureError as error:
            log.error("run %s cannot go on", live.id, exc_info=error)
            self.hold(live, f"the outcome of {code.name!r} cannot be written: {error}", is_staged=bool(outcome.staged))
            return None
        draft.staged = outcome.staged
        again = partial(self.land, live, code, outcome, is_loaded=is_loaded)
        return (yield from self._commits.write(live, draft, is_loaded=is_loaded, again=again))

    def _land_staged(self, live: LiveOperation, staged: Staged) -> None:
        """Write the outcome that code had staged, together with its own writes, before a crash. This comes before any
        later request to the run is handled.
        """
        try:
            code, outcome = self._transactions.read(live.plan, staged)
        except Mismatch as error:
            self.hold(live, f"the code does not fit the staged outcome: {error}")
            return
        live.staged = None
        self.land(live, code, outcome, is_loaded=True)

    def hold(self, live: LiveOperation, reason: str, *, is_staged: bool = False) -> None:
        """Hold a run that cannot go on, until code that fits is deployed or a person decides."""
        live.close()
        self._holds.set(
            live.id,
            live.claim,
            reason,
            fingerprint=deployed(live.operation),
            view=replace(live.view(self._clock.now()), events=tuple(live.events)),
            strategy=live.plan.strategy,
            is_staged=is_staged or live.staged is not None,
        )


__all__ = ["Activations"]
