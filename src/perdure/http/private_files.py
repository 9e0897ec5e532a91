"""Checks of files that contain secrets: keys, and secrets of OpenID Connect clients."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from perdure.errors import Misuse


def check_private(path: Path, what: str) -> None:
    """Raise Misuse if another user can read the file or could have written it.

    A file that belongs to root may be readable for its group, because systems give secrets to a service in this way.
    Raises OSError if the file does not exist.
    """
    if sys.platform == "win32":
        return
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise Misuse(f"{what} {path} belongs to another user (uid {found.st_uid}); change its owner with chown")
    allowed = stat.S_IRGRP if found.st_uid == 0 else 0
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed:
        raise Misuse(
            f"other users may read or write {what} {path} (mode {stat.S_IMODE(found.st_mode):o}); chmod 600 {path}"
        )
    folder = path.absolute().parent
    if folder.stat().st_mode & stat.S_IWOTH and not folder.stat().st_mode & stat.S_ISVTX:
        raise Misuse(f"everybody may write to {folder}, where {what} {path.name} is; chmod o-w {folder}")


__all__ = ["check_private"]
