"""The interface of the coordinator for models. A model gets an object with this protocol, and never callbacks to the
coordinator's methods.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from perdure.coordinator.notices import Stats
from perdure.kernel.ops import Op
from perdure.kernel.rows import Engine
from perdure.kernel.runs import Run
from perdure.kernel.wait_matches import Mailbox


class Fence(Protocol):
    """Knows whether this engine may still go on with its runs."""

    @property
    def stopping(self) -> Container[str]:
        """Return the runs that the current batch stops from outside. No step of these runs may begin."""
        ...

    async def check_fence(self) -> None:
        """Find out whether this engine may still write. If it was marked dead, it has dropped all its runs when this
        returns.
        """
        ...


class CoordinatorPort(Fence, Protocol):
    """The interface of the coordinator for models."""

    @property
    def engine(self) -> Engine:
        """Return the engine's row, under its current id."""
        ...

    @property
    def stats(self) -> Stats:
        """The counters of this engine."""
        ...

    def enqueue(self, op: Op, answered: Callable[[Any, BaseException | None], object] | None = None) -> None:
        """Queue an op of the engine itself. It is never refused, and has no reply."""
        ...

    def request(self, op: Op, answered: Callable[[Any, BaseException | None], object]) -> None:
        """Queue an op. `answered` is called with its reply and None, or with None and an error."""
        ...

    async def submit(self, op: Op) -> Any:
        """Have an op decided and committed, and return its reply. This waits while the inbox is full."""
        ...

    async def submit_internal(self, ops: Sequence[Op]) -> list[Any]:
        """Have ops of the engine itself committed, and return their replies. If an op is refused, its error is returned
        in the place of its reply.
        """
        ...

    def loaded(self, run_id: str) -> Run | None:
        """Return a run of this engine in the state of its last commit. This reads only memory."""
        ...

    def mailbox(self, run_id: str) -> Mailbox:
        """Return the mailbox of a run of this engine in the state of its last commit. It has the events that the run
        waits for and was sent.
        """
        ...


__all__ = ["CoordinatorPort", "Fence"]
