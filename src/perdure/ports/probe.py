"""Points that ops pass, for tests."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class Probe(Protocol):
    """Sees the points that ops pass, and may stop them there: for tests (see perdure.testing.YieldPoints)."""

    def reached(self, point: str, run_id: str) -> Awaitable[object] | None:
        """Note that an op of this run is at this point. The coordinator awaits the returned object before the op goes
        on. The exception is an op of the engine's own that is not in a batch yet."""
