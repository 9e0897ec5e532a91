"""Async generators of workflow code. The clean-up of these generators must not be scheduled on the process's loop.

Python has one pair of hooks for async generators in each thread. Setting the hooks is slow, because it raises audit
events. So the hooks of the process's loop are wrapped once. After that, the running loop says which generators belong
to a workflow. All other generators are passed to the process's own hooks. When the process's loop stops, it restores
the hooks that it found. If no loop is running, the caller of `wrap_hooks` restores them.
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

# The loop of each generator, by the generator's address. A weak key would be gone before the finalizer is called. The
# next generator at an address replaces the entry.
_owners: Final[dict[int, GeneratorLoop]] = {}


class GeneratorLoop(ReportingLoop):
    """Keeps track of the async generators that its workflow has started."""

    __slots__ = ("_generators", "_orphans", "_refusal")

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self._refusal: str | None = None  # the reason why the workflow can make no requests now; None if it can
        self._generators: dict[int, weakref.ref[Generator]] | None = None
        self._orphans: list[Generator] | None = None

    def generator_started(self, generator: Generator) -> None:
        if self._generators is None:
            self._generators = {}
        # Remove dead references only when the number is a power of two.
        elif len(self._generators) & (len(self._generators) - 1) == 0:
            for address in [address for address, ref in self._generators.items() if ref() is None]:
                del self._generators[address], _owners[address]
        self._generators[id(generator)] = weakref.ref(generator)
        _owners[id(generator)] = self

    def generator_dropped(self, generator: Generator) -> None:
        """Run the clean-up of a generator that was dropped in an activation. (asyncio would create a task for the
        clean-up.)

        If the garbage collector finds the generator later, the moment differs in each replay. Then the clean-up waits
        until the loop is closed.
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
        """Run the clean-up of all generators that are still suspended, in the order in which they were started."""
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
    """Make sure that this thread's hooks know the generators of workflows. Returns the hooks that were wrapped, or None
    if they had been wrapped before.
    """
    hooks = sys.get_asyncgen_hooks()
    if type(hooks[0]) is StartHook:
        return None
    sys.set_asyncgen_hooks(StartHook(hooks[0]), DropHook(hooks[1]))
    return hooks
