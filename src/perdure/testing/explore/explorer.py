"""The search. It decides which trials an exploration runs, in which order, and when to stop."""

from __future__ import annotations

import logging
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from perdure.cooperation import Operation, Topic
from perdure.models.functions.define import RunCall, Workflow
from perdure.models.functions.events import Event
from perdure.testing.explore.findings import Exploration, Finding, finding_of
from perdure.testing.explore.trials import Disturbance, Drive, Outcome, Subject, Trial, run_trial
from perdure.testing.explore.world import Factories, factories_of
from perdure.testing.faults import Point
from perdure.values.arguments import checked

__all__ = ["explore"]

log = logging.getLogger("perdure")

# The points at which a process can die. Failures of the store are left out, because workflows do not notice them.
_POINTS: tuple[Point, ...] = ("before", "before_effects", "after_effects")
# How often the process dies at the same place. Each time, other random numbers are used after the crash. So code that
# uses random numbers can behave differently.
_DRAWS = 4


@checked
async def explore(
    call: RunCall[Any] | tuple[Topic[Any], Any],
    *,
    workflows: Iterable[Workflow[Any, Any] | Operation[Any]] | None = None,
    world: Factories | type[Any] | None = None,
    observe: Callable[[Any], Any] | None = None,
    events: Sequence[Event] = (),
    drive: Drive | None = None,
    points: Sequence[Point] = _POINTS,
    commits_max: int = 100,
    orders_max: int = 100,
    trials_max: int = 1_000,
    only: str | None = None,
    **options: Any,
) -> Exploration:
    """Run a workflow many times. There is a crash at every commit, every order in which its steps can end, a failure of
    each step, and a cancellation at every commit. Return what went wrong.

    `call` is the call of a function or a graph, or a topic with a message for operations. `world` has fakes of the
    services that the steps use. It is a class, or a mapping. The mapping has, for each class that the steps pass to
    `resource`, a function that makes the fake. Each trial has fresh fakes. The fakes outlive a crash. `observe` returns
    the content of a service. By default this is its public attributes. `events` are sent to the run one by one, each
    time when the run waits. `drive` is called with the environment and the run's handle. It does everything else that
    the run needs. All other options are passed to the Engine.

    A finding says one of the following:

    - a step is not idempotent: after a crash it ran again, and the world differs from the world without the crash,
    - the workflow is not deterministic: in a replay, its code did not fit its journal,
    - the result differs from the result without a crash,
    - the run was rolled back, and the world differs from the world before the run,
    - the run is stuck: it waits for something that never happens.

    For each kind of finding and each set of steps, only one finding is reported. `only` runs a single trial. Pass the
    name of the trial that a finding contains. Everything happens in memory and in virtual time. Raises
    InvalidArguments.

        report = await explore(checkout("o-17"), world=Bank)
        report.check()
    """
    subject = Subject(
        call=call,
        workflows=None if workflows is None else list(workflows),
        world=factories_of(world),
        observe=observe,
        events=events,
        drive=drive,
        options=options,
    )
    state, level = random.getstate(), log.level
    log.setLevel(logging.CRITICAL)  # The disturbances of trials cause warnings and errors.
    try:
        return await _Explorer(subject, points, commits_max, orders_max, trials_max).run(only)
    finally:
        log.setLevel(level)
        random.setstate(state)
        if isinstance(call, RunCall):
            call.close()


class _Explorer:
    def __init__(
        self, subject: Subject, points: Sequence[Point], commits_max: int, orders_max: int, trials_max: int
    ) -> None:
        self._subject = subject
        self._points = points
        self._commits_max = commits_max
        self._orders_max = orders_max
        self._trials_max = trials_max
        self._trials = 0
        self._findings: dict[tuple[str, tuple[str, ...]], Finding] = {}
        self._outcomes: dict[str, Outcome] = {}

    async def run(self, only: str | None) -> Exploration:
        undisturbed = await self._try(Disturbance())
        orders, is_complete = 1, True
        if only is not None:
            await self._try_only(only, undisturbed)
        elif not self._findings:
            await self._crash(undisturbed)
            orders, is_complete = await self._order()
            await self._fail(undisturbed)
            await self._cancel(undisturbed)
        call = self._subject.call
        return Exploration(
            call=repr(call) if isinstance(call, RunCall) else f"a message to {call[0].name!r}",
            trials=self._trials,
            commits=undisturbed.commits,
            orders=orders,
            is_complete=is_complete,
            outcomes=list(self._outcomes.values()),
            findings=list(self._findings.values()),
        )

    async def _try(self, disturbance: Disturbance, expected: Trial | None = None) -> Trial:
        trial = await run_trial(self._subject, disturbance)
        self._trials += 1
        if disturbance.is_undisturbed:
            self._outcomes.setdefault(repr(trial.outcome), trial.outcome)
        found = finding_of(trial, expected or trial)
        if found is not None:
            self._findings.setdefault((found.kind, found.steps), found)
        return trial

    @property
    def _is_over(self) -> bool:
        return self._trials >= self._trials_max

    async def _crash(self, expected: Trial) -> None:
        """Run trials in which the process dies, at every commit."""
        for commit in range(1, min(expected.commits, self._commits_max) + 1):
            for point in self._points:
                for draw in range(_DRAWS if point == "after_effects" else 1):
                    if self._is_over:
                        return
                    failing = expected.disturbance.failing
                    await self._try(Disturbance(point=point, commit=commit, failing=failing, draw=draw), expected)

    async def _order(self) -> tuple[int, bool]:
        """Run trials in which steps end in every order. Return how many orders were tried, and whether these are all
        orders.
        """
        waiting: deque[tuple[int, ...]] = deque([()])
        tried = 0
        while waiting and tried < self._orders_max and not self._is_over:
            order = waiting.popleft()
            trial = await self._try(Disturbance(order=order))
            tried += 1
            chosen = tuple(choice for choice, _ in trial.choices)
            for at in range(len(order), len(trial.choices)):
                waiting += [(*chosen[:at], choice) for choice in range(1, trial.choices[at][1])]
        return tried, not waiting

    async def _fail(self, undisturbed: Trial) -> None:
        """Run trials in which each step fails. If a failure makes the run roll back, also let the process die during
        the longest rollback.
        """
        longest: Trial | None = None
        for label in dict.fromkeys(body.label for body in undisturbed.bodies.begun):
            if self._is_over:
                return
            trial = await self._try(Disturbance(failing=label))
            if trial.outcome.status == "rolled_back" and (longest is None or trial.commits > longest.commits):
                longest = trial
        if longest is not None:
            await self._crash(longest)

    async def _cancel(self, undisturbed: Trial) -> None:
        """Run trials in which the run is cancelled, after each of its commits."""
        for commit in range(1, min(undisturbed.commits, self._commits_max) + 1):
            if self._is_over:
                return
            await self._try(Disturbance(is_cancelled=True, commit=commit))

    async def _try_only(self, name: str, undisturbed: Trial) -> None:
        disturbance = Disturbance.named(name)
        expected = undisturbed
        if disturbance.failing and disturbance.point is not None:
            expected = await self._try(Disturbance(failing=disturbance.failing))
        if not disturbance.is_undisturbed or disturbance.order is not None:
            await self._try(disturbance, expected)
