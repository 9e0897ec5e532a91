"""Ending what a workflow left unfinished, on its own loop: `finally` blocks run, nothing is asked for, nothing escapes.

Code that swallows its cancellation gets a few more, then GeneratorExit. What survives even that can only be set aside.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from perdure.errors import ForbiddenInWorkflow
from perdure.models.functions.stacks import suspended
from perdure.models.functions.tasks import WorkflowTask

logger: Final = logging.getLogger("perdure")

ROUNDS_MAX: Final = 8

# Python complains, on stderr, about a coroutine that is dropped while it refuses to end. It is code that catches
# everything and goes on, so there is no other end to it than to stay here; the bound is on how much is kept.
_unclosable: Final[deque[object]] = deque(maxlen=1_000)


def close_tasks(tasks: Callable[[], list[WorkflowTask]], run: Callable[[], None], run_id: str) -> None:
    """Cancel what `tasks()` still lists and `run()` the loop, a few times; then close the coroutines of the rest."""
    for _ in range(ROUNDS_MAX):
        if not _cancel(tasks()):
            return
        run()
    for task in tasks():
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        _close(task.get_coro(), run_id)


def _cancel(tasks: list[WorkflowTask]) -> bool:
    for task in tasks:
        task.cancel("the run is being closed")
    return bool(tasks)


def close_generator(generator: AsyncGenerator[Any, Any], run_id: str) -> None:
    """Run the generator's clean-up here and now. It cannot wait for anything: awaiting in it raises."""
    closing: Any = generator.aclose()
    try:
        closing.send(None)
        for _ in range(ROUNDS_MAX):
            closing.throw(ForbiddenInWorkflow("the clean-up of a dropped async generator cannot wait: use aclosing()"))
    except StopIteration:
        return
    except BaseException:  # noqa: BLE001 - workflow code must not stop the closing
        logger.debug("run %s: error while an async generator was closed", run_id, exc_info=True)
        return
    _set_aside(generator, run_id)


def _close(coroutine: Any, run_id: str) -> None:
    # When an inner one refuses, the outer ones end and let go of it: all are held here until none is suspended.
    left = [one for one, _ in suspended(coroutine)] or [coroutine]
    for _ in range(ROUNDS_MAX):
        for one in left:
            try:
                one.close()
            except BaseException:  # noqa: BLE001 - workflow code must not stop the closing
                logger.debug("run %s: error while a task was closed", run_id, exc_info=True)
        left = [one for one in left if any(suspended(one))]
        if not left:
            return
    _set_aside(left, run_id)


def _set_aside(things: object, run_id: str) -> None:
    _unclosable.append(things)
    advice = "let workflow code re-raise CancelledError"
    logger.warning("run %s: %r went on after its cancellation and GeneratorExit; %s", run_id, things, advice)
