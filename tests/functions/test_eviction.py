"""Eviction and slots, which all hosts share: who leaves memory, and whose turn it is."""

from __future__ import annotations

import asyncio

from perdure.models.common.crash_blame import Blame
from perdure.models.common.eviction import Eviction
from perdure.models.common.slots import Slots
from perdure.ports import SystemClock


class Runs:
    """Runs of which the busy ones may not leave."""

    def __init__(self) -> None:
        self.busy: set[str] = set()
        self.looks = 0

    def may_leave(self, run_id: str) -> bool:
        self.looks += 1
        return run_id not in self.busy


def test_those_that_rest_longest_leave_first_and_busy_ones_are_looked_at_once() -> None:
    runs = Runs()
    eviction = Eviction(2, runs)
    for number in range(100):
        eviction.rests(f"busy-{number}")
        runs.busy.add(f"busy-{number}")
    for run_id in ("a", "b", "a"):
        eviction.rests(run_id)
    assert [*eviction.chosen(3)] == ["b"]
    assert runs.looks == 101
    for _ in range(50):
        assert [*eviction.chosen(3)] == []  # One leaves, and two may stay.
    assert [*eviction.chosen(4)] == ["a"]
    assert runs.looks == 102


def test_a_run_that_goes_on_and_rests_again_is_asked_again() -> None:
    runs = Runs()
    eviction = Eviction(0, runs)
    runs.busy.add("a")
    eviction.rests("a")
    assert [*eviction.chosen(1)] == []
    runs.busy.clear()
    assert [*eviction.chosen(1)] == []  # It has not rested since.
    eviction.rests("a")
    assert [*eviction.chosen(1)] == ["a"]
    eviction.stays("a")
    eviction.rests("a")
    assert [*eviction.chosen(1)] == ["a"]
    eviction.forget("a")
    assert not eviction.leaving


class Job:
    def __init__(self, number: int) -> None:
        self.run_id = f"run-{number}"
        self.dropped = False
        self.is_wanted = True
        self.waits_for_thread = False
        self.has_queued = False

    def queue(self) -> None:
        self.has_queued = True


class Started(list[Job]):
    def start(self, job: Job) -> None:
        self.append(job)


def slots_of(started: Started, slots_max: int) -> Slots[Job]:
    return Slots(slots_max, started, Blame(SystemClock(), None))  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_jobs_begin_in_the_order_of_coming_and_unwanted_ones_never() -> None:
    started, jobs = Started(), [Job(number) for number in range(5)]
    slots = slots_of(started, 2)
    for job in jobs:
        slots.take(job)
    assert started == jobs[:2]
    assert [job.has_queued for job in jobs] == [False, False, True, True, True]
    jobs[2].is_wanted = False
    slots.free(jobs[0])
    assert started == [*jobs[:2], jobs[3]]
    slots.free(jobs[4])  # It is withdrawn before its turn.
    slots.free(jobs[1])
    assert (started, len(slots)) == ([*jobs[:2], jobs[3]], 1)


async def test_draining_waits_for_what_runs_and_for_what_is_to_be_written() -> None:
    started, job, waiting = Started(), Job(0), Job(1)
    slots = slots_of(started, 1)
    slots.take(job)
    slots.take(waiting)
    slots.expect("result")
    draining = asyncio.ensure_future(slots.drain(60))
    await asyncio.sleep(0)
    slots.free(job)
    for _ in range(10):
        await asyncio.sleep(0)
    assert started == [job]  # Nothing new is started.
    assert not draining.done()
    slots.written("result")
    await draining
