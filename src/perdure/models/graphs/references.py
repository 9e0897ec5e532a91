"""What the names in a definition stand for: what was handed in with it, or is registered in this process already.

A definition may come from anybody who can write a file or a record. So no module is imported for one, and no function
is called that nobody meant to be called: a name stands for a step or a workflow, for a class of exceptions, or for a
type of data. Steps and workflows of Perdure's own are not among them: they trust the kinds of node that call them.
Anything else has to be handed in: `Graph.load(path, objects=[…])`.
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
    """What a reference stands for. Raises InvalidDefinition, which says how to register or hand in what is missing."""
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
    """What `package.module:name` is in a module that is imported already; None if there is none. No code runs for it:
    neither a module's `__getattr__` nor a property."""
    module, _, name = reference.partition(":")
    found: Any = sys.modules.get(module)
    for part in name.split("."):
        if not isinstance(found, ModuleType | type):
            return None
        found = vars(found).get(part)
    return found


def by_name(objects: Mapping[str, Any] | Iterable[Any] | None, place: str) -> dict[str, Any]:
    """What was handed in, by the names under which a definition may refer to it: those of a mapping; or else its own
    name, and `package.module:name`. Raises InvalidDefinition."""
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
    """Have definitions that are read back from a store find a reducer of a graph that was built here."""
    if callable(reducer):
        _reducers[reference] = reducer


def remembered_reducer(reference: str) -> Callable[[list[Any]], Any] | None:
    return _reducers.get(reference)


def _is_own(found: Any) -> bool:
    """Whether this is a step or a workflow of Perdure's, made for its own calls. The function of a graph says nothing:
    it is Perdure's for all graphs."""
    if not isinstance(found, Step) and not (isinstance(found, Workflow) and found.model != "graph"):
        return False
    module = getattr(found.function, "__module__", None) or ""
    return module == "perdure" or module.startswith("perdure.")


def _is_exception(found: Any) -> bool:
    return isinstance(found, type) and issubclass(found, BaseException)


def _is_data(found: Any) -> bool:
    """Whether something only says of which parts a value is made."""
    if not isinstance(found, type):
        return False
    if issubclass(found, msgspec.Struct | enum.Enum) or dataclasses.is_dataclass(found):
        return True
    marks = ("__total__", "_fields", "__attrs_attrs__", "model_json_schema")  # TypedDict, NamedTuple, attrs, pydantic
    return any(hasattr(found, mark) for mark in marks)


__all__ = ["by_name", "imported", "remember_reducer", "remembered_reducer", "resolve"]
