"""Which store, and what else a project says once and for all: options, the environment, perdure.toml."""

from __future__ import annotations

import getpass
import importlib
import sys
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perdure.cli.failures import Code, Refusal

if TYPE_CHECKING:
    from perdure.ports import Codec

FILE = "perdure.toml"
_KEYS = {"store": str, "codec": str, "modules": list}
_FORMS = "sqlite:///shop.db, sqlite:////srv/shop.db or postgresql://user@host/database"


class Settings:
    """What the project's file says, looked for from here upwards when it is first needed."""

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
            where = f"{path} has no `store`" if found or path.exists() else f"there is no {FILE} here or above"
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
    here = Path.cwd()
    for folder in (here, *here.parents):
        path = folder / FILE
        if path.is_file():
            return path, _read(path)
    return here / FILE, {}


def _read(path: Path) -> dict[str, Any]:
    try:
        found = tomllib.loads(path.read_text("utf-8"))
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
