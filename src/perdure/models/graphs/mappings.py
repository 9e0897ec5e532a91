"""Mappings of values by name. Texts in them are expressions. Inputs and outputs of nodes, and outputs of graphs, are
mappings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from perdure.errors import InvalidDefinition
from perdure.models.graphs.expressions import Context, Expression
from perdure.values.arguments import shown

_DEPTH_MAX: Final = 64
_MISSING: Final = object()


class ValueMap:
    """Values by name, at any depth. Texts are expressions. All other values are literal values."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Any, place: str) -> None:
        """Raises InvalidDefinition."""
        self._parts = _parse(parts, place)

    def expressions(self) -> Iterator[Expression]:
        return _expressions(self._parts)

    def evaluate(self, context: Context) -> Any:
        """Return the mapping with the values of its expressions. Raises ExpressionFailed."""
        return _fill(self._parts, context)


def _parse(part: Any, place: str, depth: int = 0) -> Any:
    if depth > _DEPTH_MAX:
        raise InvalidDefinition(f"{place[:200]}…: the mapping nests deeper than {_DEPTH_MAX}")
    if isinstance(part, str):
        return Expression(part, place)
    if isinstance(part, Mapping):
        if (key := next((key for key in part if not isinstance(key, str)), _MISSING)) is not _MISSING:
            raise InvalidDefinition(f"{place}: the keys of a mapping must be texts, not {shown(key)}")
        return {key: _parse(value, f"{place}.{key}", depth + 1) for key, value in part.items()}
    if isinstance(part, list | tuple):
        return [_parse(value, f"{place}[{index}]", depth + 1) for index, value in enumerate(part)]
    if part is None or isinstance(part, bool | int | float):
        return part
    raise InvalidDefinition(f"{place}: expressions and plain values go into a mapping, not {shown(part)}")


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
