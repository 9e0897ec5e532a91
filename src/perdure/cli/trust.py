"""Trusted files: files that nobody except this user and root can change.

perdure.toml names modules to import, and Python looks for the modules in the folder of that file. So everybody who can
change the file, add a file to its folder, or replace its folder can run code as this user.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable
from pathlib import Path

from perdure.cli.errors import Refusal

_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH


def read_trusted(path: Path, above: Iterable[Path], hint: str) -> str:
    """Return the text of a file that only this user and root could have written.

    Others must not be able to write to the file's own folder, because they could add modules to it. `above` are the
    folders above it that were searched. Others may be able to write to a folder of `above` if it has the sticky bit.
    Then they cannot move or delete files and folders that they do not own. `hint` says what else the user can do.
    Raises Refusal. Raises OSError.
    """
    with path.open("rb") as opened:
        # The check uses the open file. So nobody can replace the file between the check and the reading.
        if sys.platform != "win32":
            _check(path, os.fstat(opened.fileno()), hint)
            own = {path.parent, path.resolve().parent}
            for folder in own:
                _check(folder, folder.stat(), hint)
            for folder in above:
                found = folder.stat()
                _check(folder, found, hint, may_others_add=bool(found.st_mode & stat.S_ISVTX))
        return opened.read().decode("utf-8")


def _check(path: Path, found: os.stat_result, hint: str, *, may_others_add: bool = False) -> None:
    if found.st_uid not in (0, os.geteuid()):
        raise _untrusted(f"{path} belongs to another user (uid {found.st_uid})", f"chown it, or {hint}")
    if found.st_mode & _BY_OTHERS and not may_others_add:
        raise _untrusted(f"others may write to {path}", f"chmod go-w {path}, or {hint}")


def _untrusted(why: str, todo: str) -> Refusal:
    return Refusal(f"{why}, and the file names code to import", todo, kind="untrusted_file")


__all__ = ["read_trusted"]
