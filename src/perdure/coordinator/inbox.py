"""The queue of ops. It is bounded for callers from outside; they wait while it is full. It is unbounded for the
engine's own ops.

It has three lanes: one for the ops of callers, one for the ops of timers, and one for all other ops. The other ops are
the progress of runs. Each batch takes ops from each lane. So a hundred thousand overdue timers do not delay callers,
and a hundred thousand callers do not delay timers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any, Final

from perdure.coordinator.queued_ops import Item
from perdure.kernel.ops import Retry, Wake

_FORGET_AFTER: Final = 1_000  # how many runs without an op in that lane may stay in `_own_runs`


class Lane:
    """Ops in the order of arrival."""

    __slots__ = ("items",)

    def __init__(self) -> None:
        self.items: deque[Item] = deque()

    @property
    def begins_a_batch(self) -> bool:
        """Whether the lane's first op is a retry. A retry rewrites a run's journal. So it starts a new batch, and is
        not in one batch with writes that it undoes.
        """
        return bool(self.items) and type(self.items[0].op) is Retry

    def take(self, taken: list[Item], ops_max: int, bytes_max: int) -> int:
        """Move up to `ops_max` ops with at most `bytes_max` bytes into a batch. If the batch is empty, its first op may
        be larger. Return the number of bytes that were moved.
        """
        items = self.items
        size = count = 0
        for item in islice(items, ops_max):
            op = item.op
            more = op.payload_bytes
            if (taken or count) and (size + more > bytes_max or type(op) is Retry):
                break
            size += more
            count += 1
        if count == len(items):
            taken += items
            items.clear()
        else:
            taken += [items.popleft() for _ in range(count)]
        return size


class DueLane(Lane):
    """Ops of timers. A wake-up that already includes the run's next advance counts as two ops."""

    __slots__ = ()

    def take(self, taken: list[Item], ops_max: int, bytes_max: int) -> int:
        items, wanted = self.items, 0
        for item in islice(items, ops_max):
            ops_max -= 2 if type(item.op) is Wake and item.op.then is not None else 1
            if ops_max < 0 and wanted:
                break
            wanted += 1
        return super().take(taken, wanted, bytes_max)


def _number(item: Item) -> int:
    return item.number


