"""The parameters of scenarios, and the random plans of their runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Final, TypeVar

from msgspec import Struct, field

from perdure.testing.simulate.graphs import DRAWN, Drawn
from perdure.testing.simulate.network import Weather
from perdure.testing.simulate.workload import Plan, Task

__all__ = [
    "CROWDED_S",
    "MIX",
    "MIXES",
    "NEVER_S",
    "RECEIVING",
    "SLEEP_S",
    "Mix",
    "Planner",
    "lanes_in",
    "many",
    "notices_in",
    "one_of",
    "said_in",
    "targets_in",
]

RECEIVING: Final = ("hear", "hear_in_time", "meet")  # tasks that need an event
CROWDED_S: Final = 5.0  # how far apart crowded moments are
NEVER_S: Final = 100_000.0
SLEEP_S: Final = 100.0  # When a sleep of this length ends, no fault is left.

T = TypeVar("T")


class Mix(Struct, frozen=True, kw_only=True):
    """The parameters of a scenario: ranges and chances for its random choices."""

    engines: tuple[int, int] = (2, 4)
    runs: tuple[int, int] = (4, 10)
    starters: int = 8  # the number of engines on which runs are started; these are the first engines
    tasks: tuple[int, int] = (1, 4)
    pauses: tuple[int, int] = (0, 2)
    kills: tuple[int, int] = (0, 2)
    pauses_s: tuple[tuple[float, float], ...] = ((0.0, 2.0), (10.0, 12.5), (0.0, 25.0))  # the lease is 10 seconds
    within_s: float = 25.0
    live_runs_max: tuple[int, ...] = (1, 3, 1000)
    crowded: float = 0.5  # the probability that everything happens at a few moments
    weights: dict[str, int] = field(
        default_factory=lambda: {
            "work": 5,
            "nap": 2,
            "hear": 4,
            "hear_in_time": 2,
            "take": 4,
            "meet": 2,
            "notice": 2,
            "child": 2,
            "started": 1,
            "await": 2,
            "both": 2,
            "say": 2,
            "ask": 1,
            "toil": 1,
        }
    )
    # These are added to the runs with plans.
    graphs: tuple[int, int] = (0, 3)
    travellers: tuple[int, int] = (0, 2)
    tokens: tuple[int, int] = (0, 3)  # tokens that cancel hierarchies of operations
    deadlines: tuple[int, int] = (0, 1)
    letters: tuple[int, int] = (0, 3)
    retried: tuple[int, int] = (0, 1)  # runs that fail and are retried by hand
    parents: tuple[int, int] = (0, 1)  # runs that are cancelled while they wait for a child that never ends
    sleepers: tuple[int, int] = (0, 1)
    steps_max: tuple[int, ...] = (2, 1000, 1000)
    skews_s: tuple[float, ...] = (0.0, 0.0, -2.0, 2.0)  # of the engines' clocks
    impatient: float = 0.0  # the chance that a client sends an event to two engines at once, under one key
    continued: float = 0.2  # the chance that a plan begins with continuations
    weather: Callable[[Random], Weather] = lambda lot: Weather(
        slow=lot.choice((0, 0.02, 0.1)),
        slow_s=lot.choice((0.05, 0.5, 4.0)),
        busy=lot.choice((0, 0.02, 0.1)),
        unknown=lot.choice((0, 0.02, 0.1)),
        answers_lost=lot.choice((0, 0, 0.05)),
        hints_lost=lot.choice((0, 0.2, 1.0)),
        latency_s=lot.choice((0.002, 0.02)),
    )


MIX = Mix()

MIXES: Final[dict[str, Mix]] = {
    "usual": MIX,
    # Many graphs, and engines that come and go.
    "graphs": Mix(
        runs=(1, 3), graphs=(4, 10), travellers=(0, 0), letters=(0, 0), sleepers=(0, 0), pauses=(0, 3), kills=(0, 4)
    ),
    # Engines that wake up when others are about to take over their runs, or have just done so.
    "takeovers": Mix(
        engines=(2, 3),
        runs=(6, 10),
        tasks=(2, 5),
        pauses=(4, 6),
        pauses_s=((9.5, 13.0),),
        kills=(0, 1),
        sleepers=(0, 0),
        weather=lambda lot: Weather(
            latency_s=lot.choice((0.05, 0.3)), unknown=lot.choice((0, 0.1)), busy=lot.choice((0, 0.1))
        ),
    ),
    # Runs that no engine has in memory, and many that send to them, cancel them and take them at the same moments.
    "meetings": Mix(
        engines=(3, 4),
        runs=(6, 8),
        tasks=(2, 4),
        graphs=(0, 0),
        travellers=(0, 0),
        letters=(4, 8),
        impatient=0.3,
        sleepers=(0, 0),
        pauses=(0, 0),
        kills=(0, 0),
        crowded=1.0,
        live_runs_max=(1,),
        weights={"work": 1, "nap": 2, "hear": 5, "hear_in_time": 3, "meet": 2, "take": 2, "await": 2},
        weather=lambda lot: Weather(latency_s=lot.choice((0.05, 0.3)), slow=0.1, slow_s=1.0),
    ),
}


def many(lot: Random, bounds: tuple[int, int]) -> int:
    """Draw a number. A number that is certain is not drawn, so that the draws after it do not depend on it."""
    return bounds[0] if bounds[0] == bounds[1] else lot.randint(*bounds)


def one_of(lot: Random, choices: Sequence[T]) -> T:
    """Draw one of these, unless there is only one."""
    return choices[0] if len(choices) == 1 else lot.choice(choices)


class Planner:
    """Makes random plans."""

    def __init__(self, mix: Mix, lot: Random) -> None:
        self.mix = mix
        self.lot = lot
        self.is_crowded = lot.random() < mix.crowded

    def plan(self, targets: list[str], depth: int = 0) -> Plan:
        """Make a random plan. The tasks of the plan may wait for the ends of these runs."""
        length = self.lot.randint(*self.mix.tasks) if depth == 0 else self.lot.randint(1, 2)
        tasks = [self._task(targets, depth) for _ in range(length)]
        if depth == 0 and self.mix.continued and self.lot.random() < self.mix.continued:
            tasks.insert(0, ["continue_anew", self.lot.randint(1, 3)])
        return tasks

    def graph(self) -> Drawn:
        return self.lot.choice(DRAWN)(self.lot, self._seconds)

    def journey(self) -> tuple[list[Any], str]:
        """Return the stations of a journey, and how it ends."""
        lot = self.lot
        stations = [[lot.randint(1, 99), lot.choice((0, 0, 1, 2)), self._seconds(2)] for _ in range(lot.randint(1, 4))]
        return stations, lot.choice(("fails", "waits", "arrives"))

    def failing(self) -> Plan:
        """Return a plan of one step after the other, of which one fails until the run was retried a few times."""
        lot = self.lot
        plan = [self._work() for _ in range(lot.randint(1, 3))]
        plan.insert(lot.randint(1, len(plan)), ["fragile", lot.randint(1, 99), lot.randint(1, 2)])
        return plan

    def _work(self) -> Task:
        return ["work", self.lot.randint(1, 99), self.lot.choice((0, 0, 0, 1, 2)), self._seconds(2)]

    def _task(self, targets: list[str], depth: int) -> Task:
        lot = self.lot
        kind = lot.choices(list(self.mix.weights), list(self.mix.weights.values()))[0]
        if kind in RECEIVING and depth:
            kind = "take"
        if kind == "ask" and depth:
            kind = "work"
        if (kind == "await" and not targets) or (kind in ("child", "started", "both") and depth > 1):
            kind = "work"
        match kind:
            case "work":
                return self._work()
            case "toil":
                return ["toil", lot.randint(1, 99), lot.randint(0, 2)]
            case "nap":
                return ["nap", self._seconds(lot.choice((1, 20)))]
            case "hear_in_time":
                return ["hear_in_time", self._seconds(20)]
            case "take" | "meet":
                return [kind, lot.randint(0, 1)]
            case "say":
                return [kind, lot.randrange(10**9), lot.randint(1, 5)]
            case "ask":
                return [kind, lot.randint(1, 99)]
            case "child" | "started":
                return [kind, lot.choice(("clerk", "baker")), self.plan([], depth + 1)]
            case "await":
                return ["await", lot.choice(targets)]
            case "both":
                return ["both", self.plan([], depth + 1), self.plan([], depth + 1)]
            case _:
                return [kind]

    def _seconds(self, most: float) -> float:
        seconds = self.lot.random() * most
        return round(seconds / CROWDED_S) * CROWDED_S if self.is_crowded else round(seconds, 3)


def _tasks(plan: Plan) -> list[Task]:
    """Return all tasks of a plan, including nested tasks."""
    found: list[Task] = []
    for task in plan:
        found.append(task)
        for part in task[1:]:
            if isinstance(part, list):
                found += _tasks(part)
    return found


def said_in(plan: Plan) -> list[tuple[int, int]]:
    """Return the items that a run of this plan appends to its stream. The result has labels, and the number of items
    for each label.
    """
    own = [part for task in plan if task[0] == "both" for part in task[1:]]
    return [(task[1], task[2]) for task in plan if task[0] == "say"] + [said for part in own for said in said_in(part)]


def targets_in(plan: Plan) -> list[str]:
    return [task[1] for task in _tasks(plan) if task[0] == "await"]


def lanes_in(plans: list[Plan]) -> list[int]:
    return [task[1] for plan in plans for task in _tasks(plan) if task[0] in ("take", "meet")]


def notices_in(plan: Plan) -> int:
    """Return how many Notice events a run of this plan reads at most. Events that its children read are not counted."""
    return sum(task[0] == "notice" for task in _tasks(plan))
