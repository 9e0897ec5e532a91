"""Starts the load, kills it at moments chosen by its progress, and keeps what can be known from outside."""

from __future__ import annotations

import os
import random
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from tests.kill.load import OPENING, STARTED, chosen

ROOT = Path(__file__).resolve().parents[2]
PATIENCE_S = 30.0

Key = tuple[str, str]  # run id, position
Start = tuple[int, str, str, int]  # epoch, run id, position, attempt


def predecessor(start: Start) -> Key | None:
    """For a step of a plain sequence: the one before, which must be committed when it begins."""
    _, run_id, position, _ = start
    lane, _, number = run_id.partition("-")
    call, _ = chosen(int(lane), int(number))
    is_later = call.workflow.name == "sequence" and int(position) > 1
    return (run_id, str(int(position) - 1)) if is_later else None


class Child:
    """One process of the load."""

    def __init__(self, store: Path, log: Path, errors: Path, epoch: int) -> None:
        command = [sys.executable, "-m", "tests.kill.load", str(store), str(log), str(epoch)]
        self._errors = errors
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, bufsize=0
            )
        assert self._process.stdout is not None
        self._progress = self._process.stdout.fileno()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def opening(self) -> None:
        """Wait until it is about to open the engine."""
        self._read(1, OPENING)

    def started(self, count: int) -> None:
        """Wait until it has started so many more attempts of steps."""
        self._read(count, STARTED)

    def kill(self) -> None:
        with self._process:  # closes the pipes
            self._process.kill()

    def finish(self) -> None:
        """Let it drain what it has begun and end by itself."""
        self._process.send_signal(signal.SIGTERM)
        give_up_at = time.monotonic() + PATIENCE_S
        while self._wait_readable(give_up_at) and os.read(self._progress, 4096):
            pass
        code = self._process.wait(timeout=PATIENCE_S)
        assert code == 0, f"the load ended with {code}:\n{self._errors.read_text()}"

    def _read(self, count: int, mark: bytes) -> None:
        give_up_at = time.monotonic() + PATIENCE_S
        while count > 0:
            assert self._wait_readable(give_up_at), f"no progress for {PATIENCE_S} s:\n{self._errors.read_text()}"
            got = os.read(self._progress, count)
            assert got, f"the load died by itself:\n{self._errors.read_text()}"
            count -= got.count(mark)

    def _wait_readable(self, give_up_at: float) -> bool:
        return bool(select.select([self._progress], [], [], max(0.0, give_up_at - time.monotonic()))[0])


class Killer:
    """Kills the load again and again. `committed` has, per epoch, what the store held when it began; `starts` has every
    attempt of a step that ever began, in order."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.store = folder / "load.db"
        self.committed: dict[int, set[Key]] = {1: set()}
        self.starts: list[Start] = []
        self._log = folder / "steps.log"
        self._errors = folder / "errors.txt"
        self._folder = folder
        self._random = random.Random(seed)
        self._epoch = 0

    def kill_once(self) -> None:
        with self._next() as child:
            child.opening()
            # Sometimes while it opens and recovers, mostly under full load.
            if self._random.random() < 0.85:
                child.started(self._random.randint(1, 250))
            else:
                # Not a wait for something: any moment of the start is as good as any other.
                time.sleep(self._random.uniform(0, 0.03))
            child.kill()
        ran = self._take_notes()
        left = self.committed[self._epoch + 1] = self._look()
        early = [start for start in ran if (before := predecessor(start)) is not None and before not in left]
        assert not early, f"(epoch, run, position, attempt) that did not wait for the step before: {early[:10]}"

    def finish(self) -> None:
        """Start it once more, and let it come to its end."""
        with self._next() as child:
            child.opening()
            child.started(100)
            child.finish()
        self._take_notes()

    def _take_notes(self) -> list[Start]:
        """Read what the last process logged, and see that it ran nothing which had been committed before it began."""
        before, ran = self.committed[self._epoch], []
        for line in self._log.read_text().splitlines()[len(self.starts) :]:
            epoch, run_id, position, attempt = line.split(" ")
            ran.append((int(epoch), run_id, position, int(attempt)))
        self.starts += ran
        wrong = [start for start in ran if start[1:3] in before]
        assert not wrong, f"(epoch, run, position, attempt) that began though their entries were there: {wrong[:10]}"
        return ran

    def _next(self) -> Child:
        self._epoch += 1
        return Child(self.store, self._log, self._errors, self._epoch)

    def _look(self) -> set[Key]:
        """The keys of the journal as the kill left it. Reads a copy: the next process must do its own recovery."""
        if not self.store.exists():
            return set()
        copy = self._folder / "copy"
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for suffix in ("", "-wal"):
            left = self.store.with_name(self.store.name + suffix)
            if left.exists():
                shutil.copyfile(left, copy / left.name)
        with closing(sqlite3.connect(copy / self.store.name)) as connection:
            if not connection.execute("select 1 from sqlite_master where name = 'journal'").fetchall():
                return set()
            return set(connection.execute("select run_id, position from journal"))
