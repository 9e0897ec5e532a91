"""A scratch copy of the tree, in which one mutant at a time is tried. The work tree is never changed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.mutants.table import ROOT, Find, Mutant

__all__ = ["SEEDS_MAX", "Outcome", "Scratch"]

SEEDS_MAX: Final = 3000  # The simulator must find a bug about faults, order or locks within this many.
_COPIED: Final = ("src", "tests", "examples", "pyproject.toml")
_SKIPPED: Final = shutil.ignore_patterns("__pycache__", "*.pyc", "screenshots")
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SEED: Final = re.compile(r"^seed (\d+): (.*)", re.MULTILINE)
_TIMED_OUT: Final = re.compile(r"^\+* Timeout \+*$", re.MULTILINE)


class Outcome(Struct, frozen=True, kw_only=True):
    """What a suite said: `where` is the failing test, or the mix and the seed; "" if nothing failed."""

    where: str = ""
    text: str = ""  # why
    took_s: float = 0.0
    trouble: str = ""  # why the suite could not be run at all


class Scratch:
    """A copy of the package and its tests in a temporary directory."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="perdure-mutants-"))
        for name in _COPIED:
            if (source := ROOT / name).is_dir():
                shutil.copytree(source, self.root / name, ignore=_SKIPPED)
            else:
                shutil.copy(source, self.root / name)
        self._check_imported()

    def remove(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    @property
    def environment(self) -> dict[str, str]:
        """The environment in which the copy is imported, in the tests' own processes too."""
        path = os.pathsep.join((str(self.root / "src"), str(self.root)))
        return {**os.environ, "PYTHONPATH": path, "PERDURE_SIMULATE_FROM": "0"}

    def _check_imported(self) -> None:
        """Prove that the copy is imported, and not the work tree. Otherwise every mutant would survive."""
        program = "import perdure, tests.mutants.table as t; print(perdure.__file__); print(t.__file__)"
        done = self._run([sys.executable, "-c", program], 60)
        for line in done.stdout.split():
            if not Path(line).is_relative_to(self.root):
                raise RuntimeError(f"{line} is imported, which is not in {self.root}")
        if len(done.stdout.split()) != 2:
            raise RuntimeError(f"the copy cannot be imported: {done.stderr}")

    @contextmanager
    def mutated(self, mutant: Mutant | None) -> Iterator[None]:
        """Have a mutant in the copy, or none. Raises DoesNotFit."""
        if mutant is None:
            yield
            return
        source = mutant.source(self.root)
        self._write(mutant.file, mutant.applied(source))
        try:
            yield
        finally:
            self._write(mutant.file, source)

    def _write(self, file: str, source: str) -> None:
        path = self.root / file
        path.write_text(source)
        # Compiled code is recognised by time and size, and both may be equal.
        for compiled in path.parent.glob(f"__pycache__/{path.stem}.*"):
            compiled.unlink()

    def tried(self, find: Find, limit_s: float, *, is_searching: bool) -> Outcome:
        """Run a suite in the copy as it is now. If `is_searching`, look at further seeds of the simulator as well."""
        if find.suite == "simulate":
            mix, seed = find.seed
            found = self._seeds(mix, seed, 1, limit_s)
            if not is_searching or found.where or found.trouble:
                return found
            rest = self._seeds(mix, 0, SEEDS_MAX, limit_s)
            return Outcome(where=rest.where, text=rest.text, took_s=found.took_s + rest.took_s, trouble=rest.trouble)
        return self._tests(find.where.split(" "), limit_s)

    def _seeds(self, mix: str, first: int, count: int, limit_s: float) -> Outcome:
        command = [sys.executable, "-m", "tests.mutants.seeds", mix, "--from", str(first), "--seeds", str(count)]
        began = time.monotonic()
        done = self._run(command, limit_s)
        took_s = time.monotonic() - began
        if (match := _SEED.search(done.stdout)) is not None:
            return Outcome(where=f"{mix} {match[1]}", text=match[2], took_s=took_s)
        if done.returncode in (0, _CUT):
            return Outcome(took_s=took_s)
        return Outcome(took_s=took_s, trouble=_end(done))

    def _tests(self, arguments: list[str], limit_s: float) -> Outcome:
        options = ["-x", "-q", "--tb=line", "-rfE", "-p", "no:cacheprovider", f"--timeout={limit_s / 4:.0f}"]
        began = time.monotonic()
        done = self._run([sys.executable, "-m", "pytest", *options, *arguments], limit_s)
        took_s = time.monotonic() - began
        text = done.stdout + done.stderr
        if done.returncode == 0:
            return Outcome(took_s=took_s)
        if (match := _FAILED.search(text)) is not None:
            return Outcome(where=match[1], text=text[match.start() :].partition("\n")[0], took_s=took_s)
        if done.returncode == _CUT or _TIMED_OUT.search(text) is not None:
            return Outcome(where=" ".join(arguments), text="it does not end", took_s=took_s)
        return Outcome(took_s=took_s, trouble=_end(done))

    def _run(self, command: list[str], limit_s: float) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                command,
                cwd=self.root,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            said: str | bytes | None = expired.stdout
            text = said.decode(errors="replace") if isinstance(said, bytes) else said or ""
            return subprocess.CompletedProcess(command, _CUT, text, f"took more than {limit_s} s")


_CUT: Final = -999  # the exit code of a suite that took too long


def _end(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit code {done.returncode}: {(done.stderr or done.stdout).strip()[-2000:]}"
