"""The races, as programs that may be started again after a crash. Each says what must be true whoever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from typing import Any

from msgspec import Struct

from perdure import (
    ChildHandle,
    Event,
    Limits,
    Retry,
    TimeReached,
    Workflow,
    current_step,
    event,
    first,
    receive,
    resource,
    run_of,
    sleep,
    start,
    step,
    timer,
    workflow,
)
from perdure.errors import ChildFailed, RunFinished
from perdure.testing import Environment, YieldPoints
from tests.races.races import Order, Racer, calm, meet

HOUR = timedelta(hours=1)


class Ping(Event):
    number: int


class Letter(Event, on_target_terminated="dead_letter"):
    number: int


class Passed(Event, on_target_terminated="broadcast"):
    number: int


class Topic(Event, consume_on_read=False):
    number: int


class Gate:
    """Steps wait here until the test lets those of their run end. Once open it stays open, also in another life."""

    def __init__(self) -> None:
        self._opened: dict[str, asyncio.Event] = {}

    def of(self, run_id: str) -> asyncio.Event:
        return self._opened.setdefault(run_id, asyncio.Event())


@step(retry=Retry.never())
async def at_gate() -> None:
    await resource(Gate).of(current_step().run_id).wait()


async def _once_more(kind: type[Any]) -> list[Any]:
    """What else comes within an hour."""
    got = await first(kind, timer(HOUR))
    return ["nothing"] if isinstance(got, TimeReached) else [got.number]


@workflow
async def listens_late(kind: str) -> list[Any]:
    """Waits for an event once its step is done; and shows whether it comes a second time."""
    await at_gate()
    got: Ping | Topic = await receive(Ping if kind == "ping" else Topic)
    return [got.number, *await _once_more(Ping)]


@workflow
async def listens() -> list[Any]:
    return [(await receive(Ping)).number, *await _once_more(Ping)]


@workflow
async def listens_for_an_hour() -> list[Any]:
    """Either way the event is read: at once, or after the timer."""
    got = await first(Ping, timer(HOUR))
    if isinstance(got, TimeReached):
        return ["late", (await receive(Ping)).number]
    return [got.number]


@workflow
async def naps() -> str:
    await sleep(HOUR)
    return "rested"


@workflow
async def ends_at_gate() -> str:
    await at_gate()
    return "ended"


@workflow
async def hears(name: str) -> int:
    got: Any = await first(event({"passed": Passed, "ping": Ping, "topic": Topic}[name]))
    number: int = got.number
    return number


@workflow
async def waits_at_gate_for(run_id: str) -> list[Any]:
    await at_gate()
    ended = await first(run_of(run_id))
    return [ended.status, ended.value]


@workflow
async def parent() -> str:
    child: ChildHandle[str] = await start(ends_at_gate(), id="child")
    try:
        return await child.result()
    except ChildFailed as failed:
        return str(failed.status)


@workflow
async def begets(given_id: bool) -> str:
    await at_gate()
    await start(naps(), id="child" if given_id else None)
    await start(naps(), id="detached" if given_id else None, detached=True)
    await sleep(HOUR)
    return "done"


@workflow
async def awaits_child() -> str:
    await at_gate()
    return await naps()


WORKFLOWS: list[Workflow[Any, Any]] = [
    listens_late, listens, listens_for_an_hour, naps, ends_at_gate, hears, waits_at_gate_for, parent, begets,
    awaits_child
]  # fmt: skip


class Stage:
    """One trial: an environment, its yield points, and what goes on in the background."""

    def __init__(self, env: Environment, points: YieldPoints, order: Order, gate: Gate) -> None:
        self.env = env
        self.points = points
        self.order: Order = order
        self.gate = gate
        self.replies: dict[str, asyncio.Task[Any]] = {}
        self.met_after = 0  # commits

    def calls(self, name: str, make: Callable[[], Coroutine[Any, Any, Any]]) -> Callable[[], None]:
        """Something to be asked of the engine when it is time, with its reply kept under a name."""

        def begin() -> None:
            self.replies[name] = task = asyncio.ensure_future(make())
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

        return begin

    def sends(self, what: Event, to: str | None = None, key: str = "k") -> Racer:
        return Racer("send", to or "", self.calls(key, lambda: self.env.engine.send(what, to=to, key=key)))

    def cancels(self, run_id: str) -> Racer:
        return Racer("cancel", run_id, self.calls("cancel", lambda: self.env.engine.handle(run_id).cancel()))

    def opens_gate(self, run_id: str) -> Racer:
        return Racer("advance", run_id, self.gate.of(run_id).set)

    def passes_an_hour(self, op: str, run_id: str) -> Racer:
        clock = self.env.clock
        return Racer(op, run_id, lambda: clock.move_to(clock.now() + HOUR // timedelta(microseconds=1)))

    async def meet(self, a: Racer, b: Racer) -> None:
        self.met_after = 0 if self.env.fault is None else self.env.fault.commits
        await meet(self.env, self.points, self.order, a, b)
        for task in self.replies.values():
            await asyncio.wait({task})
        await calm(self.env)

    def reply(self, name: str) -> Any:
        task = self.replies[name]
        error = task.exception()
        return task.result() if error is None else type(error)

    async def ended(self, run_id: str) -> Any:
        """A run's result, or its status if it did not succeed."""
        for _ in range(4):
            await self.env.advance(HOUR)
        view = await self.env.engine.runs.get(run_id)
        assert view is not None, run_id
        if view.status != "succeeded":
            return view.status
        return await self.env.engine.handle(run_id).result()


