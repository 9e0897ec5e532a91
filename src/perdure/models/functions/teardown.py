"""Teardown: the unfinished tasks of a workflow are ended on its own loop. `finally` blocks run, but requests and errors
have no effect.

Code that catches its cancellation is cancelled a few more times, and then gets GeneratorExit. A coroutine that survives
even GeneratorExit can only be set aside.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from perdure.errors import ForbiddenInWorkflow
from perdure.kernel.pieces import Pieces, parts
from perdure.models.functions.loop_tasks import WorkflowTask
from perdure.models.functions.stacks import suspended

logger: Final = logging.getLogger("perdure")

ROUNDS_MAX: Final = 8


def close_tasks(tasks: Callable[[], list[WorkflowTask]], run: Callable[[], Pieces[None]], run_id: str) -> Pieces[None]:
    """Cancel the tasks that `tasks()` returns, and `run()` the loop, a few times. Then close the coroutines of the
    tasks that have still not ended.
    """
    for _ in range(ROUNDS_MAX):
        if not _cancel(tasks()):
            return
        yield from run()
    for start, part in parts(tasks()):
        if start:
            yield
        for task in part:
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            _close(task.get_coro(), run_id)


def _cancel(tasks: list[WorkflowTask]) -> bool:
    for task in tasks:
        task.cancel("the run is being closed")
    return bool(tasks)


def close_generator(generator: AsyncGenerator[Any, Any], run_id: str) -> None:
    """Run the generator's clean-up now. The clean-up cannot wait for anything: an `await` in it raises."""
    closing: Any = generator.aclose()
    try:
        closing.send(None)
        for _ in range(ROUNDS_MAX):
            closing.throw(ForbiddenInWorkflow("the clean-up of a dropped async generator cannot wait: use aclosing()"))
    except StopIteration:
        return
    except BaseException:
        logger.debug("run %s: error while an async generator was closed", run_id, exc_info=True)
        return
    _set_aside(generator, run_id)


def _close(coroutine: Any, run_id: str) -> None:
    # If an inner coroutine refuses to end, the outer coroutines end and drop it. So `left` keeps all of them until none
    # of them is suspended.
    left = [one for one, _ in suspended(coroutine)] or [coroutine]
    for _ in range(ROUNDS_MAX):
        for one in left:
            try:
                one.close()
            except BaseException:
                logger.debug("run %s: error while a task was closed", run_id, exc_info=True)
        left = [one for one in left if any(suspended(one))]
        if not left:
            return
    for one in left:
        _set_aside(one, run_id)


def _set_aside(thing: object, run_id: str) -> None:
    """Keep an object forever, so that Python never finalizes it.

    Python would end the coroutine once more when it is dropped, and no loop could interrupt it then. Code that catches
    everything and tries again would block the thread forever.
    """
    import ctypes  # ctypes is slow to import, and rarely needed.

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
    advice = "let workflow code re-raise CancelledError"
    logger.warning("run %s: %r went on after its cancellation and GeneratorExit; %s", run_id, thing, advice)
