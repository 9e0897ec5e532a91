"""Whose perdure.toml is read: it names modules to import, so nobody else may have written it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perdure.cli.failures import Refusal
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


def test_a_file_in_a_folder_that_everybody_may_write_is_refused(project: Path) -> None:
    settings_file(project)
    project.chmod(0o1777)
    with pytest.raises(Refusal, match=f"others may write to {project}"):
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


def test_a_new_project_can_be_read_whatever_the_umask(project: Path) -> None:
    subprocess.run([sys.executable, "-m", "perdure", "new", "shop"], umask=0o002, check=True, capture_output=True)
    assert (project / "shop" / "workflows.py").stat().st_mode & 0o777 == 0o664
    assert (project / "shop" / "perdure.toml").stat().st_mode & 0o777 == 0o644
