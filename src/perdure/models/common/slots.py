"""Slots: at most `slots_max` steps run at once. The other steps wait for their turn."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Iterator
from functools import partial
from typing import Generic, Protocol, TypeVar

from perdure.models.common.crash_blame import Blame

log = logging.getLogger("perdure")


class SlotJob(Protocol):
    """A step that waits or runs."""

    dropped: bool

    @property
    def run_id(self) -> str:
        """The run that the step belongs to."""
        ...

    @property
    def is_wanted(self) -> bool:
        """Whether the run still asks for the step."""
        ...

    @property
    def waits_for_thread(self) -> bool:
        """Whether the step begins to execute only when it has a thread or a process. Such a step reports by itself that
        it executes.
        """
        ...

    def queue(self) -> None:
        """Note that the step must wait for its turn."""
        ...


J = TypeVar("J", bound=SlotJob)
J_contra = TypeVar("J_contra", bound=SlotJob, contravariant=True)


class Starter(Protocol[J_contra]):
    """Begins steps that have got a slot."""

    def start(self, job: J_contra, /) -> None:
        """Begin a step."""
        ...


class Slots(Generic[J]):
    """Runs at most `slots_max` steps at once. The other steps wait, in the order in which they came.

    `_unwritten` has runs whose outcomes are not committed yet. Draining waits for these runs too.
    """

    def __init__(self, slots_max: int, starter: Starter[J], blame: Blame) -> None:
        self._slots_max = slots_max
        self._starter = starter
        self._blame = blame
        self._active: set[J] = set()
        self.queued: OrderedDict[J, None] = OrderedDict()
        self._unwritten: set[object] = set()
        self._drained = asyncio.Event()
        self.is_closed = False  # if True, no step is started

    def __len__(self) -> int:
        """Return how many steps run now. Steps that pause between two attempts or wait for their turn do not count."""
        return len(self._active)

    def __iter__(self) -> Iterator[J]:
        """Iterate over the steps that run now."""
        return iter(self._active)

    def take(self, job: J) -> None:
        """Run a step as soon as a slot is free."""
        if len(self._active) >= self._slots_max:
            self.queued[job] = None
            job.queue()
            self._blame.rest(job.run_id)
            return
        self._active.add(job)
        if self._blame.watched:
            self._begin_watched(job)
        else:
            self._starter.start(job)

    def _begin_watched(self, job: J) -> None:
        if job.waits_for_thread:
            self._starter.start(job)
            self._blame.rest(job.run_id)  # The run waits until the step gets a thread or a process.
        else:
            self._blame.enter(job.run_id, job, partial(self._start_counted, job))

    def _start_counted(self, job: J) -> None:
        """Start a step whose run is now counted as executing. Counting the run may have taken a commit."""
        if job.dropped:
            return
        if self.is_closed:
            self.free(job)
        else:
            self._starter.start(job)

    def pause(self, job: J) -> None:
        """Free the slot of a step whose attempt has failed. Its next attempt follows within a second."""
        self.free(job)
        self._blame.rest(job.run_id)

    def free(self, job: J) -> None:
        """Free the slot of a step that has ended or will never begin."""
        self._active.discard(job)
        if self._blame.watched:
            self._blame.leave(job.run_id, job)
        if self.queued:
            self._next(job)
        if self.is_closed:
            self._check()

    def _next(self, job: J) -> None:
        self.queued.pop(job, None)
        while self.queued and len(self._active) < self._slots_max:
            waiting, _ = self.queued.popitem(last=False)
            if waiting.is_wanted and not self.is_closed:
                self.take(waiting)

    def expect(self, thing: object) -> None:
        """Note that `thing` must be committed before the host may end."""
        self._unwritten.add(thing)

    def written(self, thing: object) -> None:
        """Note that `thing` is committed, or will never be committed."""
        self._unwritten.discard(thing)
        self._check()

    async def drain(self, grace_s: float) -> None:
        """Start nothing new. Wait until the running steps have ended, at most for the grace period."""
        self.is_closed = True
        if self._active or self._unwritten:
            self._drained.clear()
            try:
                await asyncio.wait_for(self._drained.wait(), grace_s)
            except TimeoutError:
                log.warning("%d steps did not end within %s s and will run again", len(self._active), grace_s)

    def _check(self) -> None:
        """If the slots are closed and there is nothing to wait for, wake `drain`."""
        if self.is_closed and not self._active and not self._unwritten:
            self._drained.set()


__all__ = ["SlotJob", "Slots", "Starter"]
