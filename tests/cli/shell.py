"""A shell for tests: runs `perdure`, in a pipe or in a terminal, and tells what it wrote and how it ended."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

HERE = Path(__file__).resolve().parent
PATIENCE_S = 60.0
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)

    def json_lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]

    def rows(self) -> list[list[str]]:
        return [line.split("\t") for line in self.out.splitlines()]


class Nursery:
    """The process that forks all others."""

    def __init__(self) -> None:
        self._process = subprocess.Popen([sys.executable, str(HERE / "nursery.py")], stdin=subprocess.PIPE, text=True)

    def ask(self, wanted: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{json.dumps(wanted)}\n")
        self._process.stdin.flush()

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(PATIENCE_S)


class Shell:
    """Runs commands in a folder, with the store of that folder."""

    def __init__(self, nursery: Nursery, folder: Path, store: str | None) -> None:
        self.folder = folder
        self.store = store
        self._nursery = nursery
        self._scratch = Path(tempfile.mkdtemp(prefix="shell-", dir=folder.parent))
        self._numbers = count()

    def begin(
        self, *arguments: object, terminal: bool = False, stdin: str = "", env: dict[str, str] | None = None
    ) -> Command:
        return Command(self._nursery, self, next(self._numbers), [str(one) for one in arguments], terminal, stdin, env)

    def __call__(self, *arguments: object, code: int = 0, stdin: str = "", env: dict[str, str] | None = None) -> Done:
        """In a pipe."""
        with self.begin(*arguments, stdin=stdin, env=env) as command:
            done = command.ended()
        assert done.code == code, done
        return done

    def terminal(self, *arguments: object, code: int = 0, answers: Sequence[tuple[str, str]] = ()) -> str:
        """In a terminal, where questions are answered as they come; what stood on it in the end, without colours."""
        with self.begin(*arguments, terminal=True) as command:
            for question, answer in answers:
                command.until(question)
                command.type(answer)
            done = command.ended()
        assert done.code == code, done
        return done.out

    @property
    def scratch(self) -> Path:
        return self._scratch

    def environment(self, more: dict[str, str] | None) -> dict[str, str]:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "PYTHONPATH", "USER") if name in os.environ}
        found = {**kept, "TERM": "xterm-256color", "COLUMNS": "200", "LANG": "C.UTF-8"}
        if self.store is not None:
            found["PERDURE_STORE"] = self.store
        return {**found, **(more or {})}


class Command:
    """One command, running from the start. It does not outlive its `with`."""

    def __init__(
        self,
        nursery: Nursery,
        shell: Shell,
        number: int,
        arguments: list[str],
        terminal: bool,
        stdin: str,
        env: dict[str, str] | None,
    ) -> None:
        base = shell.scratch / str(number)
        self._out, self._err = base.with_suffix(".out"), base.with_suffix(".err")
        source, told = base.with_suffix(".in"), base.with_suffix(".told")
        source.write_text(stdin)
        os.mkfifo(told)
        self._screen = b""
        self._master: int | None = None
        slave = None
        if terminal:
            self._master, slave = pty.openpty()
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
        nursery.ask(
            {
                "arguments": arguments,
                "folder": str(shell.folder),
                "environment": shell.environment(env),
                "terminal": None if slave is None else os.ttyname(slave),
                "stdin": str(source),
                "stdout": str(self._out),
                "stderr": str(self._err),
                "told": str(told),
            }
        )
        self._told = told.open()
        self.pid = int(self._told.readline())
        self._code: int | None = None
        self._slave = slave

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._code is None:
            self.signal(signal.SIGKILL)
            self.ended()
        self._told.close()
        for file in (self._master, self._slave):
            if file is not None:
                os.close(file)

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def type(self, text: str) -> None:
        assert self._master is not None
        os.write(self._master, text.encode())

    @property
    def written(self) -> str:
        """Everything so far, on the terminal or in the pipes."""
        if self._master is not None:
            self._drain(0)
            return _ESCAPES.sub("", self._screen.decode(errors="replace")).replace("\r\n", "\n").replace("\r", "\n")
        return "".join(path.read_text() for path in (self._out, self._err) if path.exists())

    @property
    def raw(self) -> bytes:
        return self._screen

    def until(self, text: str) -> None:
        """Wait until something is written."""
        give_up = time.monotonic() + PATIENCE_S
        while text not in self.written:
            assert time.monotonic() < give_up, f"{text!r} was not written, but {self.written!r}"
            assert not self._has_ended() or text in self.written, f"it has ended without {text!r}: {self.written!r}"
            if self._master is not None:
                self._drain(0.05)
            else:
                time.sleep(0.01)

    def ended(self) -> Done:
        """Wait for its end."""
        give_up = time.monotonic() + PATIENCE_S
        while not self._has_ended():
            assert time.monotonic() < give_up, f"it does not end: {self.written!r}"
            if self._master is not None:
                self._drain(0.01)
        assert self._code is not None
        if self._master is not None:
            return Done(self._code, self.written, "")
        return Done(self._code, self._out.read_text(), self._err.read_text())

    def _has_ended(self) -> bool:
        if self._code is None and select.select([self._told], [], [], 0.01)[0]:
            self._code = int(self._told.readline())
        return self._code is not None

    def _drain(self, wait_s: float) -> None:
        assert self._master is not None
        while select.select([self._master], [], [], wait_s)[0]:
            self._screen += os.read(self._master, 65_536)
            wait_s = 0
