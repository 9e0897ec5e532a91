"""The digest of a deployment: the same for the same code in every process, and another one for other code. A process
whose files were replaced since it read them has a digest that no new process has."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure import Engine, step, workflow
from perdure.kernel.fingerprints import KEPT_MAX, may_fit, tried_too
from perdure.models.common import deployment
from perdure.models.common.deployment import Deployment

PROGRAM = """
import os, sys
import helpers, package
from perdure.models.common.deployment import DEPLOYMENT
{extra}
print(DEPLOYMENT.digest())
"""


class Program:
    """A program in a folder, with a module beside it, a package and an installed distribution."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.write("helpers.py", "A = 1")
        self.write("later.py", "A = 1")
        self.write("package/__init__.py", "A = 1")
        self.write("package/later.py", "A = 1")
        self.write("site/listed/__init__.py", "A = 1")
        self.write("site/listed-1.0.dist-info/RECORD", "listed/__init__.py,sha256=abc,5\n")
        self.write("site/unlisted.py", "A = 1")
        self.write("site/another/__init__.py", "A = 1")

    def write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def digest(self, extra: str = "", folder: Path | None = None) -> str:
        folder = folder or self.folder
        paths = [str(folder), str(folder / "site"), *sys.path]
        environment = {"PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
        # The program is no file, so that it can differ without being another deployment.
        command = [sys.executable, "-c", PROGRAM.format(extra=extra)]
        done = subprocess.run(command, env=environment, cwd="/", capture_output=True, text=True, check=True)
        return done.stdout.strip()


@pytest.fixture
def program(tmp_path: Path) -> Program:
    return Program(tmp_path / "one" / "app")


def test_it_is_the_same_in_every_process_wherever_the_files_are(program: Program, tmp_path: Path) -> None:
    assert program.digest() == program.digest("import package.later, later")
    assert program.digest() == Program(tmp_path / "two" / "app").digest()


@pytest.mark.parametrize(
    "name", ["helpers.py", "later.py", "package/__init__.py", "package/later.py", "site/listed-1.0.dist-info/RECORD"]
)
def test_it_changes_with_every_file(name: str, program: Program) -> None:
    before = program.digest()
    program.write(name, "A = 2")
    assert program.digest() != before


def test_what_is_installed_without_a_list_of_files_counts_once_it_is_loaded(program: Program) -> None:
    use = "import another, unlisted"
    before = program.digest(use)
    for name in ("site/another/__init__.py", "site/unlisted.py"):
        program.write(name, "A = 2")
        before, after = program.digest(use), before
        assert before != after


def test_a_process_whose_files_were_replaced_is_not_taken_for_one_that_has_read_them(program: Program) -> None:
    before = program.digest()
    path = str(program.folder / "helpers.py")
    replaced = program.digest(f"open({path!r}, 'w').write('A = 2')")
    assert program.digest() not in (before, replaced)


def test_the_digest_stays_that_of_the_files_that_were_read(program: Program) -> None:
    path = str(program.folder / "helpers.py")
    before = program.digest()
    assert program.digest(f"DEPLOYMENT.digest(); open({path!r}, 'w').write('A = 2')") == before


def test_a_link_that_points_to_another_release_since_is_noticed(program: Program, tmp_path: Path) -> None:
    other = Program(tmp_path / "two" / "app")
    other.write("helpers.py", "A = 2")
    current = tmp_path / "current"
    current.symlink_to(program.folder)
    turn = f"os.unlink({str(current)!r}); os.symlink({str(other.folder)!r}, {str(current)!r})"
    turned = program.digest(turn, folder=current)
    assert turned != program.digest(folder=current)


def test_a_package_that_is_loaded_later_counts_from_then_on(program: Program) -> None:
    before = program.digest()
    assert program.digest("DEPLOYMENT.digest(); import another") != before


async def test_it_is_not_taken_before_a_run_is_blocked(monkeypatch: pytest.MonkeyPatch) -> None:
    @step
    async def work() -> str:
        return "done"

    @workflow
    async def flow() -> str:
        return await work()

    untaken = Deployment()
    monkeypatch.setattr(deployment, "DEPLOYMENT", untaken)
    monkeypatch.setattr("perdure.runtime.DEPLOYMENT", untaken)
    async with Engine("memory://", workflows=[flow]) as engine:
        assert await engine.run(flow()) == "done"
        await engine.recover()
    assert not untaken.is_known


def test_a_hold_keeps_a_bounded_number_of_fingerprints() -> None:
    tried = ""
    for number in range(KEPT_MAX + 5):
        assert may_fit(tried or "none", f"f{number}")
        tried = tried_too(tried, f"f{number}")
        assert not may_fit(tried, f"f{number}")
    assert len(tried.split()) == KEPT_MAX
    assert tried_too(tried, "f60").split()[-1] == "f60"
    assert tried_too(tried, "") == ""
    assert not may_fit("", "f")