Race = Callable[[Stage], Awaitable[Any]]


async def _sent_to_one_that_falls_asleep(stage: Stage, to: str | None) -> Any:
    await stage.env.engine.start(listens_late("ping"), id="r")
    await stage.meet(stage.sends(Ping(number=1), to), stage.opens_gate("r"))
    return await stage.ended("r")


async def targeted_send_and_suspend(stage: Stage) -> Any:
    return await _sent_to_one_that_falls_asleep(stage, "r")


async def broadcast_and_suspend(stage: Stage) -> Any:
    return await _sent_to_one_that_falls_asleep(stage, None)


async def timer_and_cancel(stage: Stage) -> Any:
    await stage.env.engine.start(naps(), id="r")
    await calm(stage.env)
    await stage.meet(stage.passes_an_hour("advance", "r"), stage.cancels("r"))
    return await stage.ended("r")


async def due_and_cancel(stage: Stage) -> Any:
    await stage.env.engine.start(listens_for_an_hour(), id="r")
    await calm(stage.env)
    await stage.meet(stage.passes_an_hour("due", "r"), stage.cancels("r"))
    return await stage.ended("r")


async def complete_and_send(stage: Stage) -> Any:
    """The sender is told that the run has ended, or finds the event among the dead letters."""
    await stage.env.engine.start(ends_at_gate(), id="r")
    await stage.meet(stage.sends(Letter(number=1), "r"), stage.opens_gate("r"))
    assert await stage.ended("r") == "ended"
    letters = await stage.env.engine.dead_letters.list()
    told = stage.reply("k") is RunFinished
    return [letter.name for letter in letters], told and not letters


async def complete_and_send_what_others_may_have(stage: Stage) -> Any:
    await stage.env.engine.start(ends_at_gate(), id="r")
    await stage.env.engine.start(hears("passed"), id="other")
    await stage.meet(stage.sends(Passed(number=1), "r"), stage.opens_gate("r"))
    assert await stage.ended("r") == "ended"
    view = await stage.env.engine.runs.get("other")
    assert view is not None
    return view.status, stage.reply("k") is RunFinished and view.status == "suspended"


async def timer_and_targeted_event(stage: Stage) -> Any:
    await stage.env.engine.start(listens_for_an_hour(), id="r")
    await calm(stage.env)
    await stage.meet(stage.passes_an_hour("due", "r"), stage.sends(Ping(number=1), "r"))
    return (await stage.ended("r"))[-1]


async def timer_and_broadcast(stage: Stage) -> Any:
    await stage.env.engine.start(listens_for_an_hour(), id="r")
    await calm(stage.env)
    await stage.meet(stage.passes_an_hour("due", "r"), stage.sends(Ping(number=1)))
    return (await stage.ended("r"))[-1]


