"""Expressions in CEL. They are parsed when a graph is built, and evaluated over a run's context within a budget of
steps.

A plain path (`nodes.plan.queries`) is looked up directly. Other expressions are compiled (see `cel`). They look up only
the parts of the context that they name, so the whole context is never copied.
"""

from __future__ import annotations

import re
from typing import Any, Final, Protocol

from perdure.errors import ExpressionFailed, InvalidDefinition
from perdure.models.graphs.cel.budget import STEPS_MAX, BudgetExceeded, EvaluationFailed
from perdure.models.graphs.cel.compiler import NameUnknown, Program
from perdure.models.graphs.cel.syntax import LENGTH_MAX, RESERVED, SyntaxFailed
from perdure.values.arguments import shown

ROOTS: Final = ("input", "state", "output", "nodes", "branch", "error", "artifacts")

_PATH: Final = re.compile(r"\s*([A-Za-z_]\w*(?:\s*\.\s*[A-Za-z_]\w*)*)\s*", re.ASCII)
_WORDS: Final = {"true", "false", "null", "in", *RESERVED}
_TEXTS: Final = re.compile(r"""\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'""", re.DOTALL)
_DATE: Final = re.compile(r"(?<![\w.])\d{4}-\d\d-\d\d(?![\d-])", re.ASCII)
_MISSING: Final[Any] = object()


class Context(Protocol):
    """The context in which expressions look up values."""

    def root(self, name: str) -> Any:
        """Return the value of a root. A large value is looked up key by key. It is a dict, or any object with a method
        `get`.
        """


class Expression:
    """A parsed expression, with its place in the definition for error messages."""

    __slots__ = ("_path", "_program", "place", "source")

    def __init__(self, source: str, place: str) -> None:
        """Raises InvalidDefinition, with the place, if the source does not parse, is too large, or uses unknown roots
        or functions.
        """
        if not isinstance(source, str):
            raise InvalidDefinition(f"{place}: an expression is a text, not {shown(source)}")
        self.source = source
        self.place = place
        self._path: tuple[str, ...] | None = None
        self._program: Program | None = None
        if len(source) > LENGTH_MAX:
            raise InvalidDefinition(
                f"{place}: {source[:60] + '…'!r} has {len(source):,} characters, and an expression has at most "
                f"{LENGTH_MAX:,}; compute a part of it in an earlier node"
            )
        if (date := _DATE.search(_TEXTS.sub("''", source))) is not None:
            raise InvalidDefinition(
                f"{place}: {date[0]} in {source!r} is arithmetic in an expression, and no date: quote it, as "
                f"'{date[0]}', or write timestamp('{date[0]}T00:00:00Z')"
            )
        plain = _PATH.fullmatch(source)
        parts = tuple(part.strip() for part in plain[1].split(".")) if plain else ()
        if not parts or _WORDS & set(parts):
            self._program = self._compiled()
        elif parts[0] in ROOTS:
            self._path = parts
        else:
            raise InvalidDefinition(self._unknown(parts[0]))

    def _compiled(self) -> Program:
        try:
            return Program(self.source, ROOTS)
        except SyntaxFailed as error:
            raise InvalidDefinition(f"{self.place}: {self._shown} does not parse: {error}") from error
        except NameUnknown as error:
            if error.what == "name":
                raise InvalidDefinition(self._unknown(error.name)) from error
            raise InvalidDefinition(f"{self.place}: {self._shown} {error}") from error
        except EvaluationFailed as error:
            raise InvalidDefinition(f"{self.place}: {self._shown}: {error}") from error

    @property
    def _shown(self) -> str:
        return repr(self.source if len(self.source) <= 2_000 else f"{self.source[:2_000]}…")

    def _unknown(self, name: str) -> str:
        return f"{self.place}: {self._shown} uses the unknown name {name!r}; there are {', '.join(ROOTS)}"

    @property
    def _paths(self) -> list[tuple[str, ...]]:
        """The paths that the expression names: `state.notes.size() > 0` names state.notes."""
        return [self._path] if self._program is None and self._path else self._program.paths if self._program else []

    @property
    def roots(self) -> set[str]:
        """The roots of the context that the expression names."""
        return {path[0] for path in self._paths}

    @property
    def nodes(self) -> set[str]:
        """The nodes whose results the expression names."""
        return {path[1] for path in self._paths if path[0] == "nodes" and len(path) > 1}

    def evaluate(self, context: Context) -> Any:
        """Return the value in JSON's own types. Raises ExpressionFailed, also if the evaluation takes too many steps.
        The message quotes the expression and its place.
        """
        if self._program is None:
            assert self._path is not None
            return self._follow(self._path, context)
        try:
            return self._program.evaluate(context)
        except EvaluationFailed as error:
            raise self._failed(str(error)) from error
        except BudgetExceeded as error:
            raise self._failed(
                f"it takes more than {STEPS_MAX:,} steps, which is as much as one evaluation may take; let it "
                "read fewer or smaller values, or do the work in a function node"
            ) from error

    def condition(self, context: Context) -> bool:
        """Evaluate a condition, which must be true or false."""
        value = self.evaluate(context)
        if value is not True and value is not False:
            raise self._failed(f"a condition must be true or false, not {shown(value)}")
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
        return ExpressionFailed(f"{self.place}: {self._shown} failed: {why}", expression=self.source, place=self.place)

    def values(self, context: Context) -> str:
        """Return the current values of the parts that the expression names, for messages."""
        shown: dict[str, None] = {}
        for path in self._paths:
            value = context.root(path[0])
            for key in path[1:]:
                value = value.get(key, _MISSING) if hasattr(value, "get") else _MISSING
            shown[f"{'.'.join(path)} is {_brief(value)}"] = None
        return ", ".join(shown)

    def __repr__(self) -> str:
        return f"<expression {self._shown}>"


def _whole(value: Any) -> Any:
    whole = getattr(value, "whole", None)
    return value if whole is None else whole()


def _brief(value: Any) -> str:
    return "missing" if value is _MISSING else shown(_whole(value))
