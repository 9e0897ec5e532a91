"""Resolve the names in a definition to objects. The objects were passed in with the definition, or are registered in
this process.

Anybody who can write a file or a record can write a definition. So Perdure imports no module for a definition, and
calls only functions that were registered for this purpose. A name can mean a step, a workflow, an exception class or a
data type. Perdure's own steps and workflows are excluded, because they trust the kinds of node that call them. Every
other object must be passed in: `Graph.load(path, objects=[…])`.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

import msgspec

from perdure.errors import InvalidDefinition
from perdure.models.functions.define import Step, Workflow

_reducers: WeakValueDictionary[str, Callable[[list[Any]], Any]] = WeakValueDictionary()


def resolve(reference: str, place: str, objects: Mapping[str, Any]) -> Any:
    """Return the object of a reference. Raises InvalidDefinition. The message says how to register the object or pass
    it in.
    """
    if reference in objects:
        return objects[reference]
    found = imported(reference)
    if _is_own(found):
        raise InvalidDefinition(
            f"{place}: {reference!r} is a part of Perdure's own, which a definition does not name: it would go past "
            "what the kinds of node check; use the kind of node that does it, or hand it in: Graph.load(…, objects={…})"
        )
    if isinstance(found, Step | Workflow) or _is_exception(found) or _is_data(found):
        return found
    module, colon, name = reference.partition(":")
    known = ", ".join(sorted(objects)[:20]) or "nothing"
    if not colon:
        raise InvalidDefinition(
            f"{place}: there is no {reference!r}; write package.module:name of a step that is imported here, or hand "
            f"it in: Graph.load(…, objects=[{reference}]) (handed in: {known})"
        )
    if found is None and module in sys.modules:
        raise InvalidDefinition(
            f"{place}: there is no {reference!r} here: {module} has no {name!r}; mend the name, or hand it in: "
            f"Graph.load(…, objects=[{name}])"
        )
    if found is None:
        raise InvalidDefinition(
            f"{place}: there is no {reference!r} here, and nothing is imported for a definition: import {module} first "
            f"(on the command line: --module {module}), or hand it in: Graph.load(…, objects=[{name}])"
        )
    raise InvalidDefinition(
        f"{place}: {reference!r} is no step or workflow, nor an exception or a type of data, and a definition names "
        f"nothing else: decorate a function with @step, or hand it in: Graph.load(…, objects=[{name}])"
    )


def imported(reference: str) -> Any:
    """Return the object `package.module:name` if its module is imported. Otherwise return None. This runs no code,
    neither a module's `__getattr__` nor a property.
    """
    module, _, name = reference.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(part)
    return found


def by_name(objects: Mapping[str, Any] | Iterable[Any] | None, place: str) -> dict[str, Any]:
    """Return the objects by the names that a definition may use. For a mapping these are its keys. For other
    collections they are each object's own name and its `package.module:name`. Raises InvalidDefinition.
    """
    if isinstance(objects, Mapping):
        return dict(objects)
    found: dict[str, Any] = {}
    for one in objects or ():
        for name in _names(one, place):
            if found.setdefault(name, one) is not one:
                raise InvalidDefinition(f"{place}: two of the objects are called {name!r}; hand them in as a dict")
    return found


def _names(found: Any, place: str) -> list[str]:
    plain = found.function if isinstance(found, Step | Workflow) else found
    module, qualname = getattr(plain, "__module__", None), getattr(plain, "__qualname__", None)
    if not isinstance(module, str) or not isinstance(qualname, str):
        raise InvalidDefinition(f"{place}: {found!r:.80} has no name; hand it in as a dict, by one")
    own = found.name if isinstance(found, Step | Workflow) else qualname
    if isinstance(found, Workflow) and found.model != "function":
        return [own]
    return [own, qualname, f"{module}:{qualname}"]


def remember_reducer(reference: str, reducer: Any) -> None:
    """Remember the reducer of a graph that was built in this process, for definitions that are read back from a
    store.
    """
    if callable(reducer):
        _reducers[reference] = reducer


def remembered_reducer(reference: str) -> Callable[[list[Any]], Any] | None:
    return _reducers.get(reference)


def _is_own(found: Any) -> bool:
    """Whether an object is one of Perdure's own steps or workflows. A graph does not count, although its function is
    Perdure's.
    """
    if not isinstance(found, Step) and not (isinstance(found, Workflow) and found.model != "graph"):
        return False
    module = getattr(found.function, "__module__", None) or ""
    return module == "perdure" or module.startswith("perdure.")


def _is_exception(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseException)


def _is_data(found: Any) -> bool:
    """Whether a class only describes data."""
    if not isinstance(found, type):
        return False
    if issubclass(found, msgspec.Struct | enum.Enum) or dataclasses.is_dataclass(found):
        return True
    marks = ("__total__", "_fields", "__attrs_attrs__", "model_json_schema")  # TypedDict, NamedTuple, attrs, pydantic
    return any(hasattr(found, mark) for mark in marks)


__all__ = ["by_name", "imported", "remember_reducer", "remembered_reducer", "resolve"]
