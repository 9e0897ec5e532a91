"""Answers to the requests of runs. Steps and sleeps are handled elsewhere.

An answer is an event, the end of a run, a timer that is one of several options, or the id of a child. Everything here
happens in plain callbacks of the process's loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial

from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.errors import CommitRefused, EngineStopped, PerdureError, StoreError
from perdure.kernel.effects import Deliver
from perdure.kernel.events import DeadLetter, Event, misfit
from perdure.kernel.ops import Advance, Due
from perdure.kernel.runs import Outcome, Run
from perdure.kernel.status import FINISHED, Status
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.host_parts import HostParts
from perdure.models.common.slots import Slots
from perdure.models.functions.activations import Activations
from perdure.models.functions.commands import Ask
from perdure.models.functions.identity import check_same
from perdure.models.functions.live_runs import LiveRuns
from perdure.models.functions.request_rows import start_of, waits_of
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.step_execution import Execution
from perdure.models.functions.waits import EventChoice, Won, child_failed, misfit_of, won_by_end, won_by_event

log = logging.getLogger("perdure")
_AWAITING_MAX = 10_000


class Answers:
    """Handles the requests of a host's runs, and hands the answers to the runs."""

    def __init__(
        self,
        parts: HostParts,
        runs: LiveRuns,
        activations: Activations,
        slots: Slots[Execution],
        background: BackgroundTasks,
    ) -> None:
        self._store = parts.store
        self._clock = parts.clock
        self._codec = parts.codec
        self._timers = parts.timers
        self._coordinator = parts.coordinator
        self._runs = runs
        self._activations = activations
        self._slots = slots
        self._background = background
        # Runs that have begun to wait, and wait only for the ends of other runs. The deadlock watch takes the runs out
        # of this dict.
        self.awaiting: dict[str, None] = {}

    def arm(self, live: LiveRun, asks: Sequence[Ask]) -> None:
        """Perform the requests of a run: arm the timers among the options of its waits, and start its children."""
        for ask in asks:
            if live.asks.get(ask.position) is not ask or live.ended:
                continue
            if ask.kind in ("wait", "task"):
                if ask.kind == "wait" and ask.what.is_for_runs and len(self.awaiting) < _AWAITING_MAX:
                    self.awaiting[live.id] = None
                for option, due_at in ask.what.due_at.items():
                    timer = self._timers.arm(due_at, partial(self._option_due, live, ask, option))
                    live.timers[ask.position] = timer
            elif ask.kind == "start":
                self._background.start(self._start_child(live, ask))

    def _option_due(self, live: LiveRun, ask: Ask, option: int) -> None:
        """Handle a due timer among the options of a wait.

        If an event may have won the wait already, the coordinator decides. The timer stays in `timers` until an option
        has won, because the run may be released before then.
        """
        if live.ended or self._slots.is_closed or live.asks.get(ask.position) is not ask:
            return
        if any(isinstance(choice, EventChoice) for choice in ask.what.options):
            due = Due(
                run_id=live.id, at=live.time(self._clock.now()), claim=live.claim, position=ask.position, option=option
            )  # fmt: skip
            self._coordinator.enqueue(due)
        else:
            self.deliver(live, Deliver(live.id, ask.position, option))

    def deliver(self, live: LiveRun, effect: Deliver) -> None:
        """Hand a run the winner of its wait at a position: an event, the end of a run, or a timer."""
        ask = live.asks.get(effect.position)
        if ask is None or live.ended or self._slots.is_closed:
            return
        if effect.target is not None and effect.outcome is None:
            live.fetching += 1
            self._background.start(self._fetch_end(live, ask, effect))
            return
        if (timer := live.timers.pop(effect.position, None)) is not None:
            timer.cancel()
        self._activations.guarded(live, self._go_on_with, ask, effect)

    def _go_on_with(self, live: LiveRun, ask: Ask, effect: Deliver) -> None:
        at = self._clock.now()
        target, outcome, event = effect.target, effect.outcome, effect.event
        consumed: tuple[str, ...] = ()
        has_failed = outcome is not None and outcome[0].status is not Status.SUCCEEDED
        if target is not None and outcome is not None and has_failed and outcome[0].parent_id == live.id:
            # Only the parent consumes a failure. Other runs that wait for the failed run do not consume it.
            consumed = (target,)
        if target is not None and ask.kind == "child":
            if has_failed or outcome is None:
                error = child_failed(target, outcome, self._codec)
                advance = live.ask_done(ask, None, error, at=at, consumed=consumed)
            else:
                output = self._codec.decode(outcome[1].output or "null")
                advance = live.ask_done(ask, output, None, at=at)
            self._activations.write(live, advance)
            return
        if target is not None:
            won = won_by_end(effect.option, target, outcome, self._codec)
        elif event is not None:
            won = won_by_event(event, effect.option, self._codec)
            if ask.kind == "wait" and (wrong := misfit_of(ask.what, won)):
                self._set_event_aside(live, ask, event, wrong)
                return
        else:
            due = ask.what.due_at[effect.option]
            won = Won(option=effect.option, due=due, fired=max(live.time(at), due))
        read = () if event is None else (event.id,)
        text = to_json(won).decode()
        self._activations.write(live, live.ask_done(ask, text, None, at=at, read=read, consumed=consumed))

    def _set_event_aside(self, live: LiveRun, ask: Ask, event: Event, wrong: str) -> None:
        """Make an event a dead letter, because it does not fit the event class of the wait. The run keeps waiting.

        If a crash comes before the commit, the event stays where it was. Then it becomes a dead letter when the run is
        in memory again.
        """
        log.warning(
            "run %s waits on: %s. The event is now a dead letter: send a fitting event, or fix the class and replay it",
            live.id,
            wrong,
        )
        at = live.time(self._clock.now())
        # A retained event belongs to all runs that wait for it. So each run that cannot read the event gets its own
        # dead letter.
        letter_id = event.id if event.consumed else f"{event.id}@{live.id}"
        letter = DeadLetter(
            id=letter_id,
            name=event.name,
            value=event.value,
            fields=event.fields,
            run_id=live.id,
            status=misfit(wrong),
            ended_at=at,
            consumed=event.consumed,
            at=event.at,
        )
        live.gate.append(lambda: None)
        self._coordinator.enqueue(
            Advance(
                run_id=live.id,
                at=at,
                claim=live.claim,
                cause="event set aside",
                waits=waits_of(live, ask, at)[0],
                events_read=(event.id,),
                rejected=(letter,),
                idle=live.idle,
            )
        )
        self.arm(live, [ask])

    async def _fetch_end(self, live: LiveRun, ask: Ask, effect: Deliver) -> None:
        """Read the outcome of a run that this run has waited for, and hand it over."""
        target = effect.target or ""
        try:
            stored = (await self._store.get([target])).get(target)
        except StoreError as error:
            log.warning("run %s could not be read and is tried again: %s", target, error)
            self._timers.after(1_000_000, lambda: self._deliver_again(live, effect))
            return
        finally:
            live.fetching -= 1
            if self._runs.has(live):
                # The run could not leave memory while the outcome was being read, so offer it for eviction again.
                self._runs.rests(live)
        if stored is not None and stored.run.status not in FINISHED:
            asyncio.get_running_loop().call_soon(self._wait_again, live, ask)
            return
        ended = None if stored is None else (stored.run, stored.outcome)
        asyncio.get_running_loop().call_soon(self._end_fetched, live, ask, effect, ended)

    def _deliver_again(self, live: LiveRun, effect: Deliver) -> None:
        """Deliver an outcome that could not be read the first time, if this live run is still in memory.

        If the run was replayed in the meantime, its code has asked again. If the run has continued as another call, the
        position now belongs to another request.
        """
        if self._runs.has(live):
            self.deliver(live, effect)

    def _end_fetched(self, live: LiveRun, ask: Ask, effect: Deliver, ended: tuple[Run, Outcome] | None) -> None:
        if self._runs.has(live) and live.asks.get(ask.position) is ask and not live.ended:
            self._activations.guarded(live, self._go_on_with, ask, replace(effect, outcome=ended))

    def _wait_again(self, live: LiveRun, ask: Ask) -> None:
        """Store a wait again, because the run that won it has not ended. Either another run of the wait has ended
        instead, or the winner was retried.

        Then the first run of the wait that has ended wins.
        """
        if self._runs.has(live) and live.asks.get(ask.position) is ask and not live.ended:
            live.gate.append(lambda: None)
            at = live.time(self._clock.now())
            waits = waits_of(live, ask, at)[0]
            cause = "waiting again"
            self._coordinator.enqueue(
                Advance(run_id=live.id, at=at, claim=live.claim, cause=cause, waits=waits, idle=live.idle)
            )  # fmt: skip

    async def _start_child(self, live: LiveRun, ask: Ask) -> None:
        """Start a child under an id that the workflow chose. A run with this id may exist already, and may have been
        started with another call.
        """
        start = start_of(live, ask, ask.what.id, live.time(self._clock.now()))
        error: PerdureError | None = None
        try:
            started = await self._coordinator.submit(start)
            if not started.created:
                stored = (await self._store.get([start.run_id]))[start.run_id]
                given = ask.what.input
                check_same(stored.run, self._codec.decode(stored.input), start.workflow, given, ask.what.workflow)
        except EngineStopped as stopped:
            log.warning("child %s is started later, when its parent goes on: %s", start.run_id, stopped)
            return
        except CommitRefused as refused:
            error = refused
        except StoreError as unavailable:
            log.warning("child %s could not be started and is tried again: %s", start.run_id, unavailable)
            self._timers.after(1_000_000, partial(self.arm, live, [ask]))
            return
        except PerdureError as refused:
            error = refused
        asyncio.get_running_loop().call_soon(self._child_started, live, ask, start.run_id, error)

    def _child_started(self, live: LiveRun, ask: Ask, child_id: str, error: PerdureError | None) -> None:
        if self._runs.has(live) and live.asks.get(ask.position) is ask and not live.ended:
            self._activations.guarded(live, self._go_on_after_start, ask, child_id, error)

    def _go_on_after_start(self, live: LiveRun, ask: Ask, child_id: str, error: PerdureError | None) -> None:
        text = None if error is not None else to_json(child_id).decode()
        self._activations.write(live, live.ask_done(ask, text, error, at=self._clock.now()))


__all__ = ["Answers"]
