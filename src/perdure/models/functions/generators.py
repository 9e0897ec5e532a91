"""Async generators of workflow code, whose clean-up must not be scheduled on the process's loop.

Python has one pair of hooks per thread, and setting it is slow, since that raises audit events. So the pair of the
process's loop is wrapped once, and afterwards the running loop tells what is a workflow's; the rest goes on to the
process's own hooks. That loop puts back what it found when it stops; where none is running, the caller of `wrap_hooks`
does.
"""

from __future__ import annotations

import asyncio
import sys
import weakref
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from perdure.models.functions.loop_reports import ReportingLoop
from perdure.models.functions.teardown import close_generator

Generator = AsyncGenerator[Any, Any]
Hook = Callable[[Generator], None]

# By address: a weak key is gone before the finalizer is called. The next generator at the address enters it anew.
_owners: Final[dict[int, GeneratorLoop]] = {}


class GeneratorLoop(ReportingLoop):
    """Keeps sight of the async generators that its workflow has started."""

    __slots__ = ("_generators", "_orphans", "_refusal")

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self._refusal: str | None = None  # Why nothing can be asked for just now.
        self._generators: dict[int, weakref.ref[Generator]] | None = None
        self._orphans: list[Generator] | None = None

    def generator_started(self, generator: Generator) -> None:
        if self._generators is None:
            self._generators = {}
        elif len(self._generators) & (len(self._generators) - 1) == 0:  # At powers of two: who uses many keeps few.
            for address in [address for address, ref in self._generators.items() if ref() is None]:
                del self._generators[address], _owners[address]
        self._generators[id(generator)] = weakref.ref(generator)
        _owners[id(generator)] = self

    def generator_dropped(self, generator: Generator) -> None:
        """Instead of scheduling a task for the clean-up, as asyncio does, run it here, if here is where it was dropped.

        When the garbage collector finds it later, at a moment that no replay would hit again, it waits for the end.
        """
        if not self.is_running():
            self._orphans = [*(self._orphans or ()), generator]
            return
        refusal = self._refusal
        self._refusal = "a dropped async generator cannot ask for anything in its clean-up: use contextlib.aclosing()"
        try:
            close_generator(generator, self.run_id)
        finally:
            self._refusal = refusal

    def close_generators(self) -> None:
        """Run the clean-up of all that are still suspended, in the order in which they were started."""
        generators = self._orphans or []
        for address, ref in (self._generators or {}).items():
            _owners.pop(address, None)
            if (generator := ref()) is not None:
                generators.append(generator)
        self._generators = self._orphans = None
        for generator in generators:
            if getattr(generator, "ag_frame", None) is not None:
                close_generator(generator, self.run_id)


class StartHook:
    __slots__ = ("process",)

    def __init__(self, process: Hook | None) -> None:
        self.process = process

    def __call__(self, generator: Generator) -> None:
        loop = asyncio._get_running_loop()
        if isinstance(loop, GeneratorLoop):
            loop.generator_started(generator)
            return
        _owners.pop(id(generator), None)
        if self.process is not None:
            self.process(generator)


class DropHook:
    __slots__ = ("process",)

    def __init__(self, process: Hook | None) -> None:
        self.process = process

    def __call__(self, generator: Generator) -> None:
        owner = _owners.pop(id(generator), None)
        if owner is not None:
            owner.generator_dropped(generator)
        elif self.process is not None:
            self.process(generator)


def wrap_hooks() -> Any:
    """Make sure that this thread's hooks tell workflows apart. Returns those that were wrapped, or None if they did."""
    hooks = sys.get_asyncgen_hooks()
    if type(hooks[0]) is StartHook:
        return None
    sys.set_asyncgen_hooks(StartHook(hooks[0]), DropHook(hooks[1]))
    return hooks
