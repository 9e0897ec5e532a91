"""The whole public API as text: names, signatures, first lines of docstrings. `python -m tests.api.snapshot` writes it.

What changes this text changes what users call: a reviewer sees it in the diff of `public_api.txt`.
"""

from __future__ import annotations

import enum
import inspect
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from msgspec import NODEFAULT, Struct
from msgspec.structs import fields

from tests.api.surface import Engine, exported, facets, methods

PATH = Path(__file__).with_name("public_api.txt")
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def whole() -> str:
    """Return the public API as text."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    facade = ""
    for module, name, found in exported():
        if module != facade:
            facade = module
            yield f"== {module}"
        yield from _described(name, found)
    yield "== facets of Engine and Client"
    for name, facet in facets(Engine).items():
        yield from _described(f"engine.{name}", facet, constructor=False)


def _described(name: str, found: Any, *, constructor: bool = True) -> Iterator[str]:
    if not inspect.isclass(found):
        yield f"{name}{_signature(found)}{_summary(found)}"
        return
    yield f"class {name}{_signature(found) if constructor else ''}{_summary(found)}"
    if issubclass(found, BaseException) or issubclass(found, enum.Enum):
        return
    if issubclass(found, Struct):
        kinds = _annotations(found)
        for field in fields(found):
            default = "" if field.default is NODEFAULT else f" = {_ADDRESS.sub('', repr(field.default))}"
            yield f"    {field.name}: {kinds[field.name]}{default}"
    for member, function in methods(found).items():
        yield f"    .{member}{_signature(function)}{_summary(function)}"


def _signature(found: Any) -> str:
    if isinstance(found, property):
        return ""
    if not callable(found):
        return f": {type(found).__name__}"
    if inspect.isclass(found) and issubclass(found, Struct):
        return ""  # Its fields say it.
    try:
        signature = inspect.signature(found)
    except (TypeError, ValueError):
        return ""
    parameters = [
        one.replace(annotation=_Plain(one.annotation)) if one.annotation is not one.empty else one
        for one in signature.parameters.values()
        if one.name not in ("self", "cls")
    ]
    result = signature.return_annotation
    signature = signature.replace(
        parameters=parameters, return_annotation=result if result is signature.empty else _Plain(result)
    )
    return (" async " if inspect.iscoroutinefunction(found) else "") + _ADDRESS.sub("", str(signature))


def _summary(found: Any) -> str:
    own = inspect.isclass(found) or inspect.isfunction(found) or isinstance(found, property)
    text = (found.__doc__ or "").strip() if own else ""
    if not text or text.startswith(f"{getattr(found, '__name__', '')}("):
        return ""  # None, or one that the interpreter made from the signature.
    return f"  # {text.splitlines()[0]}"


def _annotations(struct: type[Struct]) -> dict[str, str]:
    """Return the types of a struct's fields as they are written."""
    return {name: str(kind) for one in reversed(struct.__mro__) for name, kind in inspect.get_annotations(one).items()}


class _Plain(str):
    """An annotation, shown without quotes."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


if __name__ == "__main__":
    PATH.write_text(whole())
