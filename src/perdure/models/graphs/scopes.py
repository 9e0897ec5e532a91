"""A run's context: what nodes and expressions see, and what a branch keeps to itself until its fork's join.

Values are JSON's own types and never changed in place: a write puts a new object where the old one was, so that a value
may be in several places at once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

_MISSING: Final[Any] = object()
_EMPTY: Final[Mapping[str, Any]] = {}
SECTIONS: Final = ("state", "output", "nodes")


class Scope:
    """State, output and nodes' results: a branch's own, and below them those of where it came from."""

    __slots__ = ("_own", "_paths", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self._own: dict[str, dict[str, Any]] | None = None  # most branches write one thing or nothing
        # Where it has written inside of objects that are not its own as a whole, by section and key.
        self._paths: dict[tuple[str, str], dict[tuple[str, ...], None]] | None = None

    def find(self, section: str, key: str, default: Any = None) -> Any:
        scope: Scope | None = self
        while scope is not None:
            own = scope._own
            if own is not None and key in (part := own.get(section, _EMPTY)):
                return part[key]
            scope = scope.parent
        return default

    def put(self, section: str, key: str, value: Any) -> None:
        if self._own is None:
            self._own = {}
        if self._paths is not None:
            self._paths.pop((section, key), None)
        self._own.setdefault(section, {})[key] = value

    @property
    def root(self) -> Scope:
        """The scope of the whole run."""
        scope = self
        while scope.parent is not None:
            scope = scope.parent
        return scope

    def read(self, target: str, default: Any = None) -> Any:
        """What stands at a path like `state.notes`."""
        section, key, *deeper = target.split(".")
        value = self.find(section, key, _MISSING)
        for inner in deeper:
            value = value.get(inner, _MISSING) if isinstance(value, dict) else _MISSING
        return default if value is _MISSING else value

    def write(self, target: str, value: Any) -> None:
        """Put a value at a path like `state.totals.open`; objects on the way are made, and what is none is replaced."""
        section, key, *deeper = target.split(".")
        self._write(section, key, tuple(deeper), value)

    def _write(self, section: str, key: str, deeper: tuple[str, ...], value: Any) -> None:
        if not deeper:
            self.put(section, key, value)
            return
        own = {} if self._own is None else self._own.get(section, _EMPTY)
        paths = None if self._paths is None else self._paths.get((section, key))
        is_whole = paths is None and (key in own or self.parent is None)
        self.put(section, key, _within(self.find(section, key), deeper, value))
        if not is_whole:
            self._paths = {} if self._paths is None else self._paths
            self._paths[section, key] = {**(paths or {}), deeper: None}

    def whole(self, section: str) -> dict[str, Any]:
        seen = {} if self.parent is None else self.parent.whole(section)
        if self._own is not None:
            seen.update(self._own.get(section, _EMPTY))
        return seen

    def adopt(self, branch: Scope) -> None:
        """Take over all that a branch has written: of what it wrote inside of an object, only that, so that what other
        branches wrote there stays. What both wrote is what this branch wrote."""
        paths = branch._paths or {}
        for section, part in (branch._own or {}).items():
            for key, value in part.items():
                for path in paths.get((section, key), ((),)):
                    found = value
                    for inner in path:
                        found = found.get(inner, _MISSING) if isinstance(found, dict) else _MISSING
                    if found is not _MISSING:  # Something else was written around it later.
                        self._write(section, key, path, found)


def _within(value: Any, path: Sequence[str], new: Any) -> dict[str, Any]:
    outer: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    outer[path[0]] = _within(outer.get(path[0]), path[1:], new) if len(path) > 1 else new
    return outer


class Section:
    """One section of a scope, looked up key by key."""

    __slots__ = ("_name", "_scope")

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._name = name

    def get(self, key: str, default: Any = None) -> Any:
        return self._scope.find(self._name, key, default)

    def whole(self) -> dict[str, Any]:
        return self._scope.whole(self._name)


class View:
    """The context as the expressions of one token see it."""

    __slots__ = ("_branch", "_error", "_input", "scope")

    def __init__(self, input: Any, scope: Scope, branch: Any, error: dict[str, Any] | None) -> None:
        self._input = input
        self.scope = scope
        self._branch = branch
        self._error = error

    def root(self, name: str) -> Any:
        if name == "input":
            return self._input
        if name == "branch":
            return self._branch
        if name == "error":
            return self._error or {}
        return Section(self.scope, name)
