"""The deployment: a digest of all code that this process may run. The code is the program's own code and the installed
packages.

A blocked run is tried again when the code has changed. The fingerprint of a workflow covers only those functions that
the workflow names. The change that lets the run go on may be elsewhere. It may be in a function that is called through
its module, in a constant, in a class, or in a dependency. So the fingerprint of a hold also covers the deployment. In
doubt, the code counts as changed. An unnecessary attempt costs only one replay. But without an attempt, the run would
wait forever.

The digest covers three things: the contents of the directories of all loaded packages, the files beside modules that
are in no package, and the file lists (RECORD) of installed distributions. It does not depend on the directory of the
files, or on which modules of a package are loaded so far. It is computed when a run is blocked for the first time.

After this process has read a file, the file may be replaced. Then this process still runs the old file. Its digest
differs from the digest of a process that starts with the new file.
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
_FILES_MAX: Final = 10_000  # files of one package In a larger package, only the loaded modules count.
_SKIPPED: Final = frozenset({"__pycache__", "node_modules", "site-packages"})
# the file lists of an installed distribution, the best first
_LISTS: Final = ("RECORD", "installed-files.txt", "PKG-INFO")
_REPLACED: Final = b"replaced"


class Deployment:
    """The code of this process. Several threads may use it."""

    def __init__(self, started_at: float = _STARTED_AT) -> None:
        self._started_at = started_at
        self._lock = threading.Lock()
        self._modules = -1  # how many modules were loaded when the digest was computed
        self._parts: dict[str, bytes] = {}  # digests by the name of the package or module
        self._installed: set[Path] | None = None  # packages and modules in the file list of a distribution
        self._digest = ""

    @property
    def is_known(self) -> bool:
        """Whether the digest was computed before."""
        return bool(self._digest)

    def digest(self) -> str:
        """Return the digest. It changes only when another package is loaded, because that package may let a run go
        on.
        """
        if self._modules != len(sys.modules):
            with self._lock:
                self._take()
        return self._digest

    def fingerprint(self, code: str) -> str:
        """Return the fingerprint of a workflow's code in this deployment."""
        return hashlib.sha256(f"{code} {self.digest()}".encode()).hexdigest()[:16]

    def _take(self) -> None:
        self._modules = len(sys.modules)
        if self._installed is None:
            self._parts[""], self._installed = self._listed()
        for name, module in list(sys.modules.items()):
            if "." not in name and name not in self._parts and name not in sys.stdlib_module_names:
                self._parts[name] = self._part(name, module, self._installed)
        whole = hashlib.sha256(sys.version.encode())
        for part in sorted(set(self._parts.values())):  # Modules in the same directory have the same digest.
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
        """Return the digest of a package or a module. It is empty if a file list covers the module, or if the module
        has no files.
        """
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
        """Return the digest of a module that is in no package. It covers the modules in the same directory, because
        this module may load them later.
        """
        found = [one for one in _inside(path.parent) if one.name.endswith(_SUFFIXES) and one not in installed]
        return self._over(path.parent, found if path in found and len(found) <= _FILES_MAX else [path])

    def _over(self, place: Path, paths: Iterable[Path]) -> bytes:
        digests = [(str(path.relative_to(place)), self._read(path)) for path in sorted(paths) if path.is_file()]
        if any(map(self._is_turned, (place, *place.parents))):
            digests.append(("", _REPLACED))
        return _joined(digests)

    def _is_turned(self, place: Path) -> bool:
        """Return whether a path is a symbolic link that was changed after this process began.

        A deployment may change a link so that it leads to another release. The files of that release may be older than
        this process.
        """
        try:
            return place.is_symlink() and place.lstat().st_ctime > self._started_at
        except OSError:
            return False

    def _read(self, path: Path) -> bytes:
        """Return the digest of a file. The digest is marked if the file may have been replaced after this process read
        it.
        """
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
    """Return the code files below a directory. Return None if there are too many."""
    found: list[Path] = []
    for at, places, files in os.walk(place):
        inner = [one for one in places if not one.startswith(".") and one not in _SKIPPED]
        places[:] = [one for one in inner if not Path(at, one, "pyvenv.cfg").exists()]
        found += (Path(at, name) for name in files if name.endswith(_SUFFIXES))
        if len(found) > _FILES_MAX:
            return None
    return found


def _places(module: Any) -> list[Path]:
    """Return the directories of a package. The values in sys.modules may be any objects."""
    try:
        places = [Path(place).absolute() for place in getattr(module, "__path__", ()) if isinstance(place, str)]
    except Exception:  # noqa: BLE001 - attributes that a module makes up
        return []
    return [place for place in places if place.is_dir()]


def _file(module: Any) -> Path | None:
    """Return the file from which a module was read. It is the module's own file, or the archive that contains the
    module.
    """
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
    """Return the same as `deployed` if the digest is already known. The digest is known once a run was blocked. Before
    that, return "".
    """
    return deployed(workflow) if DEPLOYMENT.is_known else ""


__all__ = ["DEPLOYMENT", "Deployment", "deployed", "offered"]
