"""Which store, and what else a project says once and for all: options, the environment, perdure.toml."""

from __future__ import annotations

import getpass
import importlib
import os
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.failures import Code, Refusal
from perdure.cli.trust import read_trusted

if TYPE_CHECKING:
    from perdure.ports import Codec

FILE = "perdure.toml"
NAMED_BY = "PERDURE_CONFIG"
_ROOTS = (".git", ".hg")
_KEYS = {"store": str, "codec": str, "modules": list, "serve": dict}
_FORMS = "sqlite:///shop.db, sqlite:////srv/shop.db or postgresql://user@host/database"


class Settings:
    """What the project's file says. It is read when it is first needed.

    The file names modules to import, so it is only taken from somebody who may run code as this user: it and its
    folders must be owned by this user or root and writable by nobody else (see `read_trusted`), and it is looked for no
    further than the project goes.
    """

    def __init__(self, store: str | None) -> None:
        self._given = store
        self._found: tuple[Path, dict[str, Any]] | None = None

    @property
    def store(self) -> str:
        """The URL of the store. Raises Refusal if nothing names one."""
        if self._given:
            return self._given
        path, found = self._project()
        if "store" not in found:
            where = f"{path} has no `store`" if found or path.exists() else f"there is no {FILE} in this project"
            raise Refusal(
                f"no store is named, and {where}",
                f'use --store URL, set PERDURE_STORE, or put `store = "URL"` into {FILE}; a URL is {_FORMS}',
            )
        return _beside(path, found["store"])

    @property
    def names_store(self) -> bool:
        """Whether something names a store."""
        return bool(self._given) or "store" in self._project()[1]

    @property
    def modules(self) -> list[str]:
        """The modules with workflows that the project's file names."""
        modules: list[str] = self._project()[1].get("modules", [])
        return modules

    @property
    def codec(self) -> Codec | None:
        """What the engines' payloads go through, if the project's file names it."""
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
                f"the codec {name!r} of {path} cannot be had: {error}", 'write it as codec = "package.module:name"'
            ) from error
        codec: Codec = made() if isinstance(made, type) else made
        return codec

    @property
    def serve(self) -> dict[str, Any]:
        """What the project's file says about `perdure serve`."""
        found: dict[str, Any] = self._project()[1].get("serve", {})
        return found

    @property
    def file(self) -> Path:
        """The project's file, or where it would be."""
        return self._project()[0]

    @property
    def folder(self) -> Path:
        """Where the project's file is, or else where we are."""
        return self._project()[0].parent

    def _project(self) -> tuple[Path, dict[str, Any]]:
        if self._found is None:
            self._found = _search()
        return self._found


def actor() -> str:
    """Who does it, for the audit trail."""
    try:
        return f"cli:{getpass.getuser()}"
    except (KeyError, OSError):
        return "cli"


def see_modules(folder: Path) -> None:
    """Have modules of a folder found, as `python FILE` does with those beside the file."""
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _search() -> tuple[Path, dict[str, Any]]:
    """Find the project's file: the one that PERDURE_CONFIG names, else the nearest from here upwards.

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
    """The folders in which the file is looked for, from here upwards."""
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
    except RuntimeError:  # Nothing says where it is.
        return None


def _read(path: Path, above: Sequence[Path] | None) -> dict[str, Any]:
    """What the file says. It is trusted if `above` is None, else it is checked, with the folders above its own."""
    try:
        if above is None:
            text = path.read_text("utf-8")
        else:
            text = read_trusted(path, above, f"name the file yourself: {NAMED_BY}={path}")
        found = tomllib.loads(text)
    except (OSError, ValueError) as error:
        raise Refusal(f"{path} cannot be read: {error}") from error
    for key, value in found.items():
        if key not in _KEYS:
            raise Refusal(f"{path} has {key!r}, which means nothing here", f"there are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise Refusal(f"{key!r} in {path} is {value!r}, which is no {_KEYS[key].__name__}")
    return found


def _beside(path: Path, url: str) -> str:
    """A relative file is beside the project's file, wherever in the project the command is used."""
    prefix = "sqlite:///"
    name = url.removeprefix(prefix)
    if name == url or not name or name.startswith("/"):
        return url
    return f"{prefix}{path.parent / name}"


def file_of(url: str) -> Path | None:
    """The file of a store on SQLite."""
    prefix = "sqlite:///"
    return Path(url.removeprefix(prefix)) if url.startswith(prefix) else None


def shown(url: str) -> str:
    """A store's URL without its password, or whatever else stands before the host."""
    scheme, separator, rest = url.partition("://")
    if scheme in ("postgres", "postgresql"):
        return f"{scheme}{separator}{rest.rpartition('@')[2].partition('?')[0]}"
    return url


def not_in_memory(url: str) -> None:
    """Raises Refusal for a store that nobody else could see."""
    if url.startswith("memory:"):
        raise Refusal(
            "a store in memory is gone with its process, and no other one can see it",
            f"use a store on disk: {_FORMS}",
            code=Code.USAGE,
        )


__all__ = ["FILE", "Settings", "actor", "file_of", "not_in_memory", "see_modules", "shown"]