class Inbox:
    """In each lane, the first op in is the first op out. All ops of a run are in one lane at a time, so they keep their
    order.

    At most `outside_max` ops from outside are unanswered at a time. Other callers wait in `enter`.
    """

    def __init__(self, *, outside_max: int, batch_ops_max: int, batch_bytes_max: int) -> None:
        self._own, self._outside, self._due = Lane(), Lane(), DueLane()
        # runs that have ops in the lane `_own`, or had ops there since it was last empty
        self._own_runs: set[str] = set()
        # all other runs -> the lane, and the number of their ops in it
        self._elsewhere: dict[str, tuple[Lane, int]] = {}
        self.is_firing = False
        self._had_others = False  # whether the last batch had ops that do not come from timers
        self._count = 0
        self._room = outside_max
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._batch_ops_max = batch_ops_max
        self._batch_bytes_max = batch_bytes_max
        self._awaited: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._own.items) + len(self._outside.items) + len(self._due.items)

    @property
    def due(self) -> int:
        """How many ops of timers are queued."""
        return len(self._due.items)

    @contextmanager
    def firing(self) -> Generator[None]:
        """Ops that are enqueued inside this block go into the lane of timers, so that they do not delay other ops."""
        self.is_firing = True
        try:
            yield
        finally:
            self.is_firing = False

    def enter(self) -> Coroutine[Any, Any, None] | None:
        """Reserve room for an op from outside. If the inbox is full, return a coroutine that waits for room. Callers
        get room in the order of arrival.
        """
        if self._room:
            self._room -= 1
            return None
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        return self._have(turn)

    async def _have(self, turn: asyncio.Future[None]) -> None:
        try:
            await turn
        except BaseException:
            if turn.done() and not turn.cancelled():
                self.leave()  # The caller got room and then gave up, so the next caller gets the room.
            raise

    def leave(self) -> None:
        """An op from outside was answered: give its room to the next caller."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        self._room += 1

    def put(self, item: Item) -> None:
        run_id = item.op.run_id
        if item.is_due or item.outside or run_id in self._elsewhere:
            lane = self._lane_for(run_id, item)
        else:
            lane = self._own
            self._own_runs.add(run_id)
        if not item.number:
            self._count += 1
            item.number = self._count
        lane.items.append(item)
        if self._awaited is not None and not self._awaited.done():
            self._awaited.set_result(None)

    def _lane_for(self, run_id: str, item: Item) -> Lane:
        """Return the lane that already has ops of the run. If no lane has, return the lane that fits the op. An op
        without a run has no order to keep.
        """
        fitting = self._due if item.is_due else self._outside if item.outside else self._own
        if not run_id:
            return fitting
        if run_id in self._own_runs:
            return self._own
        lane, count = self._elsewhere.get(run_id, (fitting, 0))
        self._elsewhere[run_id] = lane, count + 1
        return lane

    def put_back(self, items: Sequence[Item]) -> None:
        """Queue the items that `empty` has returned again, in their order."""
        for item in items:
            self.put(item)

    def take(self) -> list[Item]:
        """Return the ops of the next batch. If all queued ops fit into it, these are all of them. Otherwise each lane
        gets at least a quarter of the batch. In the rest of the batch, ops of callers come last, so that runs go on
        before new runs begin.

        At most three quarters of a batch are ops of timers. The bound is three eighths if other ops wait for this
        batch, or if the last batch had other ops. In this case, the runs of these ops may be about to go on. The longer
        the batch takes, the longer these runs would wait.

        Within a batch, the ops of all lanes are in the order of arrival.
        """
        taken: list[Item] = []
        ops_max, bytes_left = self._batch_ops_max, self._batch_bytes_max
        own, outside, due = self._own, self._outside, self._due
        part = max(1, ops_max // 4)
        first = [(lane, 1, 1) for lane in (own, outside, due) if lane.begins_a_batch][:1]
        lanes_used = sum(bool(lane.items) for lane in (own, outside, due))
        share = ops_max if len(self) <= ops_max else part  # All ops, if they fit into one batch.
        turns = [*first]
        turns += [(own, share, 3), (outside, share, 2), (due, part, 1)]
        others = len(own.items) + len(outside.items)
        if others >= part:
            turns.append((due, part, 1))
        else:
            turns.append((due, part // 2 if others or self._had_others else 2 * part, 1))
        self._had_others = others > 0
        turns += [(own, ops_max, 1), (outside, ops_max, 1)]
        for lane, ops, lanes_left in turns:
            if lane.items and len(taken) < ops_max:
                bytes_left -= lane.take(taken, min(ops, ops_max - len(taken)), bytes_left // lanes_left)
        if lanes_used > 1:
            taken[len(first) :] = sorted(taken[len(first) :], key=_number)
        if self._elsewhere:
            self._count_out(taken)
        if not own.items:
            self._own_runs.clear()
        elif len(self._own_runs) > 2 * len(own.items) + _FORGET_AFTER:
            self._own_runs = {item.op.run_id for item in own.items}
        return taken

    def _count_out(self, taken: list[Item]) -> None:
        elsewhere = self._elsewhere
        for item in taken:
            run_id = item.op.run_id
            if run_id in elsewhere:
                lane, count = elsewhere[run_id]
                if count == 1:
                    del elsewhere[run_id]
                else:
                    elsewhere[run_id] = lane, count - 1

    def remove(self, is_wanted: Callable[[Item], bool]) -> list[Item]:
        """Take those items out of all lanes that `is_wanted` selects, and return them."""
        found: list[Item] = []
        kept: list[Item] = []
        for item in self.empty():
            (found if is_wanted(item) else kept).append(item)
        self.put_back(kept)
        return found

    def empty(self) -> list[Item]:
        items = sorted((*self._own.items, *self._outside.items, *self._due.items), key=_number)
        for lane in (self._own, self._outside, self._due):
            lane.items.clear()
        self._own_runs.clear()
        self._elsewhere.clear()
        return items

    async def arrival(self) -> None:
        """Wait until an op is queued."""
        if not len(self):
            self._awaited = asyncio.get_running_loop().create_future()
            try:
                await self._awaited
            finally:
                self._awaited = None
