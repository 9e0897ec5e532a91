"""Calling plain functions in threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def without_stop_iteration(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function. Raises RuntimeError in place of StopIteration: no future can hold StopIteration, so the code
    that awaits the thread would wait for ever."""
    try:
        return function(*args, **kwargs)
    except StopIteration as error:
        raise RuntimeError("the step raised StopIteration") from error


__all__ = ["without_stop_iteration"]
