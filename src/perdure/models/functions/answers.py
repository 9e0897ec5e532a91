"""Hands runs what they asked for beside steps and sleeps: events, ends of runs, timers among several options, and the
ids of children. A part of FunctionHost, in the same plain callbacks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any

from msgspec.json import encode as to_json
from msgspec.structs import replace

from perdure.coordinator.timers import Timers
from perdure.errors import CommitRefused, EngineStopped, PerdureError, StoreError
from perdure.kernel.effects import Deliver
from perdure.kernel.ops import Advance, Due, Op
from perdure.kernel.records import DeadLetter, Event, Outcome, Run, misfit
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.commands import Ask
from perdure.models.functions.identity import check_same
from perdure.models.functions.runner import LiveRun
from perdure.models.functions.waits import EventChoice, Won, child_failed, misfit_of, won_by_end, won_by_event
from perdure.ports import Clock, Codec, Journal, Store

log = logging.getLogger("perdure")


class Answering:
    """What a host that has these parts does about requests of its runs."""

    _store: Store
    _clock: Clock
    _codec: Codec
    _timers: Timers
    _owe: Callable[[Op], None]
    _submit: Callable[[Op], Awaitable[Any]]
    _lookup: Callable[[str], Run | None]
    _live: dict[str, LiveRun]
    _is_crowded: bool
    _waking: dict[str, asyncio.Future[Journal]]
    _arrived: dict[str, list[Deliver]]
    _fetching: set[asyncio.Task[None]]
    _draining: bool

    def _wake(self, run: Run) -> None:
        raise NotImplementedError

    def _guarded(self, live: LiveRun, activate: Callable[..., None], *args: Any) -> None:
        raise NotImplementedError

    def _progressed(self, live: LiveRun, advance: Advance) -> None:
        raise NotImplementedError

    def _touch(self, live: LiveRun) -> None:
        raise NotImplementedError

    def _now(self, live: LiveRun) -> int:
        raise NotImplementedError

    def _arm_asks(self, live: LiveRun, asks: Sequence[Ask]) -> None:
        for ask in asks:
            if live.asks.get(ask.position) is not ask or live.ended:
                continue
            if ask.kind in ("wait", "task"):
                for option, due_at in ask.what.due_at.items():
                    timer = self._timers.arm(due_at, partial(self._option_due, live, ask, option))
                    live.timers[ask.position] = timer
            elif ask.kind == "start":
                self._background(self._start_child(live, ask))

    def _option_due(self, live: LiveRun, ask: Ask, option: int) -> None:
        """The timer among the options of a wait. Where an event may have won, the coordinator knows. It stays in
        `timers` until something has won, since the run may be given up before."""
        if live.ended or self._draining or live.asks.get(ask.position) is not ask:
            return
        if any(isinstance(choice, EventChoice) for choice in ask.what.options):
            due = Due(
                run_id=live.id, at=self._now(live), claim=live.claim, position=ask.position, option=option
            )  # fmt: skip
            self._owe(due)
        else:
            self._deliver(Deliver(live.id, ask.position, option))

    def _deliver(self, effect: Deliver) -> None:
        """Hand over what has won a position that a run waits at."""
        live = self._live.get(effect.run_id)
        if live is None:
            if effect.run_id in self._waking:
                self._arrived.setdefault(effect.run_id, []).append(effect)
            elif (run := self._lookup(effect.run_id)) is not None and run.status is Status.SUSPENDED and not run.hold:
                # One that does not just wait was claimed a moment ago, and is about to be taken up: with all of this.
                self._wake(run)
                self._arrived.setdefault(effect.run_id, []).append(effect)
            return
        ask = live.asks.get(effect.position)
        if ask is None or live.ended or self._draining:
            return
        if effect.target is not None and effect.outcome is None:
            live.fetching += 1
            self._background(self._fetch_end(live, ask, effect))
            return
        if (timer := live.timers.pop(effect.position, None)) is not None:
            timer.cancel()
        if self._is_crowded:
            self._touch(live)
        self._guarded(live, self._go_on_with, ask, effect)

    def _go_on_with(self, live: LiveRun, ask: Ask, effect: Deliver) -> None:
        at = self._clock.now()
        target, outcome, event = effect.target, effect.outcome, effect.event
        consumed: tuple[str, ...] = ()
        has_failed = outcome is not None and outcome[0].status is not Status.SUCCEEDED
        if target is not None and outcome is not None and has_failed and outcome[0].parent_id == live.id:
            consumed = (target,)  # A run that only looks on takes nothing from the one that it belongs to.
        if target is not None and ask.kind == "child":
            if has_failed or outcome is None:
                error = child_failed(target, outcome, self._codec)
                advance = live.ask_done(ask, None, error, at=at, consumed=consumed)
            else:
                output = self._codec.decode(outcome[1].output or "null")
                advance = live.ask_done(ask, output, None, at=at)
            self._progressed(live, advance)
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
        self._progressed(live, live.ask_done(ask, text, None, at=at, read=read, consumed=consumed))

    def _set_event_aside(self, live: LiveRun, ask: Ask, event: Event, wrong: str) -> None:
        """An event does not fit the class by which the run waits for it: make it a dead letter, and wait on.

        A crash before the commit leaves the event where it was, and it is set aside when the run is back.
        """
        log.warning(
            "run %s waits on: %s. The event is now a dead letter: send what was meant, or mend the class and replay it",
            live.id,
            wrong,
        )
        at = self._now(live)
        # A retained one is everybody's: each run that cannot take it says so for itself.
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
        self._owe(
            Advance(
                run_id=live.id,
                at=at,
                claim=live.claim,
                cause="event set aside",
                waits=live.waits_again(ask, at),
                events_read=(event.id,),
                rejected=(letter,),
                idle=live.idle,
            )
        )
        self._arm_asks(live, [ask])

    async def _fetch_end(self, live: LiveRun, ask: Ask, effect: Deliver) -> None:
        """Read how a run ended that was waited for."""
        target = effect.target or ""
        try:
            stored = (await self._store.get([target])).get(target)
        except StoreError as error:
            log.warning("run %s could not be read and is tried again: %s", target, error)
            self._timers.after(1_000_000, lambda: self._deliver_again(live, effect))
            return
        finally:
            live.fetching -= 1
        if stored is not None and stored.run.status not in FINISHED:
            asyncio.get_running_loop().call_soon(self._wait_again, live, ask)
            return
        ended = None if stored is None else (stored.run, stored.outcome)
        asyncio.get_running_loop().call_soon(self._end_fetched, live, ask, effect, ended)

    def _deliver_again(self, live: LiveRun, effect: Deliver) -> None:
        """What could not be read the first time. A run that was brought back to life since has asked by itself, and to
        one that continues as another call the position means something else."""
        if self._live.get(live.id) is live:
            self._deliver(effect)

    def _end_fetched(self, live: LiveRun, ask: Ask, effect: Deliver, ended: tuple[Run, Outcome] | None) -> None:
        if self._live.get(live.id) is live and live.asks.get(ask.position) is ask and not live.ended:
            self._guarded(live, self._go_on_with, ask, replace(effect, outcome=ended))

    def _wait_again(self, live: LiveRun, ask: Ask) -> None:
        """The stored wait was won by an end, but the run that was asked after has not ended: another of the wait's runs
        has, or this one was retried. The wait is put anew, and whichever of them has ended wins it."""
        if self._live.get(live.id) is live and live.asks.get(ask.position) is ask and not live.ended:
            live.gate.append(lambda: None)
            at = self._now(live)
            waits = live.waits_again(ask, at)
            cause = "waiting again"
            self._owe(
                Advance(run_id=live.id, at=at, claim=live.claim, cause=cause, waits=waits, idle=live.idle)
            )  # fmt: skip

    async def _start_child(self, live: LiveRun, ask: Ask) -> None:
        """Start a child whose id was given: it may exist, and may be another."""
        start = live.start_of(ask, ask.what.id, self._now(live))
        error: PerdureError | None = None
        try:
            started = await self._submit(start)
            if not started.created:
                stored = (await self._store.get([start.run_id]))[start.run_id]
                given = ask.what.input
                check_same(stored.run, self._codec.decode(stored.input), start.workflow, given, ask.what.workflow)
        except EngineStopped as stopped:
            log.warning("child %s is started when its parent goes on: %s", start.run_id, stopped)
            return
        except CommitRefused as refused:
            error = refused
        except StoreError as unavailable:
            log.warning("child %s could not be started and is tried again: %s", start.run_id, unavailable)
            self._timers.after(1_000_000, partial(self._arm_asks, live, [ask]))
            return
        except PerdureError as refused:
            error = refused
        asyncio.get_running_loop().call_soon(self._child_started, live, ask, start.run_id, error)

    def _child_started(self, live: LiveRun, ask: Ask, child_id: str, error: PerdureError | None) -> None:
        if self._live.get(live.id) is live and live.asks.get(ask.position) is ask and not live.ended:
            self._guarded(live, self._go_on_after_start, ask, child_id, error)

    def _go_on_after_start(self, live: LiveRun, ask: Ask, child_id: str, error: PerdureError | None) -> None:
        text = None if error is not None else to_json(child_id).decode()
        self._progressed(live, live.ask_done(ask, text, error, at=self._clock.now()))

    def _background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._fetching.add(task)
        task.add_done_callback(self._fetching.discard)
