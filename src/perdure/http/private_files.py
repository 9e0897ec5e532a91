"""Files with secrets in them: keys, and secrets of clients."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from perdure.errors import Misuse


def check_private(path: Path, what: str) -> None:
    """Raise Misuse for a file that somebody else may read or could have written. A group may read one of root's, which
    is how systems hand secrets to a service. Raises OSError if there is none."""
    if sys.platform == "win32":
        return
    found = path.stat()
    if found.st_uid not in (0, os.geteuid()):
        raise Misuse(f"{what} {path} belongs to another user (uid {found.st_uid}); chown it")
    allowed = stat.S_IRGRP if found.st_uid == 0 else 0
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO) & ~allowed:
        raise Misuse(f"others may use {what} {path} (mode {stat.S_IMODE(found.st_mode):o}); chmod 600 {path}")
    folder = path.absolute().parent
    if folder.stat().st_mode & stat.S_IWOTH and not folder.stat().st_mode & stat.S_ISVTX:
        raise Misuse(f"everybody may write to {folder}, where {what} {path.name} is; chmod o-w {folder}")


__all__ = ["check_private"]
