"""Background tasks: the work that a host does in addition to its runs, until the host is closed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class BackgroundTasks:
    """The unfinished background tasks of one host. A crash loses these tasks. The engine that takes over the run starts
    them again.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task for a coroutine."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def close(self) -> None:
        """Cancel all tasks."""
        for task in self._tasks:
            task.cancel()


__all__ = ["BackgroundTasks"]