async def cancel_and_broadcast(stage: Stage) -> Any:
    """Of two who wait, the one that has waited longer is cancelled: exactly one has the event in the end."""
    for name in ("r", "other"):
        await stage.env.engine.start(hears("ping"), id=name)
        await calm(stage.env)
    await stage.meet(stage.cancels("r"), stage.sends(Ping(number=1)))
    ended = [await stage.ended("r"), await stage.ended("other")]
    return ended.count(1)


async def cancel_and_targeted_event(stage: Stage) -> Any:
    """The run has read it, or the sender is told, or another one has got it."""
    await stage.env.engine.start(hears("passed"), id="r")
    await stage.env.engine.start(hears("passed"), id="other")
    await calm(stage.env)
    await stage.meet(stage.cancels("r"), stage.sends(Passed(number=1), "r"))
    got = [await stage.ended("r"), await stage.ended("other")].count(1)
    return got, got == 0 and stage.reply("k") is RunFinished


async def child_end_and_parents_wait(stage: Stage) -> Any:
    await stage.env.engine.start(ends_at_gate(), id="child")
    await stage.env.engine.start(waits_at_gate_for("child"), id="r")
    await calm(stage.env)
    await stage.meet(stage.opens_gate("child"), stage.opens_gate("r"))
    return await stage.ended("r")


async def child_end_and_parent_cancel(stage: Stage) -> Any:
    await stage.env.engine.start(parent(), id="r")
    await calm(stage.env)
    await stage.meet(stage.opens_gate("child"), stage.cancels("r"))
    return [await stage.ended("r"), await stage.ended("child")]


async def _children_and_cancel(stage: Stage, given_id: bool) -> Any:
    """No child outlives a cancelled parent, but for those that are detached."""
    await stage.env.engine.start(begets(given_id), id="r")
    await stage.meet(stage.opens_gate("r"), stage.cancels("r"))
    status = await stage.ended("r")
    ends = {run.id: run.status for run in (await stage.env.engine.runs.list(workflow="naps")).runs}
    if not given_id:
        found = sorted(ends.values())
    else:
        found = sorted([ends.get("child", "none"), ends.get("detached", "none")])
    return status, found


async def child_start_and_parent_cancel(stage: Stage) -> Any:
    return await _children_and_cancel(stage, False)


async def start_of_child_with_an_id_and_parent_cancel(stage: Stage) -> Any:
    return await _children_and_cancel(stage, True)


async def awaited_child_start_and_parent_cancel(stage: Stage) -> Any:
    await stage.env.engine.start(awaits_child(), id="r")
    await stage.meet(stage.opens_gate("r"), stage.cancels("r"))
    status = await stage.ended("r")
    return status, [run.status for run in (await stage.env.engine.runs.list(workflow="naps")).runs]


async def two_broadcasts_and_two_waiters(stage: Stage) -> Any:
    for name in ("r", "other"):
        await stage.env.engine.start(hears("ping"), id=name)
        await calm(stage.env)
    await stage.meet(stage.sends(Ping(number=1), key="a"), stage.sends(Ping(number=2), key="b"))
    return sorted([await stage.ended("r"), await stage.ended("other")])


async def topic_and_one_who_begins_to_wait(stage: Stage) -> Any:
    """Who waits already gets it; who waits after it was sent does not; nobody gets it twice."""
    await stage.env.engine.start(hears("topic"), id="r")
    await stage.env.engine.start(listens_late("topic"), id="late")
    await calm(stage.env)
    await stage.meet(stage.sends(Topic(number=1)), stage.opens_gate("late"))
    return await stage.ended("r"), await stage.ended("late")


def gives_up(stage: Stage) -> Racer:
    """Another run comes, and there is room for one."""
    return Racer("release", "r", stage.calls("q", lambda: stage.env.engine.start(hears("topic"), id="q")))


async def release_and_targeted_send(stage: Stage) -> Any:
    await stage.env.engine.start(listens(), id="r")
    await calm(stage.env)
    await stage.meet(gives_up(stage), stage.sends(Ping(number=1), "r"))
    return await stage.ended("r")


