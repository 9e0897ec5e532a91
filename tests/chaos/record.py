"""What processes say that they did, outside of the store: a file for each, only appended to and synced line by line.

A line that is there was written before what it tells of had any effect that others could see. All processes are on one
machine, so that their monotonic clocks agree.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

BEGAN = "began"  # the body of a step has begun
LATE = "late"  # the same body found its own entry in the store, or its run ended
UNSEEN = "unseen"  # it could not look soon enough
ASKED = "asked"  # a caller is about to start a run, or to emit a message
STARTED = "started"  # it was told that the run, or the message, is there
ENDED = "ended"  # a caller was told how it ended
AGAIN = "again"  # a caller was told that the store is not to be had now, and asked again
FAULT = "fault"  # something was made to go wrong; `name` says what
REFUSED = "refused"  # a caller was told anything else that it did not expect


class Line(Struct, frozen=True, omit_defaults=True):
    what: str
    run_id: str
    at: float
    pid: int
    name: str = ""  # of a step, or of what was asked
    position: str = ""
    attempt: int = 0
    text: str = ""


class Record:
    """The file of this process."""

    def __init__(self, folder: Path, role: str) -> None:
        folder.mkdir(exist_ok=True)
        path = folder / f"{role}-{os.getpid()}.jsonl"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, what: str, run_id: str, *, at: float | None = None, **others: str | int) -> None:
        line = {"what": what, "run_id": run_id, "at": at or time.monotonic(), "pid": os.getpid(), **others}
        os.write(self._file, msgspec.json.encode(msgspec.convert(line, Line)) + b"\n")
        os.fsync(self._file)


def read(folder: Path) -> list[Line]:
    """All lines of all processes. The last one of a process that was killed may be cut off."""
    lines: list[Line] = []
    decode = msgspec.json.Decoder(Line).decode
    for path in sorted(folder.glob("*.jsonl")):
        *whole, rest = path.read_bytes().split(b"\n")
        assert len(rest) < 10_000, path
        lines += map(decode, whole)
    return sorted(lines, key=lambda line: line.at)


def count_begun(folder: Path) -> int:
    """How many bodies have begun so far."""
    word = f'"{BEGAN}"'.encode()
    return sum(path.read_bytes().count(word) for path in folder.glob("engine-*.jsonl"))
