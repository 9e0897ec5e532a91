"""The public API as data: its facades, the facets of an engine, and the handles, read from the code."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any

from perdure import Client, Engine

FACADES = ("perdure", "perdure.graph", "perdure.cooperation", "perdure.testing", "perdure.http", "perdure.dashboard")


@cache
def facets(owner: type[Any] = Engine) -> dict[str, type[Any]]:
    """Return the facets of an engine or a client, by name, in their order."""
    parts = vars(owner("memory://"))
    return {name: type(part) for name, part in parts.items() if type(part).__module__.startswith("perdure.api.")}


def methods(owner: type[Any]) -> dict[str, Any]:
    """Return the public methods and properties of a class, its own and inherited ones, by name."""
    found: dict[str, Any] = {}
    for name in sorted(dir(owner)):
        member = inspect.getattr_static(owner, name)
        if isinstance(member, (classmethod, staticmethod)):
            member = member.__func__
        if not name.startswith("_") and (inspect.isfunction(member) or isinstance(member, property)):
            found[name] = member
    return found


def exported() -> Iterator[tuple[str, str, Any]]:
    """Return each exported name of the facades with its module and what it stands for, in order."""
    for facade in FACADES:
        module = importlib.import_module(facade)
        for name in sorted(module.__all__):
            yield facade, name, getattr(module, name)


__all__ = ["FACADES", "Client", "Engine", "exported", "facets", "methods"]
