"""The deployment: a digest of all code that this process may run, both the program's own code and installed packages.

A blocked run is tried again when the code has changed. The fingerprint of a workflow covers only the functions that the
workflow names. The change that helps may be elsewhere: in a function that is called through its module, in a constant,
a class or a dependency. So the fingerprint of a hold also covers the deployment. In doubt, the code counts as changed:
a run that is tried again in vain costs one replay, but a run that is not tried waits for ever.

The digest covers the contents of the directory trees of all loaded packages, of the files beside modules that are in no
package, and of the file lists (RECORD) of installed distributions. It does not depend on where the files are, or on
which modules of a package are loaded so far. It is computed when it is first needed: when a run is blocked.

Files may have been replaced since this process read them. In that case this process does not run the new files, and its
digest differs from the digest of a process that starts with them.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Iterable
from importlib.machinery import all_suffixes
from pathlib import Path
from typing import Any, Final, Protocol

_STARTED_AT: Final = time.time()
_SUFFIXES: Final = tuple(all_suffixes())
_FILES_MAX: Final = 10_000  # of one package. Of a larger package, only the loaded modules count
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
_LISTS: Final = ("RECORD", "installed-files.txt", "PKG-INFO")  # of an installed distribution, the best first
_REPLACED: Final = b"replaced"


class Deployment:
    """The code of one process. Used by several threads."""

    def __init__(self, started_at: float = _STARTED_AT) -> None:
        self._started_at = started_at
        self._lock = threading.Lock()
        self._modules = -1  # how many were loaded when the digest was taken
        self._parts: dict[str, bytes] = {}  # digests, by the name of a package or module
        self._installed: set[Path] | None = None  # packages and modules that a distribution lists
        self._digest = ""

    @property
    def is_known(self) -> bool:
        """Whether the digest was taken before."""
        return bool(self._digest)

    def digest(self) -> str:
        """Return the digest. It changes only when another package is loaded, because that package may help."""
        if self._modules != len(sys.modules):
            with self._lock:
                self._take()
        return self._digest

    def fingerprint(self, code: str) -> str:
        """Return the fingerprint of this code in this deployment."""
        return hashlib.sha256(f"{code} {self.digest()}".encode()).hexdigest()[:16]

    def _take(self) -> None:
        self._modules = len(sys.modules)
        if self._installed is None:
            self._parts[""], self._installed = self._listed()
        for name, module in list(sys.modules.items()):
            if "." not in name and name not in self._parts and name not in sys.stdlib_module_names:
                self._parts[name] = self._part(name, module, self._installed)
        whole = hashlib.sha256(sys.version.encode())
        for part in sorted(set(self._parts.values())):  # Modules beside each other have the same digest.
            whole.update(part)
        self._digest = whole.hexdigest()

    def _listed(self) -> tuple[bytes, set[Path]]:
        """Return a digest of the file lists of all installed distributions, and the paths that these lists name."""
        digests: list[tuple[str, bytes]] = []
        names: set[Path] = set()
        for place in dict.fromkeys(Path(place).absolute() for place in sys.path):
            for found in sorted(_inside(place)):
                if not found.name.endswith((".dist-info", ".egg-info")):
                    continue
                path = next((found / name for name in _LISTS if (found / name).is_file()), None)
                if path is None:
                    continue
                digests.append((found.name, self._read(path)))
                if path.name == "RECORD":
                    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
                    tops = {line.partition(",")[0].partition("/")[0] for line in lines}
                    names |= {place / top for top in tops}
        return _joined(digests), names

    def _part(self, name: str, module: Any, installed: set[Path]) -> bytes:
        """Return the digest of a package or a module; empty if a file list covers it, or if it has no files."""
        places, path = _places(module), _file(module)
        if not places:
            return b"" if path is None or path in installed else self._beside(path, installed)
        digests: list[tuple[str, bytes]] = []
        for place in places:
            if place in installed:
                continue
            found = _tree(place)
            if found is None:
                loaded = [_file(one) for key, one in list(sys.modules.items()) if key.startswith(f"{name}.")]
                found = [path for path in loaded if path is not None and place in path.parents]
            digests.append((name, self._over(place, found)))
        return _joined(digests)

    def _beside(self, path: Path, installed: set[Path]) -> bytes:
        """Return the digest of a module in no package, and of the modules beside it, which it may load later."""
        found = [one for one in _inside(path.parent) if one.name.endswith(_SUFFIXES) and one not in installed]
        return self._over(path.parent, found if path in found and len(found) <= _FILES_MAX else [path])

    def _over(self, place: Path, paths: Iterable[Path]) -> bytes:
        digests = [(str(path.relative_to(place)), self._read(path)) for path in sorted(paths) if path.is_file()]
        if any(map(self._is_turned, (place, *place.parents))):
            digests.append(("", _REPLACED))
        return _joined(digests)

    def _is_turned(self, place: Path) -> bool:
        """Return whether a path is a symbolic link that was changed since this process began.

        A deployment may change a link that leads to the current release. The files behind the link may be older.
        """
        try:
            return place.is_symlink() and place.lstat().st_ctime > self._started_at
        except OSError:
            return False

    def _read(self, path: Path) -> bytes:
        """Return the digest of a file. It is marked if the file may have been replaced since this process read it."""
        try:
            state = path.stat()
            is_newer = max(state.st_mtime, state.st_ctime) > self._started_at
            return hashlib.sha256(path.read_bytes()).digest() + (_REPLACED if is_newer else b"")
        except OSError as error:
            return repr(error.errno).encode()


def _joined(digests: Iterable[tuple[str, bytes]]) -> bytes:
    whole, is_empty = hashlib.sha256(), True
    for name, digest in digests:
        whole.update(os.fsencode(name) + b"\0" + digest)
        is_empty = False
    return b"" if is_empty else whole.digest()


def _inside(place: Path) -> list[Path]:
    try:
        return list(place.iterdir())
    except OSError:
        return []


def _tree(place: Path) -> list[Path] | None:
    """Return the files with code below a directory; None if there are too many."""
    found: list[Path] = []
    for at, places, files in os.walk(place):
        inner = [one for one in places if not one.startswith(".") and one not in _SKIPPED]
        places[:] = [one for one in inner if not Path(at, one, "pyvenv.cfg").exists()]
        found += (Path(at, name) for name in files if name.endswith(_SUFFIXES))
        if len(found) > _FILES_MAX:
            return None
    return found


def _places(module: Any) -> list[Path]:
    """Return the directories of a package. The values of sys.modules may be any objects."""
    try:
        places = [Path(place).absolute() for place in getattr(module, "__path__", ()) if isinstance(place, str)]
    except Exception:  # noqa: BLE001 - attributes that a module makes up
        return []
    return [place for place in places if place.is_dir()]


def _file(module: Any) -> Path | None:
    """Return the file that a module was read from: its own, or the archive that contains it."""
    try:
        archive = getattr(getattr(module, "__loader__", None), "archive", None)
        path = archive if isinstance(archive, str) else getattr(module, "__file__", None)
    except Exception:  # noqa: BLE001 - attributes that a module makes up
        return None
    return Path(path).absolute() if isinstance(path, str) else None


DEPLOYMENT: Final = Deployment()


class HasFingerprint(Protocol):
    """A workflow of any model."""

    @property
    def fingerprint(self) -> Any: ...  # a text; workflows have it as a cached property


def deployed(workflow: HasFingerprint) -> str:
    """Return the fingerprint of a workflow together with the code that this process runs."""
    return DEPLOYMENT.fingerprint(str(workflow.fingerprint))


def offered(workflow: HasFingerprint) -> str:
    """Return the same as `deployed` if the digest is known, which is so once a run was blocked. Before that, return
    ""."""
    return deployed(workflow) if DEPLOYMENT.is_known else ""


__all__ = ["DEPLOYMENT", "Deployment", "deployed", "offered"]
