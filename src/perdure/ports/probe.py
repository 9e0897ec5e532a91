"""Points that ops pass. They are for tests."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Protocol


class Probe(Protocol):
    """Is notified of the points that ops pass, and may stop ops there. It is for tests (see
    perdure.testing.YieldPoints).
    """

    def reached(self, point: str, run_id: str) -> Awaitable[object] | None:
        """Note that an op of this run is at this point. The coordinator awaits the returned object before the op goes
        on. There is one exception: an op of the engine itself that is not in a batch yet does not wait.
        """
