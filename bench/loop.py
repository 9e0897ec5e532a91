"""The event loop that everything here is measured on: uvloop if it is installed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from importlib.util import find_spec
from typing import Any, Final, TypeVar

T = TypeVar("T")

NAME: Final = "asyncio" if find_spec("uvloop") is None else "uvloop"


def _factory() -> Callable[[], asyncio.AbstractEventLoop]:
    if NAME == "asyncio":
        return asyncio.new_event_loop
    import uvloop

    return uvloop.new_event_loop


def run(main: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=_factory()) as runner:
        return runner.run(main)
