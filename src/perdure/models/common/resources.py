"""Resources: objects that steps share while their engine runs, such as connection pools and clients. The engine
acquires them when it starts, and releases them in reverse order when it stops.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from typing import Any

from perdure.errors import Misuse


class Resources:
    """Objects by type. A factory returns the object, an awaitable of the object, or a context manager for the object.
    The context manager may be async.

    `own` are objects of the engine itself. If a user passes an object of the same type, the user's object is used.
    """

    def __init__(self, factories: Mapping[type[Any], Callable[[], Any]], own: Mapping[type[Any], Any]) -> None:
        self._factories = factories
        self._own = own
        self._held: dict[type[Any], Any] = {}
        self._stack = AsyncExitStack()

    async def acquire(self) -> None:
        """Make all objects, in order. If a factory fails, the objects that were made before are released."""
        try:
            for kind, factory in self._factories.items():
                self._held[kind] = await self._make(factory)
        except BaseException:
            await self.release()
            raise

    async def _make(self, factory: Callable[[], Any]) -> Any:
        made = factory()
        if inspect.isawaitable(made):
            made = await made
        if hasattr(made, "__aenter__"):
            return await self._stack.enter_async_context(made)
        if hasattr(made, "__enter__"):
            return self._stack.enter_context(made)
        return made

    def get(self, kind: type[Any]) -> Any:
        try:
            return self._held[kind] if kind in self._held else self._own[kind]
        except KeyError:
            known = ", ".join(sorted(k.__qualname__ for k in self._held)) or "none"
            raise Misuse(
                f"this engine has no resource {kind.__qualname__}; it has {known}. "
                f"Give it with Engine(resources={{{kind.__qualname__}: factory}})"
            ) from None

    async def release(self) -> None:
        self._held.clear()
        await self._stack.aclose()
