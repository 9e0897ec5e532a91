"""Expressions: CEL, parsed when a graph is built, evaluated over a run's context.

A plain path (`nodes.plan.queries`) needs no CEL: it is looked up as it is. For anything else only the parts of the
context that the expression names are converted, never a whole state per branch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, Protocol

from perdure.errors import ExpressionFailed, InvalidDefinition, Misuse

ROOTS: Final = ("input", "state", "output", "nodes", "branch", "error")

_BUILT_IN: Final = frozenset({
    "size", "contains", "startsWith", "endsWith", "matches", "string", "int", "uint", "double", "bytes", "bool", "type",
    "duration", "timestamp", "getFullYear", "getMonth", "getDate", "getDayOfMonth", "getDayOfWeek", "getDayOfYear",
    "getHours", "getMinutes", "getSeconds", "getMilliseconds",
})  # fmt: skip
_NAMESPACES: Final = {"math", "sets", "lists", "strings", "base64"}
_PATH: Final = re.compile(r"\s*([A-Za-z_]\w*(?:\s*\.\s*[A-Za-z_]\w*)*)\s*", re.ASCII)
_LITERALS: Final = {"true": True, "false": False, "null": None}
_WORDS: Final = {*_LITERALS, "in", "as", "break", "const", "continue", "else", "for", "function", "if", "import", "let",
                 "loop", "package", "namespace", "return", "var", "void", "while"}  # fmt: skip
# A text (raw, bytes, of three quotes too), a comment, a number, a name, or any other character.
_TOKEN: Final = re.compile(
    r'(?P<skip>\s+|//[^\n]*|[rRbB]{0,2}(?:"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\])*"'
    r"|'(?:\\.|[^'\\])*')|[0-9][\w.]*)|(?P<name>[A-Za-z_]\w*)|(?P<other>.)",
    re.ASCII | re.DOTALL,
)
_SHOWN_CHARS: Final = 200


class Context(Protocol):
    """Where expressions look things up."""

    def root(self, name: str) -> Any:
        """The value of a root, one that is asked for by key if it is large: a dict, or anything with `get`."""


class Expression:
    """A parsed expression and its place in the definition, for whoever has to say what is wrong with it."""

    __slots__ = ("_execute", "_functions", "_path", "_paths", "place", "source")

    def __init__(self, source: str, place: str) -> None:
        """Raises InvalidDefinition, with the place: it does not parse, or uses unknown roots or functions."""
        if not isinstance(source, str):
            raise InvalidDefinition(f"{place}: an expression is a text, not {source!r:.80}")
        self.source = source
        self.place = place
        self._path: tuple[str, ...] | None = None
        self._functions: Mapping[str, Callable[..., Any]] = {}
        plain = _PATH.fullmatch(source)
        parts = tuple(part.strip() for part in plain[1].split(".")) if plain else ()
        if parts and not _WORDS & set(parts):
            self._path = parts
            if parts[0] not in ROOTS:
                raise InvalidDefinition(self._unknown(parts[0]))
            return
        program = self._compile()
        self._execute: Callable[[Any], Any] = program.execute
        self._paths = _merged(_paths_in(source))

    def _compile(self) -> Any:
        cel = _cel(self.place)
        try:
            program = cel.compile(self.source)
        except Exception as error:  # the library raises ValueError, and others for what it did not think of
            message = str(error).partition("expecting {")[0].strip()
            raise InvalidDefinition(f"{self.place}: {self.source!r} does not parse: {message}") from error
        bound = _bound_names(self.source)
        for name in program.variables():
            if name not in ROOTS and name not in bound and name not in _NAMESPACES:
                raise InvalidDefinition(self._unknown(name))
        more = _library()
        used: dict[str, Callable[..., Any]] = {}
        for name in program.functions():
            if name[0] in "_!@-" or name in _BUILT_IN:
                continue
            found = [known for known in more if known == name or known.rpartition(".")[2] == name]
            if not found:
                raise InvalidDefinition(f"{self.place}: {self.source!r} uses the unknown function {name!r}")
            used |= {known: more[known] for known in found}
        self._functions = used
        return program

    def _unknown(self, name: str) -> str:
        return f"{self.place}: {self.source!r} uses the unknown name {name!r}; there are {', '.join(ROOTS)}"

    @property
    def roots(self) -> set[str]:
        """The roots that it names."""
        return {self._path[0]} if self._path is not None else set(self._paths)

    @property
    def nodes(self) -> set[str]:
        """The nodes whose results it names."""
        paths = [self._path] if self._path is not None else _paths_in(self.source)
        return {path[1] for path in paths if path[0] == "nodes" and len(path) > 1}

    def evaluate(self, context: Context) -> Any:
        """The value, in JSON's own types. Raises ExpressionFailed, which quotes the expression and says where it
        stands."""
        if self._path is not None:
            return self._follow(self._path, context)
        variables = {root: _pick(context.root(root), wanted) for root, wanted in self._paths.items()}
        try:
            if self._functions:
                return _plain(self._execute(_cel(self.place).Context(variables, dict(self._functions))))
            return _plain(self._execute(variables))
        except Exception as error:  # the library raises what fits best: KeyError, TypeError, RuntimeError, …
            why = f"there is no {error.args[0]!r}" if isinstance(error, KeyError) and error.args else str(error)
            raise self._failed(why) from error

    def condition(self, context: Context) -> bool:
        """As `evaluate`, of what must be true or false."""
        value = self.evaluate(context)
        if value is not True and value is not False:
            raise self._failed(f"a condition is true or false, not {value!r:.100}")
        return value

    def _follow(self, path: tuple[str, ...], context: Context) -> Any:
        value = context.root(path[0])
        for depth, key in enumerate(path[1:], 1):
            found = value.get(key, _MISSING) if hasattr(value, "get") else _MISSING
            if found is _MISSING:
                raise self._failed(f"there is no {key!r} in {'.'.join(path[:depth])}")
            value = found
        return value if len(path) > 1 else _whole(value)

    def _failed(self, why: str) -> ExpressionFailed:
        return ExpressionFailed(
            f"{self.place}: {self.source!r} failed: {why}", expression=self.source, place=self.place
        )

    def values(self, context: Context) -> str:
        """What the parts that it names are, for messages."""
        paths = [self._path] if self._path is not None else _paths_in(self.source)
        shown: dict[str, None] = {}
        for path in paths:
            picked: Any = _pick(context.root(path[0]), {path[1:]})
            for key in path[1:]:
                picked = picked.get(key, _MISSING) if isinstance(picked, dict) else _MISSING
            text = "missing" if picked is _MISSING else repr(picked)
            shown[f"{'.'.join(path)} is {text[:_SHOWN_CHARS]}"] = None
        return ", ".join(shown)

    def __repr__(self) -> str:
        return f"<expression {self.source!r}>"


class ValueMap:
    """Values by name, any of them nested: texts are expressions, everything else is what it is."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Any, place: str) -> None:
        """Raises InvalidDefinition."""
        self._parts = _parse(parts, place)

    def expressions(self) -> Iterator[Expression]:
        return _expressions(self._parts)

    def evaluate(self, context: Context) -> Any:
        """Raises ExpressionFailed."""
        return _fill(self._parts, context)


