"""The parts of an engine that each of its hosts uses."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct

from perdure.coordinator.port import CoordinatorPort
from perdure.coordinator.timers import Timers
from perdure.ports import Clock, Codec, Ids, Store
from perdure.values.limits import Limits


class Departures(Protocol):
    """Is notified of runs that have left memory."""

    def left(self, run_id: str, due_at: int | None) -> None:
        """Note that a run no longer belongs to this engine. `due_at` is the time at which the run goes on by itself, or
        None.
        """
        ...


class HostParts(Struct, frozen=True, kw_only=True):
    """The parts of an engine that every model needs."""

    store: Store
    clock: Clock
    codec: Codec
    ids: Ids
    timers: Timers
    coordinator: CoordinatorPort
    departures: Departures
    limits: Limits


__all__ = ["Departures", "HostParts"]
