"""A run's context: the values that nodes and expressions see. The values of a branch belong to the branch until the
join of its fork.

Values have JSON's own types and are never changed in place. A write puts a new object in the place of the old object.
So one value may be in several places. There is one exception: the value that `grown` returns may be changed, because no
code has seen it yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

X = TypeVar("X")
_MISSING: Final[Any] = object()
_EMPTY: Final[Mapping[str, Any]] = {}
SECTIONS: Final = ("state", "output", "nodes")


class Scope:
    """The state, the output, and the results of nodes. A branch has a scope of its own. It reads from the outer scope
    whatever it has not written itself.
    """

    __slots__ = ("_own", "_paths", "_unseen", "parent", "root")

    def __init__(self, parent: Scope | None = None) -> None:
        self.parent = parent
        self.root: Scope = self if parent is None else parent.root  # the scope of the whole run
        self._own: dict[str, dict[str, Any]] | None = None  # most branches write one value or nothing
        # The paths inside objects of an outer scope that this scope has written, by section and key.
        self._paths: dict[tuple[str, str], dict[tuple[str, ...], None]] | None = None
        # Lists and objects that only this scope has, by section and key, and then by path. Only these may be changed in
        # place.
        self._unseen: dict[tuple[str, str], dict[tuple[str, ...], Any]] | None = None

    def find(self, section: str, key: str, default: Any = None) -> Any:
        scope: Scope | None = self
        while scope is not None:
            own = scope._own
            if own is not None and key in (part := own.get(section, _EMPTY)):
                if scope._unseen is not None:
                    scope._unseen.pop((section, key), None)
                return part[key]
            scope = scope.parent
        return default

    def put(self, section: str, key: str, value: Any) -> None:
        if self._own is None:
            self._own = {}
        if self._paths is not None:
            self._paths.pop((section, key), None)
        if self._unseen is not None:
            self._unseen.pop((section, key), None)
        self._own.setdefault(section, {})[key] = value

    def frozen(self) -> Scope:
        """Return a copy of the scope in its current state. Later writes to this scope do not change the copy."""
        frozen = Scope(self.parent)
        frozen.root = self.root
        self._unseen = None
        if self._own is not None:
            frozen._own = {section: dict(self._own[section]) for section in SECTIONS if section in self._own}
        return frozen

    def read(self, target: str, default: Any = None) -> Any:
        """Return the value at a path, for example `state.notes`."""
        section, key, *deeper = target.split(".")
        value = self.find(section, key, _MISSING)
        for inner in deeper:
            value = value.get(inner, _MISSING) if isinstance(value, dict) else _MISSING
        return default if value is _MISSING else value

    def write(self, target: str, value: Any) -> None:
        """Write a value at a path, for example `state.totals.open`. Missing objects on the path are created. A value on
        the path that is not an object is replaced by an object.
        """
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

    def grown(self, target: str, copied: Callable[[Any], X]) -> X:
        """Return the list or object at a path. The caller may add to it in place.

        `copied` makes a copy of the value at the path. If the scope made a copy before, and nothing has read it since,
        that copy is returned. So a thousand additions need only one copy.
        """
        section, key, *rest = target.split(".")
        path = tuple(rest)
        mine = {} if self._unseen is None else self._unseen.get((section, key), {})
        if path in mine:
            found: X = mine[path]
            return found
        grown = copied(self.read(target))
        self._write(section, key, path, grown)
        # A write copies the objects that contain the written value, and no other objects.
        kept = {other: value for other, value in mine.items() if not _is_within(other, path)}
        self._unseen = {} if self._unseen is None else self._unseen
        self._unseen[section, key] = {**kept, path: grown}
        return grown

    def whole(self, section: str) -> dict[str, Any]:
        seen = {} if self.parent is None else self.parent.whole(section)
        if self._unseen:
            self._unseen = None
        if self._own is not None:
            seen.update(self._own.get(section, _EMPTY))
        return seen

    def adopt(self, branch: Scope) -> None:
        """Take over everything that a branch has written. Inside an object, take over only the paths that the branch
        has written. The writes of other branches stay. If this scope and the branch have written the same path, the
        branch wins.
        """
        paths = branch._paths or {}
        branch._unseen = None
        for section, part in (branch._own or {}).items():
            for key, value in part.items():
                for path in paths.get((section, key), ((),)):
                    found = value
                    for inner in path:
                        found = found.get(inner, _MISSING) if isinstance(found, dict) else _MISSING
                    if found is not _MISSING:  # A later write may have replaced the object that contained the value.
                        self._write(section, key, path, found)


def _is_within(one: tuple[str, ...], other: tuple[str, ...]) -> bool:
    """Return whether one of two paths begins with the other path."""
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _within(value: Any, path: Sequence[str], new: Any) -> dict[str, Any]:
    outer: dict[str, Any] = dict(value) if isinstance(value, dict) else {}
    outer[path[0]] = _within(outer.get(path[0]), path[1:], new) if len(path) > 1 else new
    return outer


class Section:
    """One section of a scope. Values are looked up by key."""

    __slots__ = ("_name", "_scope")

    def __init__(self, scope: Scope, name: str) -> None:
        self._scope = scope
        self._name = name

    def get(self, key: str, default: Any = None) -> Any:
        return self._scope.find(self._name, key, default)

    def whole(self) -> dict[str, Any]:
        return self._scope.whole(self._name)


class View:
    """The context that the expressions of one token see."""

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
        return Section(self.scope.root if name == "artifacts" else self.scope, name)
