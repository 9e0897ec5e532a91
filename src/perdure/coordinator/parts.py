"""The parts that the modules of a coordinator share: its queue, its memory, its callers, and its listener."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence

from perdure.coordinator.callers import Callers
from perdure.coordinator.effects import Effects
from perdure.coordinator.inbox import Inbox
from perdure.coordinator.listener import CoordinatorListener
from perdure.coordinator.memory import Memory
from perdure.coordinator.notices import Stats
from perdure.coordinator.queued_ops import Item
from perdure.errors import EngineStopped
from perdure.kernel.effects import Drop
from perdure.kernel.ops import Op
from perdure.ports import Clock, LoadedRun, Probe, Store
from perdure.values.limits import Limits


class Parts:
    """The parts of one coordinator. `seen` are runs to be woken, in the state in which they were read a moment ago.
    `stopping` are the runs that the current batch stops from outside. No step of these runs begins until the engine has
    stopped them.
    """

    def __init__(
        self, store: Store, limits: Limits, clock: Clock, listener: CoordinatorListener, probe: Probe | None
    ) -> None:
        self.store = store
        self.limits = limits
        self.clock = clock
        self.listener = listener
        self.probe = probe
        self.stats = Stats()
        self.memory = Memory()
        self.effects = Effects(listener)
        self.inbox = Inbox(
            outside_max=limits.inbox_max, batch_ops_max=limits.batch_ops_max, batch_bytes_max=limits.batch_bytes_max
        )
        self.callers = Callers(self.inbox, limits.patience_s)
        self.seen: dict[str, LoadedRun] = {}
        self.stopping: set[str] = set()
        self.stopped: EngineStopped | None = EngineStopped(
            "the engine has not been started: use `async with Engine(…)`"
        )
        self.idle = asyncio.Event()
        self.is_idle = False  # the same as `idle`, without a method call

    def put(self, item: Item) -> None:
        """Queue an op."""
        if self.is_idle:
            self.is_idle = False
            self.idle.clear()
        self.inbox.put(item)

    def enqueue(self, op: Op) -> None:
        """Queue an op of the engine itself. It is never refused, and has no reply."""
        if self.probe is not None:
            self.probe.reached(f"{verb(op)}.submit", op.run_id)
        self.put(Item(op, None, False, is_due=self.inbox.is_firing))

    def rest(self) -> None:
        """Note that nothing is queued and nothing is being committed."""
        self.is_idle = True
        self.idle.set()

    def forget(self, run_ids: Iterable[str]) -> None:
        """Drop runs whose state in memory differs from the stored state. All their uncommitted progress is dropped
        too.
        """
        if known := self.memory.forget(run_ids):
            self.effects.add([Drop(run_id, "the store has another state") for run_id in known])

    async def come_by(self, probe: Probe, point: str, items: Sequence[Item]) -> None:
        """Report to a probe that these ops have reached a point. If the probe returns an awaitable, await it."""
        for item in items:
            if (stop := probe.reached(f"{verb(item.op)}.{point}", item.op.run_id)) is not None:
                await stop


def verb(op: Op) -> str:
    """Return the name that probes use for an op."""
    return type(op).__name__.lower()


__all__ = ["Parts", "verb"]
