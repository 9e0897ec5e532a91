"""Revival: runs come back into memory. Their journals are read from the store and replayed in pieces."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from msgspec.structs import replace

from perdure.coordinator.notices import Outage
from perdure.errors import RowDamaged, StoreError
from perdure.kernel.effects import Deliver
from perdure.kernel.pieces import Pieces
from perdure.kernel.runs import Run
from perdure.kernel.status import Status
from perdure.models.common.host_parts import HostParts
from perdure.models.functions.activations import Activations
from perdure.models.functions.answers import Answers
from perdure.models.functions.commands import Commands
from perdure.models.functions.commit_gate import Gate
from perdure.models.functions.journal_reader import Loader, missing_entry
from perdure.models.functions.live_runs import LiveRuns
from perdure.models.functions.replay import replay, undo
from perdure.models.functions.resumption import find_staged, resume, steps_anew, undelivered
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.steps import Steps
from perdure.ports import Journal

log = logging.getLogger("perdure")

_AGAIN_US: Final = 1_000_000


class Revival:
    """The runs that are being read or replayed.

    Deliveries that arrive for such a run are kept until the run is live.
    """

    def __init__(
        self, parts: HostParts, runs: LiveRuns, activations: Activations, steps: Steps, answers: Answers, gate: Gate
    ) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._codec = parts.codec
        self._timers = parts.timers
        self._coordinator = parts.coordinator
        self._runs = runs
        self._activations = activations
        self._slots = steps.slots
        self._answers = answers
        self._gate = gate
        self._outage = Outage("runs", parts.coordinator.stats.outages)
        self._loader = Loader(parts.store, parts.timers)
        self.waking: dict[str, asyncio.Future[Journal]] = {}
        self._replaying: dict[str, LiveRun] = {}  # the runs of `waking` whose journals have been read
        self._arrived: dict[str, list[Deliver]] = {}

    def __len__(self) -> int:
        """Return how many runs are being read or replayed."""
        return len(self.waking)

    def forget(self, run_id: str) -> LiveRun | None:
        """Stop bringing a run back into memory. Returns the live run if the run is being replayed. The caller must
        close the live run.
        """
        self._arrived.pop(run_id, None)
        if (reading := self.waking.pop(run_id, None)) is not None:
            reading.cancel()
        return self._replaying.pop(run_id, None)

    def close(self) -> None:
        """Read nothing more."""
        self._loader.close()

    def deliver(self, effect: Deliver) -> None:
        """Keep a delivery for a run that is not live, and bring the run back into memory."""
        if effect.run_id in self.waking:
            self._arrived.setdefault(effect.run_id, []).append(effect)
            return
        run = self._coordinator.loaded(effect.run_id)
        if run is not None and run.status is Status.SUSPENDED and not run.hold:
            # A run with another status was claimed a moment ago. A `Begin` for the run follows, and reads the delivery
            # too.
            self.wake(run)
            self._arrived.setdefault(effect.run_id, []).append(effect)

    # Reading.

    def wake(self, run: Run) -> None:
        """Bring a run back into memory from its journal."""
        if run.id in self.waking or run.id in self._runs.by_id or self._slots.is_closed:
            return
        reading = self._loader.load(run.id)
        if run.status is Status.ROLLING_BACK:
            reading = asyncio.get_running_loop().create_task(self._with_cause(run, reading))
        self.waking[run.id] = reading
        reading.add_done_callback(partial(self._loaded, run))

    async def _with_cause(self, run: Run, reading: Awaitable[Journal]) -> Journal:
        """Return a run's journal. For a run that rolls back, include the failure that caused the rollback."""
        journal = await reading
        failure = (await self._store.get([run.id]))[run.id].outcome.failure or ""
        return replace(journal, failure=failure)

    def _loaded(self, run: Run, reading: asyncio.Future[Journal]) -> None:
        if reading.cancelled():
            return
        error = reading.exception()
        if self.waking.get(run.id) is not reading:  # The run was dropped in the meantime, and perhaps claimed again.
            return
        missing = None if error is not None else missing_entry(reading.result().entries)
        if error is None and missing is None:
            self._outage.worked()
            self._replay(run, reading.result())
            return
        del self.waking[run.id]
        if isinstance(error, StoreError):
            self._outage.failed(f"run {run.id} could not be read and is tried again", error)
            self._timers.after(_AGAIN_US, lambda: self._wake_again(run))
        elif error is not None:
            log.error("run %s cannot be read", run.id, exc_info=error)
            self._activations.hold(run.id, run.claim, f"its journal cannot be read: {error}")
        else:
            damage = RowDamaged.at("journal", run.id, "seq", missing, "there are later entries, and not this one")
            log.error("run %s cannot be read: %s", run.id, damage)
            self._activations.hold(run.id, run.claim, f"its journal cannot be read: {damage}")

    def _wake_again(self, run: Run) -> None:
        now = self._coordinator.loaded(run.id)
        if now is not None and now.claim == run.claim:
            self.wake(now)

    # Replaying.

    def _replay(self, run: Run, stored: Journal) -> None:
        live = None if self._slots.is_closed else self._activations.made(run)
        if live is None:
            del self.waking[run.id]
            self._arrived.pop(run.id, None)
            return
        at = run.started_at or run.created_at
        if run.status is Status.ROLLING_BACK:
            work = undo(live, stored.input, stored.entries, at, stored.failure)
        else:
            work = replay(live, stored.input, stored.entries, at, is_begun=bool(stored.waits))
        self._replaying[run.id] = live
        self._replay_on(live, run, stored, work)

    def _replay_on(self, live: LiveRun, run: Run, stored: Journal, work: Pieces[Commands]) -> None:
        """Do the next piece of a replay. Each turn of the loop does one piece. Until the last piece the run stays in
        `waking`.
        """
        if self._replaying.get(run.id) is not live:
            return
        if self._slots.is_closed:
            return  # The host closes this run together with all other runs.
        activate: Callable[[], None]
        try:
            next(work)
        except StopIteration as done:
            activate = partial(self._activations.guarded, live, self._replayed, run, stored, done.value)
        except Exception as error:  # noqa: BLE001 - as in Activations.guarded
            activate = partial(self._activations.set_aside, live, error)
        else:
            asyncio.get_running_loop().call_soon(self._replay_on, live, run, stored, work)
            return
        del self._replaying[run.id], self.waking[run.id]
        arrived = self._arrived.pop(run.id, [])
        self._runs.enter(live)
        activate()
        for effect in (*arrived, *undelivered(run.id, stored.waits, self._coordinator.mailbox(run.id))):
            if self._runs.has(live):
                self._answers.deliver(live, effect)

    def _replayed(self, live: LiveRun, run: Run, journal: Journal, commands: Commands) -> None:
        if journal.staged:
            find_staged(live, journal.staged)
        resumed = resume(live, commands, journal.waits, self._clock.now())
        stored = {wait.position: wait for wait in journal.waits}
        for ask in resumed.asks:
            if ask.kind == "child":
                live.children[ask.position] = stored[ask.position].target or ""
        for position in live.requests.keys() & stored.keys():
            wait = stored[position]
            details = None if wait.details is None else self._codec.decode(wait.details)
            live.retries[position] = replace(wait, details=details)
            if wait.kind == "retry" and position not in live.staged:
                live.pausing[position] = None
        steps_anew(live, commands, self._clock.now())
        is_asleep = run.status is Status.SUSPENDED or (run.status is Status.ROLLING_BACK and live.idle)
        if resumed.is_all_of(commands) and live.idle == is_asleep and not live.is_stuck:
            commands.timers, commands.asks = resumed.timers, resumed.asks
            self._gate.release(live, commands)
            return
        advance = live.advance(commands, live.time(self._clock.now()), "recovered")
        fresh = live.gate[-1]

        def release() -> None:
            assert isinstance(fresh, Commands)
            self._gate.release(live, fresh)
            self._gate.arm(live, resumed.timers)
            self._answers.arm(live, resumed.asks)

        live.gate[-1] = release
        self._activations.write(live, advance)


__all__ = ["Revival"]
