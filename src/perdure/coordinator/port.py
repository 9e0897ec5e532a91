"""The coordinator as models see it. A model gets an object of this protocol, never callbacks to its methods."""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from typing import Any, Protocol

from perdure.coordinator.notices import Stats
from perdure.kernel.ops import Op
from perdure.kernel.rows import Engine
from perdure.kernel.runs import Run
from perdure.kernel.wait_matches import Mailbox


class Fence(Protocol):
    """Whether this engine may still go on with its runs."""

    @property
    def stopping(self) -> Container[str]:
        """Return the runs that the current batch stops from outside. No step of these runs may begin."""
        ...

    async def check_fence(self) -> None:
        """Find out whether this engine may still write. If it was declared dead, it has dropped all its runs when this
        returns."""
        ...


class CoordinatorPort(Fence, Protocol):
    """The coordinator as a model sees it."""

    @property
    def engine(self) -> Engine:
        """Return the engine's row, under its current id."""
        ...

    @property
    def stats(self) -> Stats:
        """The counters of this engine."""
        ...

    def enqueue(self, op: Op, answered: Callable[[Any, BaseException | None], object] | None = None) -> None:
        """Queue an op of the engine's own: it is never refused, and has no reply."""
        ...

    def request(self, op: Op, answered: Callable[[Any, BaseException | None], object]) -> None:
        """Queue an op; `answered` is called with its reply and None, or with None and an error."""
        ...

    async def submit(self, op: Op) -> Any:
        """Have an op decided and committed; return its reply. Waits while the inbox is full."""
        ...

    async def submit_internal(self, ops: Sequence[Op]) -> list[Any]:
        """Have ops of the engine's own committed; return their replies. Errors are among the replies."""
        ...

    def loaded(self, run_id: str) -> Run | None:
        """Return a run of this engine as last committed. Does not ask the store."""
        ...

    def mailbox(self, run_id: str) -> Mailbox:
        """Return the mailbox of a run of this engine, as last committed: the events that the run waits for and was
        sent."""
        ...


__all__ = ["CoordinatorPort", "Fence"]