def _parse(part: Any, place: str) -> Any:
    if isinstance(part, str):
        return Expression(part, place)
    if isinstance(part, Mapping):
        return {str(key): _parse(value, f"{place}.{key}") for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [_parse(value, f"{place}[{index}]") for index, value in enumerate(part)]
    if part is None or isinstance(part, bool | int | float):
        return part
    raise InvalidDefinition(f"{place}: expressions and plain values go into a mapping, not {part!r:.80}")


def _expressions(part: Any) -> Iterator[Expression]:
    if isinstance(part, Expression):
        yield part
    elif isinstance(part, dict | list):
        for inner in part.values() if isinstance(part, dict) else part:
            yield from _expressions(inner)


def _fill(part: Any, context: Context) -> Any:
    if isinstance(part, Expression):
        return part.evaluate(context)
    if isinstance(part, dict):
        return {key: _fill(value, context) for key, value in part.items()}
    if isinstance(part, list):
        return [_fill(value, context) for value in part]
    return part


# ---------------------------------------------------------------------------------------------------------------------
# What an expression names


_MISSING: Final[Any] = object()
Wanted = set[tuple[str, ...]]


def _tokens(source: str) -> Iterator[tuple[str, str]]:
    for match in _TOKEN.finditer(source):
        if match.lastgroup != "skip":
            yield match.lastgroup or "", match[0]
        elif match[0][:1] in "\"'rRbB0123456789":
            yield "literal", match[0]


def _paths_in(source: str) -> list[tuple[str, ...]]:
    """The paths that begin with a root: `state.notes.size() > 0` names state.notes."""
    tokens = [*_tokens(source), ("", "")]
    found: list[tuple[str, ...]] = []
    for index, (kind, text) in enumerate(tokens):
        if kind != "name" or text not in ROOTS or (index and tokens[index - 1][1] == "."):
            continue
        path, at = [text], index + 1
        while tokens[at][1] == "." and tokens[at + 1][0] == "name" and tokens[at + 2][1] != "(":
            path.append(tokens[at + 1][1])
            at += 2
        found.append(tuple(path))
    return found


def _merged(paths: list[tuple[str, ...]]) -> dict[str, Wanted]:
    wanted: dict[str, Wanted] = {}
    for path in paths:
        wanted.setdefault(path[0], set()).add(path[1:])
    return wanted


def _bound_names(source: str) -> set[str]:
    """The names that macros bind, as the x in `items.map(x, x * 2)`."""
    macros = {"map", "filter", "all", "exists", "exists_one"}
    tokens = [*_tokens(source), ("", ""), ("", ""), ("", "")]
    return {
        tokens[at + 2][1]
        for at, (kind, text) in enumerate(tokens[:-3])
        if kind == "name" and text in macros and tokens[at + 1][1] == "(" and tokens[at + 2][0] == "name"
    }


def _pick(value: Any, wanted: Wanted) -> Any:
    """The parts of a value that are wanted, and no others; what is not there is left out."""
    if () in wanted or not hasattr(value, "get"):
        return _whole(value)
    picked: dict[str, Any] = {}
    for key in {path[0]: None for path in sorted(wanted)}:
        inner = value.get(key, _MISSING)
        if inner is not _MISSING:
            picked[key] = _pick(inner, {path[1:] for path in wanted if path[0] == key})
    return picked


def _whole(value: Any) -> Any:
    whole = getattr(value, "whole", None)
    return value if whole is None else whole()


# ---------------------------------------------------------------------------------------------------------------------
# The library


_modules: dict[str, Any] = {}


def _cel(place: str) -> Any:
    """The CEL library. It takes a while to import, so it is only when an expression needs it."""
    if "cel" not in _modules:
        try:
            import cel
            import cel.stdlib as functions
        except ImportError as error:
            raise Misuse(f"{place}: this expression needs CEL; install perdure[graphs]") from error
        _modules["cel"], _modules["functions"] = cel, functions
    return _modules["cel"]


def _library() -> Mapping[str, Callable[..., Any]]:
    """Functions beyond CEL's own: those of the usual extensions."""
    if "library" not in _modules:
        context = _modules["cel"].Context()
        _modules["functions"].add_stdlib_to_context(context)
        _modules["library"] = dict(context.functions)
    library: Mapping[str, Callable[..., Any]] = _modules["library"]
    return library


def _plain(value: Any) -> Any:
    """What CEL gives, in JSON's own types."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(key): _plain(one) for key, one in value.items()}
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "total_seconds"):
        return value.total_seconds()
    raise TypeError(f"its value, of type {type(value).__name__}, has no JSON form")
