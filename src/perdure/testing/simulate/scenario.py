"""Scenarios: a seeded mix of runs, events and faults. After the faults have stopped, every run must end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, TypeVar

from msgspec import Struct, field

from perdure.api.tasks import TaskView
from perdure.engine import Engine
from perdure.errors import (
    ConcurrentModification,
    EngineStopped,
    InvariantViolated,
    RunFinished,
    RunNotFound,
    RunNotRetryable,
    RunOwnedElsewhere,
    StoreError,
    TaskClosed,
)
from perdure.kernel.status import FINISHED, Status
from perdure.models.functions.define import Workflow
from perdure.testing.simulate.checks import Expected, check_rest
from perdure.testing.simulate.graphs import AT_ONCE, Drawn
from perdure.testing.simulate.loop import Stuck
from perdure.testing.simulate.mix import (
    CROWDED_S,
    MIX,
    NEVER_S,
    RECEIVING,
    SLEEP_S,
    Mix,
    Planner,
    lanes_in,
    many,
    notices_in,
    one_of,
    targets_in,
)
from perdure.testing.simulate.network import FINE
from perdure.testing.simulate.simulation import Member, Simulation
from perdure.testing.simulate.step_checks import StepChecks
from perdure.testing.simulate.transactions import Bug
from perdure.testing.simulate.workload import GRAPHS, WORKFLOWS, Job, Ledger, Letter, Notice, Word, traveller
from perdure.values.limits import Limits

__all__ = ["Report", "simulate"]

T = TypeVar("T")

_REST_S = 300.0  # so many seconds after the faults have stopped, everything must have ended


class Report(Struct, kw_only=True):
    """The result of a scenario for one seed. `problem` is empty if the seed passed."""

    seed: int
    problem: str
    trace: list[str] = field(default_factory=list)
    virtual_s: float = 0.0
    turns: int = 0


def simulate(seed: int, *, bugs: Iterable[Bug] = (), mix: Mix = MIX) -> Report:
    """Run the scenario of a seed. The same seed gives the same trace."""
    scenario = _Scenario(seed, frozenset(bugs), mix)
    simulation = scenario.simulation
    problem = ""
    try:
        simulation.run(scenario.run())
    except Exception as error:  # noqa: BLE001 - whatever the error is, the report must have the seed and its trace
        problem = f"{type(error).__name__}: {error}"
    loop = simulation.loop
    simulation.note(f"ends after {loop.turns} turns, schedule {loop.schedule:08x}")
    return Report(
        seed=seed, problem=problem, trace=simulation.trace, virtual_s=loop.now_us / 1_000_000, turns=loop.turns
    )


class _Scenario:
    def __init__(self, seed: int, bugs: frozenset[Bug], mix: Mix) -> None:
        self.mix = mix
        self.lot = lot = Random(f"{seed}/mix")
        weather, live_runs_max, steps_max = mix.weather(lot), lot.choice(mix.live_runs_max), one_of(lot, mix.steps_max)
        self.simulation = Simulation(
            seed,
            weather=weather,
            bugs=bugs,
            limits=Limits(live_runs_max=live_runs_max, steps_max=steps_max),
            resources={Ledger: lambda: self.ledger},
        )
        self.steps = StepChecks(self.simulation, steps_max)
        self.ledger: Ledger = Ledger(self.steps.started)
        self.expected = Expected()
        self._numbers = iter(range(10**6))
        self.planner = Planner(mix, lot)

    async def run(self) -> None:
        simulation, lot = self.simulation, self.lot
        for index in range(lot.randint(*self.mix.engines)):
            names = ["clerk", "baker"] if index == 0 or lot.random() < 0.5 else ["clerk"]
            others = [traveller, *GRAPHS.values()] if "baker" in names else []
            skew_s = one_of(lot, self.mix.skews_s)
            simulation.member("abcdefgh"[index], [*(WORKFLOWS[name] for name in names), *others], skew_s=skew_s)
        members = list(simulation.members.values())
        await asyncio.gather(*[self._tasked(member.open()) for member in members])
        tasks = [self._tasked(client) for client in self._clients()]
        tasks += [self._tasked(self._pause()) for _ in range(lot.randint(*self.mix.pauses))]
        tasks += [self._tasked(self._kill()) for _ in range(lot.randint(*self.mix.kills))]
        await asyncio.sleep(self.mix.within_s)
        simulation.note("the faults stop")
        simulation.network.weather = FINE
        await self._rest(tasks)
        for member in members:
            member.kill()
        await asyncio.sleep(5)  # The remaining faults end.
        if problems := [*self.steps.wrong, *(f"an engine logged: {text}" for text in simulation.errors)]:
            raise InvariantViolated("\n".join(problems))
        await check_rest(simulation.database.memory, self.expected, simulation.clock.now())

    @staticmethod
    def _tasked(coroutine: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(coroutine)

    async def _rest(self, tasks: list[asyncio.Task[Any]]) -> None:
        memory = self.simulation.database.memory
        until = self.simulation.loop.time() + _REST_S
        while memory.active or memory.mail or not all(task.done() for task in tasks):
            if self.simulation.loop.time() > until:
                raise Stuck("\n".join(["these are stuck:", *self._stuck(tasks)]))
            await asyncio.sleep(1)
        for task in tasks:
            task.result()

    def _stuck(self, tasks: list[asyncio.Task[Any]]) -> list[str]:
        memory = self.simulation.database.memory
        runs = [memory.runs[run_id].run for run_id in sorted(memory.active)]
        names = self.simulation.database.processes
        return [
            *(
                f"run {run.id} ({run.workflow}), {run.status}, of {names.get(run.owner or '')}, {run.hold}"
                for run in runs
            ),
            *(f"mail {mail.id} for run {mail.run_id}: {mail.op}" for mail in memory.mail.values()),
            *(f"{task.get_coro()}" for task in tasks if not task.done()),
            *self.steps.wrong,
            *self.simulation.errors,
        ]

    # Requests of callers.

    def _clients(self) -> list[Any]:
        lot = self.lot
        clients: list[Any] = []
        started: dict[str, asyncio.Event] = {}
        for index in range(lot.randint(*self.mix.runs)):
            run_id = f"r{index}"
            plan = self.planner.plan(list(started))
            self.expected.plans[run_id] = plan
            if plan[0][0] != "continue_anew":  # Positions begin again with each continuation.
                self.steps.sequential.add(run_id)
            if lot.random() < 0.15:
                self.expected.victims.add(run_id)
                clients.append(self._cancel(run_id))
            kind = lot.choice(("clerk", "baker"))
            before = [started[target] for target in targets_in(plan)]
            started[run_id] = asyncio.Event()
            clients.append(self._start(run_id, WORKFLOWS[kind], (plan,), before, started[run_id]))
            words = sum(task[0] in RECEIVING for task in plan)
            if words:
                self.expected.words[run_id] = words
                clients.append(self._send_words(run_id, words, started[run_id]))
            if any(task[0] == "ask" for task in plan):
                clients.append(self._answer(run_id, started[run_id]))
        drawn = [self.planner.graph() for _ in range(lot.randint(*self.mix.graphs))]
        clients += self._others(drawn)
        clients += self._lasting()
        clients += self._write(list(started))
        lanes = [lane for one in drawn for lane in one.lanes]
        for lane in [*lanes_in(list(self.expected.plans.values())), *lanes]:
            number = next(self._numbers)
            self.expected.jobs.add(number)
            clients.append(self._broadcast(Job(number=number, lane=lane), f"job {number}"))
        for number in range(max(notices_in(plan) for plan in self.expected.plans.values())):
            self.expected.notices.add(number)
            clients.append(self._broadcast(Notice(number=number), f"notice {number}"))
        return clients

    def _others(self, drawn: list[Drawn]) -> list[Any]:
        """Return clients for runs of graphs, for runs that undo their work, and for runs that do not end by
        themselves.
        """
        lot, clients = self.lot, list[Any]()
        for index, one in enumerate(drawn):
            run_id, started = f"g{index}", asyncio.Event()
            self.expected.graphs[run_id] = one.expected
            if one.name == "turns":
                self.expected.turns.add(run_id)
            if one.name in AT_ONCE:
                self.steps.at_once[run_id] = AT_ONCE[one.name]
            clients.append(self._start(run_id, GRAPHS[one.name], (one.input,), [], started))
            if one.words:
                self.expected.words[run_id] = one.words
                clients.append(self._send_words(run_id, one.words, started))
            if lot.random() < 0.15:
                self.expected.victims.add(run_id)
                clients.append(self._cancel(run_id, started))
        for index in range(lot.randint(*self.mix.travellers)):
            run_id, started = f"t{index}", asyncio.Event()
            stations, end = self.expected.journeys[run_id] = self.planner.journey()
            self.steps.sequential.add(run_id)
            clients.append(self._start(run_id, traveller, (stations, end), [], started))
            if end == "waits" or lot.random() < 0.15:
                self.expected.victims.add(run_id)
                clients.append(self._cancel(run_id, started))
        for index in range(lot.randint(*self.mix.deadlines)):
            run_id = f"d{index}"
            self.expected.deadlines.add(run_id)
            due = datetime.fromtimestamp(self.simulation.clock.now() / 1e6 + lot.random() * 2 * self.mix.within_s, UTC)
            clients.append(self._start(run_id, WORKFLOWS["clerk"], ([["nap", 100_000]],), [], asyncio.Event(), due))
        return clients

    def _lasting(self) -> list[Any]:
        """Return clients for runs that fail and are retried by hand, for runs whose children end only if the run is
        cancelled, and for runs that sleep until long after the last fault."""
        lot, clients = self.lot, list[Any]()
        for index in range(many(lot, self.mix.retried)):
            run_id, started, plan = f"f{index}", asyncio.Event(), self.planner.failing()
            self.expected.plans[run_id] = plan
            self.steps.sequential.add(run_id)
            clients.append(self._start(run_id, WORKFLOWS[lot.choice(("clerk", "baker"))], (plan,), [], started))
            clients.append(self._retry(run_id, started))
        for index in range(many(lot, self.mix.parents)):
            run_id, started, kind = f"p{index}", asyncio.Event(), lot.choice(("clerk", "baker"))
            plan = self.expected.plans[run_id] = [[lot.choice(("child", "started")), kind, [["nap", NEVER_S]]]]
            self.expected.victims.add(run_id)
            clients.append(self._start(run_id, WORKFLOWS[lot.choice(("clerk", "baker"))], (plan,), [], started))
            clients.append(self._cancel(run_id, started))
        for index in range(many(lot, self.mix.sleepers)):
            run_id = f"s{index}"
            plan = self.expected.plans[run_id] = [["nap", SLEEP_S]]
            self.expected.sleepers.add(run_id)
            clients.append(self._start(run_id, WORKFLOWS["clerk"], (plan,), [], asyncio.Event()))
        return clients

    async def _retry(self, run_id: str, started: asyncio.Event) -> None:
        """Retry a run whenever it has failed, until it has ended in another way."""
        await started.wait()
        while True:
            await asyncio.sleep(0.5 + self.lot.random())
            run = await self._ask_until_answered(lambda engine: engine.runs.get(run_id))
            if run is not None and run.status is Status.FAILED:
                # Perhaps the run is retried already, and only the reply was lost.
                with suppress(RunNotRetryable, ConcurrentModification):
                    await self._ask_until_answered(lambda engine: engine.handle(run_id).retry())
            elif run is not None and run.status in FINISHED:
                return

    def _write(self, run_ids: list[str]) -> list[Any]:
        """Send events to runs that never read them."""
        count = self.lot.randint(*self.mix.letters)
        return [self._letter(number, self.lot.choice(run_ids)) for number in range(count)]

    async def _letter(self, number: int, run_id: str) -> None:
        await self._moment()
        # A run that has ended, or was not started yet, accepts no events.
        with suppress(RunFinished, RunNotFound):
            await self._ask_until_answered(partial(_send, Letter(number=number), run_id, f"letter {number}"))
            self.expected.letters.add(number)

    async def _answer(self, run_id: str, started: asyncio.Event) -> None:
        """Answer a run's tasks until it has ended."""
        await started.wait()
        while True:
            await asyncio.sleep(0.5 + self.lot.random())
            for one in await self._ask_until_answered(lambda engine: engine.tasks.list(run=run_id, status="open")):
                with suppress(TaskClosed):
                    await self._ask_until_answered(partial(_answer, one))
            run = await self._ask_until_answered(lambda engine: engine.runs.get(run_id))
            if run is not None and run.status in FINISHED:
                return

    async def _start(
        self,
        run_id: str,
        workflow: Workflow[..., Any],
        args: tuple[Any, ...],
        before: list[asyncio.Event],
        started: asyncio.Event,
        deadline: datetime | None = None,
    ) -> None:
        await self._moment(0.5)
        for other in before:
            await other.wait()
        starters = list(self.simulation.members.values())[: self.mix.starters]
        await self._ask_until_answered(
            lambda engine: engine.start(workflow(*args), id=run_id, deadline=deadline),
            lambda one: one in starters and workflow in one.workflows,
        )
        started.set()

    async def _send_words(self, run_id: str, times: int, started: asyncio.Event) -> None:
        await started.wait()
        for number in range(times):
            await self._moment(1 / times)
            key = f"{run_id}/{number}"
            # Perhaps the run has got everything, and only the reply was lost. The run's result is checked in the end.
            request = partial(_send, Word(number=number), run_id, key)
            asked = 2 if self.mix.impatient and self.lot.random() < self.mix.impatient else 1
            with suppress(RunFinished):
                await asyncio.gather(*[self._ask_until_answered(request) for _ in range(asked)])

    async def _broadcast(self, event: Job | Notice, key: str) -> None:
        await self._moment()
        await self._ask_until_answered(partial(_send, event, None, key))

    async def _cancel(self, run_id: str, started: asyncio.Event | None = None) -> None:
        """Cancel a run, even if it does not exist yet. With `started`, cancel it soon after it was started."""
        if started is not None:
            await started.wait()
        await self._moment(1.0 if started is None else 0.1)
        await self._ask_until_answered(lambda engine: engine.handle(run_id).cancel())

    async def _moment(self, part: float = 1.0) -> None:
        """Wait for some time, at most for this fraction of the time with faults."""
        after_s = self.lot.random() * self.mix.within_s * part
        if self.planner.is_crowded:
            now = self.simulation.loop.time()
            after_s = max(0.0, round((now + after_s) / CROWDED_S) * CROWDED_S - now)
        await asyncio.sleep(after_s)

    async def _ask_until_answered(
        self, request: Callable[[Engine], Awaitable[T]], fits: Callable[[Member], bool] = lambda _: True
    ) -> T:
        """Send a request to one engine after the other until an engine answers, as a client would."""
        while True:
            able = [member for member in self.simulation.members.values() if member.is_open and fits(member)]
            if able:
                try:
                    return await self.lot.choice(able).call(request)
                except (EngineStopped, StoreError, RunOwnedElsewhere):
                    pass
            await asyncio.sleep(0.1 + self.lot.random())

    # Faults.

    async def _pause(self) -> None:
        lot = self.lot
        await asyncio.sleep(lot.random() * self.mix.within_s)
        member = lot.choice(list(self.simulation.members.values()))
        if member.is_open and not member.is_paused:
            life = member.lives
            member.pause()
            await asyncio.sleep(lot.uniform(*lot.choice(self.mix.pauses_s)))
            if member.lives == life and member.is_open:
                member.wake()

    async def _kill(self) -> None:
        lot = self.lot
        await asyncio.sleep(lot.random() * self.mix.within_s)
        member = lot.choice(list(self.simulation.members.values()))
        if member.is_open:
            member.kill()
            await asyncio.sleep(lot.random() * lot.choice((0.1, 15)))
            await member.open()


async def _send(event: Any, to: str | None, key: str, engine: Engine) -> object:
    return await engine.send(event, to=to, key=key)


async def _answer(task: TaskView, engine: Engine) -> None:
    await engine.tasks.answer(task.id, 2 * task.payload)
