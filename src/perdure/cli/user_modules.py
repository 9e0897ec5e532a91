"""The modules of users. They are found and imported. For MODULE:NAME, the named object is returned."""

from __future__ import annotations

import importlib
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from perdure.cli.errors import Code, Refusal
from perdure.cli.settings import Settings, see_modules


def load(target: str, settings: Settings) -> tuple[ModuleType, Any]:
    """Import a module. Return the module, and the attribute that `MODULE:attribute` names. Without an attribute, return
    None for it.

    Modules are searched for in the current folder, beside perdure.toml, and on Python's path. Raises Refusal.
    """
    name, _, attribute = target.partition(":")
    if name.endswith(".py"):
        path = Path(name).resolve()
        see_modules(path.parent)
        name = path.stem
    see_modules(settings.folder)
    see_modules(Path.cwd())
    module = _imported(name)
    found: Any = module
    for part in attribute.split(".") if attribute else ():
        if not hasattr(found, part):
            raise Refusal(
                f"module {name!r} has no {attribute!r}", f"the module is {module.__file__}", code=Code.NOT_FOUND,
                kind="attribute_not_found",
            )  # fmt: skip
        found = getattr(found, part)
    return module, found if attribute else None


def _imported(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise _broken(name, error) from error
        raise Refusal(
            f"there is no module {name!r}",
            "write its name as in an import (package.module); it is looked for in the current folder, beside"
            " perdure.toml, and among installed packages",
            code=Code.NOT_FOUND,
            kind="module_not_found",
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _broken(name: str, error: BaseException) -> Refusal:
    """Return the refusal for a module that raises when it is imported. It has the stack of the module's own code."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename != __file__ and "importlib" not in frame.filename
    ]
    lines = [*traceback.format_list(frames), *traceback.format_exception_only(error)]
    return Refusal(f"cannot import module {name!r}:\n{''.join(lines).rstrip()}", code=Code.FAILED, kind="module_broken")


__all__ = ["load"]
