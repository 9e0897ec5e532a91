"""Calls of plain functions in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def without_stop_iteration(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function in a thread. If the function raises StopIteration, raise RuntimeError instead. A future cannot
    hold StopIteration, so the code that awaits the thread would wait forever.
    """
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error


__all__ = ["without_stop_iteration"]
