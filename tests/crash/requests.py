"""Crash injection around what is no commit of a batch: a store dies, or is left in the dark, at a request of a name."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from perdure.errors import OutcomeUnknown
from perdure.ports import Store
from perdure.testing.faults import Fault, FaultyStore, Point

T = TypeVar("T")

_EFFECT_TURNS = 8  # An answer is on its way after so many turns of the loop.


class FaultyRequest(FaultyStore):
    """Hands everything through to `inner` but for the first request of a name, "commit" or "claim", which meets
    with what Fault says of its point."""

    def __init__(self, inner: Store, name: str, point: Point, died: Callable[[], object]) -> None:
        super().__init__(inner, Fault(point, when=lambda _: False), died)
        self.struck = 0
        self.name = name

    async def _through(self, request: Coroutine[Any, Any, T]) -> T:
        if self._is_dead or self.struck or getattr(request, "__name__", "") != self.name:
            return await super()._through(request)
        self.struck = 1
        if self.fault.point in ("before", "unknown_lost"):
            request.close()
            if self.fault.point == "before":
                await self._die()
            raise OutcomeUnknown("the connection was lost before it was sent, as asked")
        answer = await request
        if self.fault.point == "before_effects":
            await self._die()
        if self.fault.point == "unknown":
            raise OutcomeUnknown("the connection was lost after it was sent, as asked")
        self._is_doomed = True
        self._count_down(_EFFECT_TURNS)
        return answer


__all__ = ["FaultyRequest"]
