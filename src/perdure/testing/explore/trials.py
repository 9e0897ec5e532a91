"""One trial of an explored workflow: one run in a fresh store and a fresh world, with one disturbance."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, get_args

from msgspec import Struct

from perdure.api.root_handle import RootHandle
from perdure.api.run_handle import RunHandle
from perdure.cooperation import Topic
from perdure.engine import Engine
from perdure.errors import InvalidArguments, Misuse, RunFinished
from perdure.kernel.batch import Batch
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.define import RunCall
from perdure.models.functions.events import Event
from perdure.ports import StepPlace, Store
from perdure.testing.environment import Environment
from perdure.testing.explore.bodies import Bodies
from perdure.testing.explore.world import Factories, World
from perdure.testing.faults import Fault, Point
from perdure.values.times import from_datetime
from perdure.views import RunTree, RunView

__all__ = ["Disturbance", "Outcome", "Subject", "Trial", "run_trial"]

RUN_ID = "explored"
_JUMPS_MAX = 1_000

Call = RunCall[Any] | tuple[Topic[Any], Any]
Drive = Callable[[Environment, RunHandle[Any] | RootHandle], Awaitable[object]]


class Subject(Struct, frozen=True, kw_only=True):
    """The subject of an exploration: the call, the code, the world around it, and the events that are sent to the
    run."""

    call: Call
    workflows: list[Any] | None
    world: Factories
    observe: Callable[[Any], Any] | None
    events: Sequence[Event]
    drive: Drive | None
    options: dict[str, Any]


class Disturbance(Struct, frozen=True, kw_only=True):
    """The disturbance of a trial: a crash or a cancellation at a commit, a failing step, or an order in which steps
    end.
    """

    point: Point | None = None
    commit: int = 0
    failing: str = ""
    is_cancelled: bool = False
    order: tuple[int, ...] | None = None
    draw: int = 0  # trials that differ only in this number use different random numbers

    @property
    def name(self) -> str:
        """A short name, for the option `only`: "before@3", "fail:charge#1", "fail:charge#1+before@3", "cancel@2",
        "order:0,1"."""
        parts = [f"fail:{self.failing}"] if self.failing else []
        if self.is_cancelled:
            parts.append(f"cancel@{self.commit}")
        elif self.point is not None:
            parts.append(f"{self.point}@{self.commit}" + (f".{self.draw}" if self.draw else ""))
        if self.order is not None:
            parts.append(f"order:{','.join(map(str, self.order))}")
        return "+".join(parts) or "undisturbed"

    @classmethod
    def named(cls, name: str) -> Disturbance:
        """Return the disturbance that has this name. Raises InvalidArguments."""
        fields: dict[str, Any] = {}
        for part in [] if name == "undisturbed" else name.split("+"):
            head, _, tail = part.partition("@")
            tail, _, draw = tail.partition(".")
            if part.startswith("fail:"):
                fields["failing"] = part.removeprefix("fail:")
            elif part.startswith("order:") and all(one.isdecimal() for one in part[6:].split(",") if one):
                fields["order"] = tuple(int(one) for one in part[6:].split(",") if one)
            elif head in (*get_args(Point), "cancel") and tail.isdecimal() and (draw or "0").isdecimal():
                fields |= {"is_cancelled": True} if head == "cancel" else {"point": head}
                fields |= {"commit": int(tail), "draw": int(draw or 0)}
            else:
                raise InvalidArguments(
                    f"there is no trial {name!r}: pass what a finding names, such as 'before_effects@3',"
                    " 'fail:charge#1', 'cancel@2' or 'order:0,1'"
                )
        return cls(**fields)

    @property
    def is_undisturbed(self) -> bool:
        """Whether nothing goes wrong in the trial. Steps may end in any order."""
        return self.point is None and not self.failing and not self.is_cancelled

    def __str__(self) -> str:
        parts = [f"step {self.failing.replace('#', ', call ')} fails"] if self.failing else []
        if self.is_cancelled:
            parts.append(f"the run is cancelled after commit {self.commit}")
        elif self.point is not None:
            parts.append(f"the process dies at commit {self.commit} ({self.point})")
        if self.order is not None:
            parts.append("steps end in another order")
        return ", and ".join(parts) or "nothing goes wrong"


class Outcome(Struct, frozen=True, kw_only=True):
    """How the run ended. `held` and `stuck` are statuses here too. A held run cannot go on, and a stuck run waits for
    something that never happens.
    """

    status: str
    output: Any = None
    detail: str = ""


class Trial(Struct, kw_only=True):
    """The observations of a trial."""

    disturbance: Disturbance
    outcome: Outcome
    before: Any  # the world before the run
    after: Any
    bodies: Bodies
    commits: int
    restarts: int
    choices: list[tuple[int, int]]  # for each choice: the number of the chosen option, and the number of options


async def run_trial(subject: Subject, disturbance: Disturbance) -> Trial:
    """Run a subject with a disturbance to its end."""
    return await _Run(subject, disturbance).run()


class _ExploredEnvironment(Environment):
    """An environment in which `bodies` wraps the steps of all engines."""

    bodies: Bodies
    draw = 0

    def new_engine(self, store: Store) -> Engine:
        self.bodies.release_all()
        # Before a crash, all trials use the same random numbers. After it, they use other numbers.
        random.seed(f"{self.restarts}/{self.draw if self.restarts else 0}")
        engine = super().new_engine(store)
        self.bodies.wrap(engine)
        return engine


class _CountingFault(Fault):
    """A fault that never happens. It counts the commits, and calls `reached` after a certain commit."""

    def __init__(self, commit: int = 0, reached: Callable[[], object] | None = None) -> None:
        super().__init__("busy", times=0)
        self._number = commit
        self._reached = reached

    def strikes(self, batch: Batch) -> bool:
        super().strikes(batch)
        self._notify()
        return False

    def strikes_at(self, place: StepPlace) -> bool:
        super().strikes_at(place)
        self._notify()
        return False

    def _notify(self) -> None:
        if self._reached is not None and self.commits >= self._number:
            reached, self._reached = self._reached, None
            reached()


class _Run:
    def __init__(self, subject: Subject, disturbance: Disturbance) -> None:
        self._subject = subject
        self._disturbance = disturbance
        self._world = World(subject.world, subject.observe)
        self._choices: list[tuple[int, int]] = []
        self._is_cancelled = asyncio.Event()

    async def run(self) -> Trial:
        subject, disturbance, world = self._subject, self._disturbance, self._world
        is_ordered = disturbance.order is not None
        before = world.observe()
        fault = self._fault()
        options: dict[str, Any] = {
            **subject.options,
            "resources": {**subject.options.get("resources", {}), **world.resources},
        }
        env = _ExploredEnvironment(subject.workflows, fault=fault, autojump_s=None if is_ordered else 0.05, **options)
        bodies = Bodies(env.clock, world, failing=disturbance.failing, is_holding=is_ordered)
        env.bodies, env.draw = bodies, disturbance.draw
        async with env:
            outcome = await env.survive(self._scenario)
            bodies.release_all()
            await env.check()
        return Trial(
            disturbance=disturbance,
            outcome=outcome,
            before=before,
            after=world.observe(),
            bodies=bodies,
            commits=fault.commits,
            restarts=env.restarts,
            choices=self._choices,
        )

    def _fault(self) -> Fault:
        disturbance = self._disturbance
        if disturbance.point is not None:
            return Fault(disturbance.point, disturbance.commit)
        if disturbance.is_cancelled:
            return _CountingFault(disturbance.commit, self._is_cancelled.set)
        return _CountingFault()

    async def _scenario(self, env: Environment) -> Outcome:
        """Start the run, or find it again after a crash, and wait until it has ended."""
        assert isinstance(env, _ExploredEnvironment)
        subject = self._subject
        run = await _started(env.engine, subject.call)
        cancelling = asyncio.ensure_future(self._cancel(run)) if self._disturbance.is_cancelled else None
        driving = None if subject.drive is None else asyncio.ensure_future(_driven(subject.drive, env, run))
        sent = 0
        try:
            while True:
                await (env.settle() if self._disturbance.order is None else self._settle_in_order(env, run))
                if driving is not None and driving.done():
                    driving.result()
                outcome = await _outcome(run)
                if outcome is not None:
                    return outcome
                if sent < len(subject.events) and isinstance(run, RunHandle):
                    with suppress(RunFinished):
                        await env.engine.send(subject.events[sent], to=run.id, key=f"explored/{sent}")
                    sent += 1
                elif driving is None or driving.done():
                    return Outcome(status="stuck", detail=await _awaited(run))
                else:
                    await env.quiet()
        finally:
            for task in (cancelling, driving):
                if task is not None:
                    task.cancel()

    async def _cancel(self, run: RunHandle[Any] | RootHandle) -> None:
        await self._is_cancelled.wait()
        await run.cancel("to see what is undone")

    async def _settle_in_order(self, env: _ExploredEnvironment, run: RunHandle[Any] | RootHandle) -> None:
        """Let steps end and timers fire one at a time, in the order of the disturbance, until no step and no timer is
        left.
        """
        order = self._disturbance.order or ()
        jumps = 0
        while jumps < _JUMPS_MAX:
            await env.quiet()
            options: list[str | None] = list(env.bodies.held)
            if not options:
                if (next_at := env.clock.next_at) is None:
                    return
                jumps += 1
                env.clock.move_to(next_at)
                continue
            due = await _due(run)
            if due is not None:
                options.append(None)  # This option lets time pass first.
            number = len(self._choices)
            chosen = order[number] if number < len(order) else 0
            self._choices.append((chosen, len(options)))
            label = options[min(chosen, len(options) - 1)]
            if label is None:
                assert due is not None
                jumps += 1
                env.clock.move_to(max(due, env.clock.now()))
            else:
                env.bodies.release(label)
        raise Misuse(f"the run did not come to rest in {_JUMPS_MAX} jumps of the clock")


async def _started(engine: Engine, call: Call) -> RunHandle[Any] | RootHandle:
    if isinstance(call, tuple):
        topic, payload = call
        return await engine.emit(topic, payload, id=RUN_ID)
    return await engine.start(call.workflow(*call.args, **call.kwargs), id=RUN_ID)


async def _driven(drive: Drive, env: Environment, run: RunHandle[Any] | RootHandle) -> None:
    with suppress(RunFinished):  # The disturbance has ended the run.
        await drive(env, run)


async def _outcome(run: RunHandle[Any] | RootHandle) -> Outcome | None:
    """Return the outcome of a run that has ended or is held. Return None if the run goes on."""
    if isinstance(run, RootHandle):
        views = _views((await run.tree()).children)
    else:
        views = [await run.view()]
    for view in views:
        if view.hold is not None:
            return Outcome(status="held", detail=f"{view.hold.kind}: {view.hold.reason}\n{view.hold.details}".strip())
    if not views or any(Status(view.status) not in FINISHED for view in views):
        return None
    if isinstance(run, RootHandle):
        statuses = sorted({view.status for view in views})
        return Outcome(status=statuses[0] if len(statuses) == 1 else "mixed", output=statuses)
    view = views[0]
    failure = "" if view.failure is None else f"{view.failure.type}: {view.failure.message}"
    return Outcome(status=view.status, output=view.output, detail=failure)


def _views(trees: list[RunTree]) -> list[RunView]:
    return [view for tree in trees for view in (tree.run, *_views(tree.children))]


async def _due(run: RunHandle[Any] | RootHandle) -> int | None:
    """Return the time at which the next durable timer of a run is due, in microseconds."""
    if isinstance(run, RootHandle):
        return None
    found = [wait.due_at for wait in await run.waits() if wait.due_at is not None]
    return from_datetime(min(found)) if found else None


async def _awaited(run: RunHandle[Any] | RootHandle) -> str:
    if isinstance(run, RootHandle):
        return "the hierarchy waits for something that does not come: pass `drive`, which makes it come"
    waits = [f"{wait.kind} {wait.name}".strip() for wait in await run.waits()]
    return f"the run waits for {', '.join(waits) or 'nothing'}; pass `events` or `drive`, which make that come"
