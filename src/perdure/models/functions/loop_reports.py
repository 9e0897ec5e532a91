"""The part of an event loop that answers questions and takes complaints; shared by nothing but WorkflowLoop.

Nothing is printed: what fails unseen goes to the logger "perdure".
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.models.functions.forbidden import ForbiddingLoop
from perdure.models.functions.teardown import logger


class ReportingLoop(ForbiddingLoop):
    __slots__ = ("_exception_handler", "about", "closed", "run_id")

    def __init__(self, run_id: str) -> None:
        self.about: Any = None  # The workflow's name, and what `current_run` has made of it.
        self.run_id = run_id
        self.closed = False
        self._exception_handler: Any = None

    def get_task_factory(self) -> None:
        return None

    # Asked for with every future: bool() is False, and a call that asyncio's C code makes without Python's help.
    get_debug = bool  # pyright: ignore[reportAssignmentType]

    def set_debug(self, enabled: bool) -> None:
        """Ignored: asyncio's debug mode measures real time."""

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.closed

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log it: what is left over at the end at debug, a task or a callback that failed unseen as an error."""
        log = logger.debug if self.closed else logger.error
        log("run %s: %s", self.run_id, context.get("message"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # The garbage collector may come here at any time; user code runs in activations only.
        if self._exception_handler is None or self.closed or not self.is_running():
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception:  # noqa: BLE001 - workflow code must not break its loop
            logger.error("run %s: its exception handler failed", self.run_id, exc_info=True)