async def release_and_broadcast(stage: Stage) -> Any:
    await stage.env.engine.start(listens(), id="r")
    await calm(stage.env)
    await stage.meet(gives_up(stage), stage.sends(Ping(number=1)))
    return await stage.ended("r")


async def release_and_timer(stage: Stage) -> Any:
    await stage.env.engine.start(naps(), id="r")
    await calm(stage.env)
    await stage.meet(gives_up(stage), stage.passes_an_hour("advance", "r"))
    await calm(stage.env)
    view = await stage.env.engine.runs.get("r")
    assert view is not None
    return view.status


async def release_and_due(stage: Stage) -> Any:
    await stage.env.engine.start(listens_for_an_hour(), id="r")
    await calm(stage.env)
    await stage.meet(gives_up(stage), stage.passes_an_hour("due", "r"))
    await calm(stage.env)
    await stage.env.engine.send(Ping(number=1), to="r", key="k")
    return await stage.ended("r")


async def release_and_child_end(stage: Stage) -> Any:
    await stage.env.engine.start(ends_at_gate(), id="child")
    await stage.env.engine.start(parent(), id="r")
    await calm(stage.env)
    await stage.meet(gives_up(stage), stage.opens_gate("child"))
    return await stage.ended("r")


async def release_and_cancel(stage: Stage) -> Any:
    await stage.env.engine.start(listens(), id="r")
    await calm(stage.env)
    await stage.meet(gives_up(stage), stage.cancels("r"))
    return await stage.ended("r")


class Rule(Struct, frozen=True):
    """A race, and what may come out of it."""

    race: Race
    allowed: tuple[Any, ...]
    options: dict[str, Any] = {}


ROOM_FOR_ONE = {"limits": Limits(live_runs_max=1)}

RULES: dict[str, Rule] = {
    rule.race.__name__: rule
    for rule in (
        Rule(targeted_send_and_suspend, ([1, "nothing"],)),
        Rule(broadcast_and_suspend, ([1, "nothing"],)),
        Rule(timer_and_cancel, ("rested", "cancelled")),
        Rule(due_and_cancel, ("cancelled",)),
        Rule(complete_and_send, ((["Letter"], False), ([], True))),
        Rule(complete_and_send_what_others_may_have, (("succeeded", False), ("suspended", True))),
        Rule(timer_and_targeted_event, (1,)),
        Rule(timer_and_broadcast, (1,)),
        Rule(cancel_and_broadcast, (1,)),
        Rule(cancel_and_targeted_event, ((1, False), (0, True))),
        Rule(child_end_and_parents_wait, (["succeeded", "ended"],)),
        Rule(child_end_and_parent_cancel, (["cancelled", "ended"], ["cancelled", "cancelled"], ["ended", "ended"])),
        Rule(
            child_start_and_parent_cancel,
            (("cancelled", []), ("cancelled", ["cancelled", "succeeded"])),
        ),
        Rule(
            start_of_child_with_an_id_and_parent_cancel,
            (
                ("cancelled", ["none", "none"]),
                ("cancelled", ["cancelled", "none"]),
                ("cancelled", ["cancelled", "succeeded"]),
            ),
        ),
        Rule(awaited_child_start_and_parent_cancel, (("cancelled", []), ("cancelled", ["cancelled"]))),
        Rule(two_broadcasts_and_two_waiters, ([1, 2],)),
        Rule(topic_and_one_who_begins_to_wait, ((1, [1, "nothing"]), (1, "suspended"))),
        Rule(release_and_targeted_send, ([1, "nothing"],), ROOM_FOR_ONE),
        Rule(release_and_broadcast, ([1, "nothing"],), ROOM_FOR_ONE),
        Rule(release_and_timer, ("succeeded",), ROOM_FOR_ONE),
        Rule(release_and_due, ([1], ["late", 1]), ROOM_FOR_ONE),
        Rule(release_and_child_end, ("ended",), ROOM_FOR_ONE),
        Rule(release_and_cancel, ("cancelled",), ROOM_FOR_ONE),
    )
}

__all__ = ["RULES", "WORKFLOWS", "Gate", "Race", "Rule", "Stage"]
