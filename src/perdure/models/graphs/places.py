"""The places of problems in a definition: the node, the edge or the field, and the line if the text is YAML."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from perdure.errors import InvalidDefinition

_AT: Final = re.compile(r" - at (?:`key` in )?`\$([^`]*)`$")
_LINE: Final = re.compile(r" \(line \d+\)$")
_UNKNOWN: Final = re.compile(r"unknown field `([^`]*)`")
_PART: Final = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[(\.\.\.)\]")
_NODE: Final = re.compile(r"node '([^']*)'(?:, (.*))?")
_EDGE: Final = re.compile(r"edge (\w+) -> (\w+)(?:, (.*))?")

Path = tuple[str | int, ...]


def invalid(problems: Sequence[str], lines: Lines | None = None) -> InvalidDefinition:
    """Return an error that lists each problem once, with its line if the line is known."""
    found = list(dict.fromkeys(problems))
    if lines is not None:
        found = [lines.located(problem) for problem in found]
    more = f"\n{len(found)} problems in all" if len(found) > 1 else ""
    return InvalidDefinition("\n".join(found) + more, problems=found)


class Lines:
    """The lines of the parts of one text, by the path of the part."""

    def __init__(self, place: str, parts: Any, lines: Mapping[Path, int]) -> None:
        self._start = f"{place}, "
        self._lines = lines
        self._children: dict[Path, list[str | int]] = {}
        for path in lines:
            self._children.setdefault(path[:-1], []).append(path[-1] if path else "")
        edges = parts.get("edges") if isinstance(parts, Mapping) else None
        self._edges = edges if isinstance(edges, list) else []

    def located(self, problem: str) -> str:
        """Return a problem with the line of the innermost part that its place names."""
        place = problem.removeprefix(self._start)
        line = None if place == problem or _LINE.search(problem) else self._line(place)
        return problem if line is None else f"{problem} (line {line})"

    def _line(self, place: str) -> int | None:
        if (node := _NODE.match(place)) is not None:
            path: Path = ("nodes", node[1])
            rest = node[2] or ""
        elif (edge := _EDGE.match(place)) is not None:
            numbers = [number for number, one in enumerate(self._edges) if _is_between(one, edge[1], edge[2])]
            if not numbers:
                return None
            path, rest = ("edges", numbers[0]), edge[3] or ""
        else:
            path, rest = (), place
        return self._lines.get(self._inner(path, rest)) if path or rest else None

    def _inner(self, path: Path, rest: str) -> Path:
        """Return the path of the part that a text such as `values.state.x: …` or `merge[0].target: …` begins with."""
        while True:
            for child in self._children.get(path, ()):
                start = f"[{child}]" if isinstance(child, int) else child
                if start and rest.startswith(start) and rest[len(start) : len(start) + 1] in ("", ".", ":", "[", ","):
                    path, rest = (*path, child), rest[len(start) :].removeprefix(".")
                    break
            else:
                return path


def _is_between(edge: Any, source: str, target: str) -> bool:
    if not isinstance(edge, Mapping) or edge.get("to") != target:
        return False
    sources = edge.get("from")
    return source in sources if isinstance(sources, list) else source == sources


def wrong_parts(parts: Any, convert: Callable[[Any], Any], place: str) -> list[str]:
    """Return the parts of a definition that do not fit the schema, as problems with their places. Each node and each
    edge has at most one problem.
    """
    if not isinstance(parts, Mapping):
        return [f"{place}: {_refusal(parts, convert)}"]
    nodes, edges = parts.get("nodes"), parts.get("edges")
    plain = {key: part for key, part in parts.items() if key not in ("nodes", "edges")}
    has_nodes, has_edges = isinstance(nodes, Mapping), isinstance(edges, list)
    rest = {**plain, **({"nodes": {}} if has_nodes else {"nodes": nodes} if "nodes" in parts else {})}
    rest |= {} if has_edges or "edges" not in parts else {"edges": edges}
    problems = [_problem(place, rest, convert)]
    bare = {"graph": "g", "nodes": {}, "edges": []}
    for name, node in nodes.items() if isinstance(nodes, Mapping) else ():
        problems.append(_problem(place, {**bare, "nodes": {name: node}}, convert))
    for number, edge in enumerate(edges if isinstance(edges, list) else ()):
        problems.append(_problem(place, {**bare, "edges": [edge]}, convert, number))
    return [problem for problem in problems if problem is not None]


def place_of(path: Path, parts: Any) -> str:
    """Return the name that messages use for the part of a definition at this path."""
    if path[:1] == ("edges",) and len(path) > 1 and isinstance(path[1], int):
        where, inner = _edge_name(parts["edges"][path[1]], path[1]), path[2:]
    elif path[:1] == ("nodes",) and len(path) > 1:
        where, inner = f"node {path[1]!r}", path[2:]
    else:
        where, inner = "", path
    field = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner).removeprefix(".")
    return ", ".join(part for part in (where, field) if part)


def _problem(place: str, parts: Any, convert: Callable[[Any], Any], number: int = 0) -> str | None:
    why = _refusal(parts, convert)
    if why is None:
        return None
    where = place_of(tuple(_named(parts, why, convert)), parts)
    if not where.startswith("edge ") and parts.get("edges"):
        where = where.replace("edges[0]", f"edges[{number}]")
    text = why.replace("`$.edges[0]", f"`$.edges[{number}]")
    return f"{place}, {where}: {text}" if where else f"{place}: {text}"


def _edge_name(edge: Any, number: int) -> str:
    source, target = (edge.get("from"), edge.get("to")) if isinstance(edge, Mapping) else (None, None)
    if isinstance(source, list) and source and all(isinstance(one, str) for one in source):
        source = source[0]
    is_named = isinstance(source, str) and isinstance(target, str)
    return f"edge {source} -> {target}" if is_named else f"edges[{number}]"


def _refusal(parts: Any, convert: Callable[[Any], Any]) -> str | None:
    try:
        convert(parts)
    except msgspec.ValidationError as error:
        return str(error)
    return None


def _named(parts: Any, why: str, convert: Callable[[Any], Any]) -> Iterator[str | int]:
    """Return the path of a problem, including the keys that the message leaves out."""
    matched = _AT.search(why)
    found: list[str | int] = []
    for part in _PART.finditer(matched[1] if matched is not None else ""):
        key: str | int | None = part[1] or (int(part[2]) if part[2] else None)
        if key is None:
            key = _culprit(parts, found, why, convert)
        if key is None:
            break
        found.append(key)
    if (unknown := _UNKNOWN.search(why)) is not None:
        found.append(unknown[1])
    if "at `key` in" in why and (key := _culprit(parts, found, why, convert)) is not None:
        found.append(key)
    yield from found


def _culprit(parts: Any, path: Sequence[str | int], why: str, convert: Callable[[Any], Any]) -> str | None:
    """Return which entry of an object is wrong. This is the entry that is invalid on its own."""
    inner = parts
    for key in path:
        inner = inner[key]
    for key, value in inner.items():
        if _refusal(_replaced(parts, path, {key: value}), convert) == why:
            return str(key)
    return None


def _replaced(parts: Any, path: Sequence[str | int], new: Any) -> Any:
    if not path:
        return new
    key, *rest = path
    if isinstance(parts, list):
        return [_replaced(one, rest, new) if number == key else one for number, one in enumerate(parts)]
    return {**parts, key: _replaced(parts[key], rest, new)}


__all__ = ["Lines", "Path", "invalid", "place_of", "wrong_parts"]
