"""The settings of a project: the store and more. They come from options, from the environment, and from
perdure.toml.
"""

from __future__ import annotations

import getpass
import importlib
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.errors import Code, Refusal
from perdure.cli.trust import read_trusted

if TYPE_CHECKING:
    from perdure.ports import Codec

FILE = "perdure.toml"
NAMED_BY = "PERDURE_CONFIG"
_ROOTS = (".git", ".hg")
_KEYS = {"store": str, "codec": str, "modules": list, "serve": dict}
_FORMS = "sqlite:///shop.db, sqlite:////srv/shop.db or postgresql://user@host/database"


class Settings:
    """The settings of perdure.toml. The file is read when a setting is first needed.

    The file names modules that are imported. So it is used only if nobody except this user and root can write it. This
    user or root must own the file and its folders, and others must not be able to write to them (see `read_trusted`).
    The search for the file stays within the project.
    """

    def __init__(self, store: str | None) -> None:
        self._given = store
        self._found: tuple[Path, dict[str, Any]] | None = None

    @property
    def store(self) -> str:
        """Return the URL of the store. Raises Refusal if no setting names a store."""
        if self._given:
            return self._given
        path, found = self._project()
        if "store" not in found:
            where = f"{path} has no `store`" if found or path.exists() else f"there is no {FILE} in this project"
            raise Refusal(
                f"no store is named: {where}",
                f'use --store URL, set PERDURE_STORE, or put `store = "URL"` into {FILE}; a URL is {_FORMS}',
            )
        return _beside(path, found["store"])

    @property
    def names_store(self) -> bool:
        """Whether a setting names a store."""
        return bool(self._given) or "store" in self._project()[1]

    @property
    def modules(self) -> list[str]:
        """Return the modules with workflows that the file names."""
        modules: list[str] = self._project()[1].get("modules", [])
        return modules

    @property
    def codec(self) -> Codec | None:
        """Return the codec of payloads that the file names, or None. Raises Refusal."""
        path, found = self._project()
        name = found.get("codec")
        if name is None:
            return None
        module, _, attribute = name.partition(":")
        see_modules(path.parent)
        try:
            made = getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError, ValueError) as error:
            raise Refusal(
                f"cannot import the codec {name!r} of {path}: {error}", 'write it as codec = "package.module:name"'
            ) from error
        codec: Codec = made() if isinstance(made, type) else made
        return codec

    @property
    def serve(self) -> dict[str, Any]:
        """Return the section `serve` of the file."""
        found: dict[str, Any] = self._project()[1].get("serve", {})
        return found

    @property
    def file(self) -> Path:
        """Return the path of the file, or the path where it would be."""
        return self._project()[0]

    @property
    def folder(self) -> Path:
        """Return the folder of the file. If there is no file, return the current folder."""
        return self._project()[0].parent

    def _project(self) -> tuple[Path, dict[str, Any]]:
        if self._found is None:
            self._found = _search()
        return self._found


def actor() -> str:
    """Return the actor for the audit trail, which is this user."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli"


def see_modules(folder: Path) -> None:
    """Let Python find the modules in a folder, as `python FILE` does for the folder of the file."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _search() -> tuple[Path, dict[str, Any]]:
    """Find the file. It is the file that PERDURE_CONFIG names, or else the nearest perdure.toml from the current folder
    upwards.

    The search ends at the root of a repository and at the home folder.
    """
    if named := os.environ.get(NAMED_BY):
        path = Path(named).absolute()
        return path, _read(path, None)
    folders = _searched(Path.cwd())
    for number, folder in enumerate(folders):
        path = folder / FILE
        if path.is_file():
            return path, _read(path, folders[number + 1 :])
    return folders[0] / FILE, {}


def _searched(here: Path) -> list[Path]:
    """Return the folders to search, from `here` upwards."""
    found: list[Path] = []
    home = _home()
    for folder in (here, *here.parents):
        found.append(folder)
        if folder == home or any((folder / mark).exists() for mark in _ROOTS):
            break
    return found


def _home() -> Path | None:
    try:
        return Path.home()
    except RuntimeError:  # The system does not know the home folder.
        return None


def _read(path: Path, above: Sequence[Path] | None) -> dict[str, Any]:
    """Read the file. If `above` is None, the file is trusted without a check. Otherwise the file, its folder, and the
    folders above are checked.
    """
    try:
        if above is None:
            text = path.read_text("utf-8")
        else:
            text = read_trusted(path, above, f"name the file yourself: {NAMED_BY}={path}")
        found = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise Refusal(f"cannot read {path}: {error}") from error
    for key, value in found.items():
        if key not in _KEYS:
            raise Refusal(f"{path} has the unknown key {key!r}", f"the keys are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise Refusal(f"{key!r} in {path} must be a {_KEYS[key].__name__}, not {value!r}")
    return found


def _beside(path: Path, url: str) -> str:
    """Return the URL of a store with an absolute path. A relative path is relative to the folder of perdure.toml."""
    prefix = "sqlite:///"
    name = url.removeprefix(prefix)
    if name == url or not name or name.startswith("/"):
        return url
    return f"{prefix}{path.parent / name}"


def file_of(url: str) -> Path | None:
    """Return the file of an SQLite store. Return None for another kind of store."""
    prefix = "sqlite:///"
    return Path(url.removeprefix(prefix)) if url.startswith(prefix) else None


def shown(url: str) -> str:
    """Return the URL of a store without the user, the password and the parameters."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}"
    return url


def not_in_memory(url: str) -> None:
    """Raise Refusal for a store in memory, because no other process can use it."""
    if url.startswith("memory:"):
        raise Refusal(
            "a store in memory ends with its process, and no other process can use it",
            f"use a store on disk: {_FORMS}",
            code=Code.USAGE,
        )


__all__ = ["FILE", "Settings", "actor", "file_of", "not_in_memory", "see_modules", "shown"]
