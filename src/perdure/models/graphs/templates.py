"""Templates in the language of Jinja, parsed when a graph is built.

A template can use a mapped name, a root of the context (for example `nodes.plan.output`), or a field of the run's
input. A missing value is always an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from perdure.errors import InvalidDefinition, TemplateFailed
from perdure.models.graphs.expressions import ROOTS, Context
from perdure.models.graphs.jinja.budget import RenderingFailed, SyntaxWrong
from perdure.models.graphs.jinja.template import Compiled
from perdure.models.graphs.kinds.base import Preparing

_MISSING: Final[Any] = object()
_YOUNGEST: Final = "artifacts"  # An input may have had a field of this name before it became a root of the context.
_MARKS: Final = ("{{", "{%", "{#")


class Text:
    """A plain text without variables."""

    __slots__ = ("_source",)

    is_plain: ClassVar = True

    def __init__(self, source: str) -> None:
        self._source = source

    def render(self, mapped: Mapping[str, Any], input: Any, context: Context) -> str:  # noqa: ARG002 - as a template
        return self._source


def text_of(source: str, about: Preparing, field: str, mapped: frozenset[str]) -> Text | Template:
    """Return a template. If the source has no variables, return a plain text. Raises InvalidDefinition."""
    if not any(mark in source for mark in _MARKS):
        return Text(source)
    return Template(source, about, field, mapped)


class Template:
    """A parsed template, with its place in the definition for error messages."""

    __slots__ = ("_compiled", "_paths", "place")

    is_plain: ClassVar = False

    def __init__(self, source: str, about: Preparing, field: str, mapped: frozenset[str]) -> None:
        """Raises InvalidDefinition if the source does not parse, is too large, or uses an unknown name."""
        self.place = f"{about.place}, {field}"
        try:
            self._compiled = Compiled(source)
        except SyntaxWrong as error:
            raise InvalidDefinition(f"{self.place}: this is no template: {error}") from error
        self._paths = [tuple(name.split(".")) for name in sorted(self._compiled.names)]
        for path in self._paths:
            name = path[0]
            if name in mapped or (name == _YOUNGEST and name in (about.input_fields or ())):
                continue
            if name in ROOTS:
                about.check_root(name, self.place)
                _check(path, about, field)
            elif about.input_fields is not None and name not in about.input_fields:
                has = ", ".join(sorted(mapped | about.input_fields)) or "nothing"
                raise InvalidDefinition(
                    f"{self.place}: nothing is mapped to {name!r}; the node's and the graph's input have {has}, and "
                    f"there are {', '.join(ROOTS)}"
                )

    def render(self, mapped: Mapping[str, Any], input: Any, context: Context) -> str:
        """Return the rendered text. Raises TemplateFailed. The message names the place and the missing variable, or
        says that the rendering exceeds its budget.
        """
        values: dict[str, Any] = {}
        for path in self._paths:
            name = path[0]
            if name in mapped:
                values[name] = mapped[name]
            elif name in ROOTS and not (name == _YOUNGEST and isinstance(input, dict) and name in input):
                _put(values, path, context)
            elif isinstance(input, dict) and name in input:
                values[name] = input[name]
        try:
            return self._compiled.render(values)
        except RenderingFailed as error:
            where = f"{self.place}, line {error.line}" if error.line else self.place
            raise TemplateFailed(f"{where}: {error}", place=self.place, variable=error.variable) from None


def _check(path: tuple[str, ...], about: Preparing, field: str) -> None:
    """Check the nodes that the template names. A path may end with the name of a method, which is not part of the
    path.
    """
    if path[0] == "nodes" and len(path) > 1:
        try:
            about.expression(f"nodes.{path[1]}", field)
        except InvalidDefinition:
            return  # A node may still have a name that is a reserved word in expressions.


def _put(values: dict[str, Any], path: tuple[str, ...], context: Context) -> None:
    """Add the value at a path to the values, but no other fields. If the context has only the beginning of the path,
    add that part.
    """
    value = context.root(path[0])
    at = 1
    while at < len(path) and hasattr(value, "get") and (found := value.get(path[at], _MISSING)) is not _MISSING:
        value = found
        at += 1
    whole = getattr(value, "whole", None)
    value = value if whole is None else whole()
    *outer, last = path[:at]
    for key in outer:
        inner = values.get(key)
        if inner is None:
            inner = values[key] = _Part()
        elif type(inner) is not _Part:
            return  # The values already have the whole object.
        values = inner
    if last in values and type(values[last]) is not _Part:
        return
    values[last] = value


class _Part(dict[str, Any]):
    """An object with only those fields that the template names."""
