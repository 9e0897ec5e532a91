"""An eyewitness outside the store: whenever the code of a step begins to run, a line in a file says so."""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct
from msgspec.json import decode, encode

from perdure import CurrentStep, current_step, resource


class Sighting(Struct, frozen=True):
    """One attempt of one step, in the first process or the second."""

    process: int
    run_id: str
    position: str
    step: str
    attempt: int


class Witness:
    """Appends to a file. A line is one write, on the disk before the step goes on: no buffer dies with the process."""

    def __init__(self, path: str, process: int) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._process = process

    def note(self, step: CurrentStep) -> None:
        sighting = Sighting(self._process, step.run_id, step.position, step.name, step.attempt)
        os.write(self._file, encode(sighting) + b"\n")
        os.fsync(self._file)


def seen() -> CurrentStep:
    """The first line of every step: note that it runs, and which it is."""
    me = current_step()
    resource(Witness).note(me)
    return me


def sightings(path: Path) -> list[Sighting]:
    """All that was noted so far, in order."""
    if not path.exists():
        return []
    return [decode(line, type=Sighting) for line in path.read_bytes().splitlines()]
