"""KeyboardInterrupt and SystemExit in users' code. They count as a failure of that code, unless a signal is stopping
the process.

Ctrl-C raises KeyboardInterrupt at the current instruction of the main thread, which may be in a step. This interrupt
has nothing to do with the step, and it ends the process. If the code of the step itself raises the exception, the step
fails. If the exception ended the process instead, it would end the process again at every start.
"""

from __future__ import annotations

import dis
import signal
import threading
from functools import partial
from types import CodeType
from typing import Any, Final

_RAISE: Final = dis.opmap["RAISE_VARARGS"]


def is_by_signal(error: BaseException) -> bool:
    """Return whether a signal handler raised this KeyboardInterrupt, and not the interrupted code.

    A handler written in Python is in the traceback. Python's default handler is not in the traceback. It can interrupt
    code at any instruction. So if the last instruction is not a `raise`, a handler raised the exception. Signals reach
    only the main thread.
    """
    trace = error.__traceback__
    if not isinstance(error, KeyboardInterrupt) or trace is None:
        return False
    if threading.current_thread() is not threading.main_thread():
        return False
    handler = _code_of(signal.getsignal(signal.SIGINT))
    while True:
        code = trace.tb_frame.f_code
        if code is handler:
            return True
        if trace.tb_next is None:
            return code.co_code[trace.tb_lasti] != _RAISE
        trace = trace.tb_next


def failed_by_exit(error: BaseException, what: str) -> str:
    """Return the failure message for a step or a workflow whose code raised KeyboardInterrupt or SystemExit."""
    return (
        f"{what} raised {error!r}: code in a run cannot end the process, so this counts as its failure; raise another "
        "exception, or stop the engine from outside"
    )


def _code_of(handler: Any) -> CodeType | None:
    while isinstance(handler, partial):  # asyncio installs its handler as a partial.
        handler = handler.func
    return getattr(getattr(handler, "__func__", handler), "__code__", None)


__all__ = ["failed_by_exit", "is_by_signal"]
