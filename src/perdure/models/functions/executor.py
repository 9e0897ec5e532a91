"""The executor: the parts of an engine that execute steps."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from perdure.errors import Misuse
from perdure.models.common.background import BackgroundTasks
from perdure.models.common.crash_blame import Blame
from perdure.models.common.fence_check import FenceCheck
from perdure.models.common.host_parts import HostParts
from perdure.models.common.resources import Resources
from perdure.models.common.step_tasks import Carriers
from perdure.models.functions.process_attempts import ProcessAttempts
from perdure.models.functions.step_artifacts import StepArtifacts
from perdure.models.functions.stream_writer import StreamWriter
from perdure.models.functions.thread_attempts import ThreadAttempts
from perdure.models.functions.transactions import Transactions


class Executor:
    """Has the parts that execute steps: carriers, threads, processes, transactions, streams and artifacts.

    Raises Misuse in a process in which multiprocessing has imported the main module.
    """

    def __init__(self, parts: HostParts, resources: Resources, blame: Blame, background: BackgroundTasks) -> None:
        _check_not_imported_again()
        limits = parts.limits
        self.clock = parts.clock
        self.timers = parts.timers
        self.payload_max = limits.payload_bytes_max
        self.resources = resources
        self.loop = asyncio.get_running_loop()
        self.fence_check = FenceCheck(parts.store, parts.coordinator)
        self.carriers = Carriers(self.fence_check)
        self.threads = ThreadAttempts(limits.threads_max, self.fence_check, blame)
        self.processes = ProcessAttempts(limits.processes_max, limits.payload_bytes_max, self.fence_check, blame)
        self.transactions = Transactions(parts)
        self.streams = StreamWriter(parts, background)
        self.artifacts = StepArtifacts(parts)

    def call_on_loop(self, callback: Callable[..., object], *args: Any) -> None:
        """Call a function on the loop. This can be called from any thread. It does nothing once the loop is closed."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(callback, *args)

    def close(self) -> None:
        """Start nothing more. Threads that still run are left to finish. Worker processes are ended."""
        self.carriers.close()
        self.transactions.close()
        self.threads.close()
        self.processes.close()


def _check_not_imported_again() -> None:
    """Check that this is not a worker process that is importing the program's main module. No engine may be opened
    there. Raises Misuse.
    """
    multiprocessing: Any = sys.modules.get("multiprocessing.process")
    if multiprocessing is not None and getattr(multiprocessing.current_process(), "_inheriting", False):
        raise Misuse(
            "a worker process has imported the program's main module, which opened an engine: let it do so only under "
            '`if __name__ == "__main__":`'
        )


__all__ = ["Executor"]
