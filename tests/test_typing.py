"""What must not type-check, and which types must flow: tests/typing/*.py, read by mypy and pyright, never run.

A line that must be refused ends in `# E: <part of mypy's message>`; no other line may be. Pyright words its messages
its own way, so only its lines are compared. Types that must flow are said with `assert_type`.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CASES = sorted((ROOT / "tests" / "typing").glob("*.py"))
MARK = re.compile(r"#\s*E:\s*(?P<part>.+?)\s*$")

Messages = dict[int, list[str]]  # by line


def expected(path: Path) -> dict[int, str]:
    marks = ((number, MARK.search(line)) for number, line in enumerate(path.read_text().splitlines(), 1))
    return {number: mark["part"] for number, mark in marks if mark}


def checker(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode in (0, 1), f"{command[0]} broke: {done.stdout}{done.stderr}"
    return done.stdout


def mypy_errors(paths: list[Path], *options: str) -> dict[Path, Messages]:
    errors: dict[Path, Messages] = {path: {} for path in paths}
    for line in checker("mypy", "--output=json", "--no-error-summary", *options, *map(str, paths)).splitlines():
        found = json.loads(line)
        path = (ROOT / found["file"]).resolve()
        if found["severity"] == "error" and path in errors:  # errors of what the cases import show in `make types`
            errors[path].setdefault(found["line"], []).append(found["message"])
    return errors


def pyright_errors(paths: list[Path], folder: Path) -> dict[Path, Messages]:
    """Pyright never looks at what the project excludes, so it gets copies, in a project of their own."""
    config = {"extraPaths": [str(ROOT / "src")], "pythonVersion": "3.11", "typeCheckingMode": "standard"}
    (folder / "pyrightconfig.json").write_text(json.dumps(config))
    copies = {Path(shutil.copy(path, folder / path.name)).resolve(): path for path in paths}
    answer = json.loads(
        checker("pyright", "--outputjson", "--pythonpath", sys.executable, "--project", str(folder)),
    )
    assert answer["summary"]["filesAnalyzed"] == len(paths)
    errors: dict[Path, Messages] = {path: {} for path in paths}
    for found in answer["generalDiagnostics"]:
        if found["severity"] == "error":
            line = found["range"]["start"]["line"] + 1
            errors[copies[Path(found["file"]).resolve()]].setdefault(line, []).append(found["message"])
    return errors


def disagreements(path: Path, errors: Messages, *, compare_messages: bool) -> list[str]:
    """Every line where a checker and the marks differ."""
    marks = expected(path)
    wrong = [
        f"{path.name}:{line} must be an error ({marks[line]}) and is none" for line in marks.keys() - errors.keys()
    ]
    wrong += [f"{path.name}:{line} must be fine: {errors[line]}" for line in errors.keys() - marks.keys()]
    if compare_messages:
        wrong += [
            f"{path.name}:{line} must say {marks[line]!r}: {errors[line]}"
            for line in marks.keys() & errors.keys()
            if not any(marks[line] in message for message in errors[line])
        ]
    return sorted(wrong)


@pytest.fixture(scope="module")
def by_mypy() -> dict[Path, Messages]:
    return mypy_errors(CASES)


@pytest.fixture(scope="module")
def by_pyright(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, Messages]:
    if importlib.util.find_spec("pyright") is None:
        pytest.skip("pyright is not installed")
    return pyright_errors(CASES, tmp_path_factory.mktemp("pyright"))


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_mypy_refuses_exactly_the_marked_lines(path: Path, by_mypy: dict[Path, Messages]) -> None:
    wrong = disagreements(path, by_mypy[path], compare_messages=True)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_pyright_refuses_exactly_the_marked_lines(path: Path, by_pyright: dict[Path, Messages]) -> None:
    wrong = disagreements(path, by_pyright[path], compare_messages=False)
    assert not wrong, "\n".join(wrong)


SAMPLE = """\
from typing import assert_type

right = int("1")
assert_type(right, int)
refused: int = "1"  # E: expression has type "str"
worded_otherwise: int = "1"  # E: no such message
missed: int = 1  # E: expression has type "str"
unexpected: int = "1"
assert_type(right, str)
"""


def test_a_checker_and_marks_that_differ_are_told_apart(tmp_path: Path) -> None:
    folder = tmp_path / "pyright"
    folder.mkdir()
    path = (tmp_path / "sample.py").resolve()
    path.write_text(SAMPLE)

    def lines(errors: Messages, *, compare_messages: bool) -> list[int]:
        return [
            int(text.split(":")[1].split()[0])
            for text in disagreements(path, errors, compare_messages=compare_messages)
        ]

    # With a cache of its own: mypy would remember the sample of an earlier run, at that run's path.
    by_mypy = mypy_errors([path], f"--cache-dir={tmp_path / 'cache'}")
    assert lines(by_mypy[path], compare_messages=True) == [6, 7, 8, 9]
    if importlib.util.find_spec("pyright") is not None:
        assert lines(pyright_errors([path], folder)[path], compare_messages=False) == [7, 8, 9]
