"""Whose perdure.toml is read: it names modules to import, so nobody else may have written it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.errors import Refusal
from perdure.cli.settings import Settings

STORE = 'store = "sqlite:///shop.db"\n'
NOBODY = 65_534


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PERDURE_CONFIG", raising=False)
    folder = tmp_path / "project"
    folder.mkdir(mode=0o755)
    monkeypatch.chdir(folder)
    return folder


def settings_file(folder: Path, mode: int = 0o644) -> Path:
    path = folder / "perdure.toml"
    path.write_text(STORE)
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o664, 0o646, 0o620])
def test_a_file_that_others_may_write_is_refused_with_the_reason(project: Path, mode: int) -> None:
    path = settings_file(project, mode)
    with pytest.raises(Refusal, match=f"others may write to {path}") as refused:
        _ = Settings(None).store
    assert refused.value.todo.startswith(f"chmod go-w {path}")
    path.chmod(0o644)
    assert Settings(None).store.endswith("/shop.db")


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777, 0o1777, 0o1775, 0o2775])
def test_a_file_in_a_folder_that_others_may_write_is_refused(project: Path, mode: int) -> None:
    """Also with the sticky bit: modules of this folder are imported, and others could add some."""
    settings_file(project)
    project.chmod(mode)
    with pytest.raises(Refusal, match=f"others may write to {project},") as refused:
        _ = Settings(None).store
    assert refused.value.todo.startswith(f"chmod go-w {project}")
    project.chmod(0o755)
    assert Settings(None).store.endswith("/shop.db")


@pytest.mark.parametrize("mode", [0o775, 0o777])
def test_a_folder_above_that_others_may_write_is_refused_unless_it_is_sticky(
    project: Path, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    """Others could put a folder of theirs, with another file of ours in it, in the place of the project's."""
    inner = project / "a" / "b"
    inner.mkdir(parents=True)
    for folder in (inner, inner.parent):
        folder.chmod(0o755)
    settings_file(inner)
    monkeypatch.chdir(inner)
    project.chmod(mode)
    with pytest.raises(Refusal, match=f"others may write to {project},"):
        _ = Settings(None).store
    project.chmod(mode | 0o1000)  # There, nobody can move what is not theirs.
    assert Settings(None).store.endswith("/shop.db")


def test_folders_above_the_end_of_the_search_are_not_looked_at(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository = project / "repository"
    (repository / ".git").mkdir(parents=True)
    repository.chmod(0o755)
    settings_file(repository)
    monkeypatch.chdir(repository)
    project.chmod(0o777)
    assert Settings(None).store.endswith("/shop.db")
    monkeypatch.setenv("HOME", str(repository))
    (repository / ".git").rmdir()
    assert Settings(None).store.endswith("/shop.db")


def test_folders_between_here_and_the_file_may_be_anybodys(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file(project)
    below = project / "uploads"
    below.mkdir()
    below.chmod(0o777)
    monkeypatch.chdir(below)
    assert Settings(None).store.endswith("/shop.db")


def test_a_folder_of_another_user_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns a folder above can move the project, and put another in its place."""
    inner = project / "inner"
    inner.mkdir(mode=0o755)
    settings_file(inner)
    monkeypatch.chdir(inner)
    if os.geteuid() == 0:
        os.chown(project, NOBODY, NOBODY)
        expected = f"{project} belongs to another user"
    else:
        monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
        expected = "belongs to another user"
    with pytest.raises(Refusal, match=expected):
        _ = Settings(None).store


def test_the_file_behind_a_link_is_what_is_looked_at(project: Path, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    target = settings_file(shared)
    (project / "perdure.toml").symlink_to(target)
    assert Settings(None).store.endswith("/shop.db")
    shared.chmod(0o777)
    with pytest.raises(Refusal, match=f"others may write to {shared},"):
        _ = Settings(None).store


def test_a_file_of_another_user_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = settings_file(project)
    if os.geteuid() == 0:
        os.chown(path, NOBODY, NOBODY)
    monkeypatch.setattr(os, "geteuid", lambda: NOBODY - 1)
    with pytest.raises(Refusal, match="belongs to another user"):
        _ = Settings(None).store


def test_a_file_that_the_user_names_is_read(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = settings_file(project, 0o666)
    monkeypatch.setenv("PERDURE_CONFIG", str(path))
    assert Settings(None).store.endswith("/shop.db")


@pytest.mark.parametrize("mark", [".git", ".hg"])
def test_the_search_ends_at_the_root_of_the_repository(
    project: Path, monkeypatch: pytest.MonkeyPatch, mark: str
) -> None:
    settings_file(project)
    below = project / "repository" / "package"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert Settings(None).names_store
    (below.parent / mark).mkdir()
    assert not Settings(None).names_store
    settings_file(below.parent)
    assert Settings(None).names_store


def test_the_search_ends_at_the_home_folder(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings_file(project)
    home = project / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    assert not Settings(None).names_store
    settings_file(home)
    assert Settings(None).names_store


def test_a_new_project_can_be_read_whatever_the_umask(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subprocess.run([sys.executable, "-m", "perdure", "new", "in/shop"], umask=0o002, check=True, capture_output=True)
    assert (project / "in" / "shop" / "workflows.py").stat().st_mode & 0o777 == 0o664
    assert (project / "in" / "shop").stat().st_mode & 0o777 == 0o755
    monkeypatch.chdir(project / "in" / "shop")
    assert Settings(None).store.endswith("/shop.db")
    assert (project / "in" / "shop" / "perdure.toml").stat().st_mode & 0o777 == 0o644
