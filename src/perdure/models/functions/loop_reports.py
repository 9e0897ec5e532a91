"""The part of WorkflowLoop that answers questions about the loop and reports errors.

Nothing is printed: errors that no code handles go to the logger "perdure".
"""

from __future__ import annotations

import asyncio
from typing import Any

from perdure.models.functions.forbidden import ForbiddingLoop
from perdure.models.functions.teardown import logger


class ReportingLoop(ForbiddingLoop):
    __slots__ = ("_exception_handler", "about", "closed", "run_id")

    def __init__(self, run_id: str) -> None:
        self.about: Any = None  # The workflow's name. After the first call of `current_run`, the CurrentRun.
        self.run_id = run_id
        self.closed = False
        self._exception_handler: Any = None

    def get_task_factory(self) -> None:
        return None

    # asyncio calls this for every future. bool() returns False, and asyncio's C code calls it without running Python
    # code.
    get_debug = bool  # pyright: ignore[reportAssignmentType]

    def set_debug(self, enabled: bool) -> None:
        """Do nothing: asyncio's debug mode measures real time."""

    def is_running(self) -> bool:
        return asyncio._get_running_loop() is self

    def is_closed(self) -> bool:
        return self.closed

    def get_exception_handler(self) -> Any:
        return self._exception_handler

    def set_exception_handler(self, handler: Any) -> None:
        self._exception_handler = handler

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an error that no code handles: at debug level while the loop is being closed, otherwise as an error."""
        log = logger.debug if self.closed else logger.error
        log("run %s: %s", self.run_id, context.get("message"), exc_info=context.get("exception"))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        # The garbage collector may call this at any time, but the workflow's handler may run only in activations.
        if self._exception_handler is None or self.closed or not self.is_running():
            self.default_exception_handler(context)
            return
        try:
            self._exception_handler(self, context)
        except Exception:  # noqa: BLE001 - workflow code must not break its loop
            logger.error("run %s: its exception handler failed", self.run_id, exc_info=True)
