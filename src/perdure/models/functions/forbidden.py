"""Checks that refuse real I/O, threads and futures of other loops in workflow code. The error says to use a step.

There are three checks. First, the loop refuses every asyncio method that needs the outside. Second, an audit hook
refuses calls for which Python raises an audit event, while a workflow's loop is activating in the same thread. The hook
allows reading files, and all calls that imports and log handlers make. Third, asyncio's errors about futures of another
loop are translated.

The checks cannot see traffic on a connection that was opened elsewhere, or work in C without an audit event. Before
Python 3.13, they also cannot see a `sleep` that was imported with `from time import sleep` before the first activation.
"""

from __future__ import annotations

import asyncio
import functools
import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

from perdure.errors import ForbiddenInWorkflow
from perdure.values.failures import is_marked

_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_AUDITED: Final = {
    "_thread.start_new_thread": "starting a thread",
    "_thread.start_joinable_thread": "starting a thread",
    "os.exec": "os.exec",
    "os.fork": "os.fork",
    "os.forkpty": "os.forkpty",
    "os.posix_spawn": "os.posix_spawn",
    "os.spawn": "os.spawn",
    "os.startfile": "os.startfile",
    "os.system": "os.system",
    "pty.spawn": "pty.spawn",
    "socket.bind": "socket.bind",
    "socket.connect": "socket.connect",
    "socket.getaddrinfo": "socket.getaddrinfo",
    "socket.gethostbyaddr": "socket.gethostbyaddr",
    "socket.gethostbyname": "socket.gethostbyname",
    "socket.sendmsg": "socket.sendmsg",
    "socket.sendto": "socket.sendto",
    "sqlite3.connect": "sqlite3.connect",
    "subprocess.Popen": "subprocess",
    "time.sleep": "time.sleep",
}
# Imports write byte code and run modules, and log handlers open files and sockets. Neither changes the workflow's
# result.
_EXEMPT: Final = {"importlib._bootstrap", "importlib._bootstrap_external", "_frozen_importlib", "logging"}
# asyncio's messages about an object of another loop. Each has the beginning of the message, the words before the
# object's own text, and the end. They are matched at fixed places, because other messages may be long.
_OTHER_LOOP: Final = (
    ("Task ", " got Future ", " attached to a different loop"),
    ("", "", " is bound to a different event loop"),
    ("Task got bad yield: ", "", ""),
    ("The future belongs to a different loop", None, ""),
)
_AWAITED_MAX_CHARS: Final = 500
# The search through the frames ends at the loop's module. The frames outside that module belong to the process, which
# may itself run inside an import.
_BOUNDARY: Final = "perdure.models.functions.loop"


class ForbiddingLoop(asyncio.AbstractEventLoop):
    """An event loop that refuses every method. Subclasses define the methods that work. So a method that a new version
    of Python adds is refused too.
    """


def forbidden(what: str) -> ForbiddenInWorkflow:
    """Return the error that refuses `what`."""
    return ForbiddenInWorkflow(
        f"{what} does not work in a workflow function, which must do the same again when it is replayed: "
        "put this into a step (a function with @step), whose result is kept",
        what=what,
    )


def _refusing(name: str) -> Callable[..., Any]:
    def refuse(*_args: object, **_options: object) -> Any:
        raise forbidden(f"loop.{name}()")

    refuse.__name__ = name
    return refuse


for _name, _method in list(vars(asyncio.AbstractEventLoop).items()):
    if not _name.startswith("_") and callable(_method):
        setattr(ForbiddingLoop, _name, _refusing(_name))


def foreign_await(error: BaseException) -> ForbiddenInWorkflow | None:
    """Return ForbiddenInWorkflow if the error is asyncio's error about an object of another loop. Return None for any
    other error.
    """
    if (type(error) is not RuntimeError and type(error) is not ValueError) or is_marked(error):
        return None  # An error that a step raised stays as it is.
    message = str(error)
    found = next((one for one in _OTHER_LOOP if message.startswith(one[0]) and message.endswith(one[2])), None)
    if found is None:
        return None
    start, before, end = found
    awaited = message[len(start) : len(message) - len(end)]
    if before is None:
        awaited = "a future"
    elif before:
        awaited = awaited.partition(before)[2]
    translated = forbidden(f"waiting for what belongs to another event loop ({awaited[:_AWAITED_MAX_CHARS]})")
    translated.__cause__ = error
    return translated


def in_workflow() -> bool:
    """Return whether this thread is inside an activation."""
    return isinstance(asyncio._get_running_loop(), ForbiddingLoop)


@functools.cache
def install() -> None:
    """Install the audit hook, once. For the rest of the process, it costs a dictionary lookup for each audited call."""
    sys.addaudithook(_audit)
    if sys.version_info < (3, 13):
        time.sleep = _guarded(time.sleep, "time.sleep")
    if sys.version_info < (3, 12):
        start: Any = threading._start_new_thread  # type: ignore[attr-defined]
        threading._start_new_thread = _guarded(start, "_thread.start_new_thread")  # type: ignore[attr-defined]


def _audit(event: str, args: tuple[Any, ...]) -> None:
    if event == "open":
        if not isinstance(args[2], int) or not args[2] & _WRITING or args[0] == os.devnull:
            return
        what = f"opening {args[0]!r} for writing"
    elif event in _AUDITED:
        what = _AUDITED[event]
    else:
        return
    if in_workflow() and not _exempt(sys._getframe(1)):  # pyright: ignore[reportPrivateUsage]
        raise forbidden(what)


def _guarded(function: Callable[..., Any], event: str) -> Callable[..., Any]:
    """Return a function that first raises the audit event `event`. It is for Python versions that do not raise this
    event themselves.
    """

    @functools.wraps(function)
    def announced(*args: Any, **options: Any) -> Any:
        _audit(event, ())
        return function(*args, **options)

    return announced


def _exempt(frame: FrameType | None) -> bool:
    while frame is not None:
        module = frame.f_globals.get("__name__")
        if module in _EXEMPT:
            return True
        if module == _BOUNDARY:
            return False
        frame = frame.f_back
    return False
