"""The listeners of the coordinator. They perform its effects, and receive its reports."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Protocol

from perdure.kernel.effects import Effect
from perdure.kernel.rows import Engine
from perdure.ports import Offer


class EffectListener(Protocol):
    """Performs effects, in plain callbacks of the loop."""

    def perform(self, effects: Iterable[Effect]) -> None:
        """Carry out effects of a commit, in order."""
        ...

    def performed(self) -> None:
        """All effects of the commits so far were carried out."""
        ...


class CoordinatorListener(EffectListener, Protocol):
    """The engine or the client around a coordinator."""

    async def enroll(self) -> Engine:
        """Register with the store. This is called at the start, and whenever the engine was marked dead."""
        ...

    def lost_track(self) -> None:
        """Search the store for runs that can go on, because memory may have missed some."""
        ...

    def broken(self, error: BaseException) -> None:
        """End, because the coordinator has stopped by itself."""
        ...

    def posted(self, slot: str, reply: asyncio.Future[Any]) -> None:
        """Wait for the reply to an op that another engine decides. That engine will put the reply into this slot."""
        ...


class Code(Protocol):
    """The workflows that an engine has."""

    def offers(self) -> Sequence[Offer]:
        """Return the offers of this code for the store."""
        ...


class Background(Protocol):
    """Runs an engine's own tasks."""

    def background(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background until the engine ends."""
        ...


__all__ = ["Background", "Code", "CoordinatorListener", "EffectListener"]
