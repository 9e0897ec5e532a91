"""Forks a process that has the command line imported already, for each command that is asked for: a test then takes
milliseconds and not seconds, and what runs is a process of its own all the same, in a real terminal if it is to be.

Requests are lines of JSON on standard input; see `Shell`. Nothing here has threads, so forking is safe.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import perdure.cli.app

IMPORTED = (
    "perdure.cooperation",
    "perdure.graph",
    "perdure.storage.postgres",
    "perdure.storage.sqlite",
    "perdure.upgrade",
    "rich.live",
    "rich.progress",
    "rich.table",
    "rich.tree",
)


def watch_over(wanted: dict[str, Any]) -> None:
    """In a process of its own: have a command run, tell its pid, wait for it, tell its exit code."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    with Path(wanted["told"]).open("w", buffering=1) as told:
        pid = os.fork()
        if pid == 0:
            os.set_inheritable(told.fileno(), False)
            told.close()
            become(wanted)
        told.write(f"{pid}\n")
        _, status = os.waitpid(pid, 0)
        told.write(f"{os.waitstatus_to_exitcode(status)}\n")


def become(wanted: dict[str, Any]) -> None:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # Whoever runs the tests in the background ignores it.
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    if wanted["terminal"] is not None:
        tty = os.open(wanted["terminal"], os.O_RDWR)  # The first that a new session opens is its terminal.
        files = [tty, tty, tty]
    else:
        files = [
            os.open(wanted["stdin"], os.O_RDONLY),
            os.open(wanted["stdout"], flags),
            os.open(wanted["stderr"], flags),
        ]
    for number, file in enumerate(files):
        os.dup2(file, number)
    sys.stdin, sys.stdout, sys.stderr = os.fdopen(0), os.fdopen(1, "w"), os.fdopen(2, "w", buffering=1)
    os.chdir(wanted["folder"])
    os.environ.clear()
    os.environ.update(wanted["environment"])
    sys.argv = ["perdure", *wanted["arguments"]]
    code: object = 1
    try:
        perdure.cli.main()
    except SystemExit as end:
        code = end.code or 0
    finally:
        sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


def warm_up() -> None:
    """Whatever is imported on the way to a verb, and by most of them, is imported now."""
    for name in IMPORTED:
        importlib.import_module(name)
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        perdure.cli.app.command()(["--version"])


def main() -> None:
    warm_up()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for line in sys.stdin:
        if os.fork() == 0:
            watch_over(json.loads(line))
            os._exit(0)


if __name__ == "__main__":
    main()
