"""The public Python API, read from its signatures, and values that no caller should pass.

Arguments that fit are made from the annotations, so that a new method is called without being named here.
"""

from __future__ import annotations

import importlib
import inspect
import typing
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec

import perdure
from perdure.values.arguments import Form, form_of, hint_of
from tests.api.surface import FACADES, facets


class Rude:
    """An object whose every method fails."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no eq")

    __hash__ = None  # type: ignore[assignment] # it cannot be a key either


HOSTILE: list[Any] = [
    None, True, 0, 5, -1, 2**31, 2**63, -(2**63) - 1, 2**200, 10**5000,
    1.5, -0.5, float("nan"), float("inf"), 1e308, 5j,
    "", "x", "\ud800", "nul\0", "x" * 501, "x" * 10**6, "../../etc/passwd", "'; drop table runs; --",
    b"", b"bytes", bytearray(b"x"),
    [], [5], [None], ["\ud800"], ["x"] * 1000, (), (5,), {5}, frozenset({None}),
    {}, {"k": 5}, {5: "v"}, {"\ud800": "v"}, {"k": "nul\0"}, {"k": {"k": object()}}, {"": ""},
    datetime(2026, 1, 1), datetime(2026, 1, 1, tzinfo=UTC), datetime.max, datetime.min.replace(tzinfo=UTC),  # noqa: DTZ001, DTZ901
    timedelta(-1), timedelta(0), timedelta.max, timedelta.min,
    object(), Rude(), object, int, len, lambda: None, Exception("x"), ..., NotImplemented,
]  # fmt: skip


SOME: list[Any] = [
    None, True, -1, 5, 2**63, 10**5000, float("nan"), 1e308, "", "\ud800", "nul\0", "x" * 10**6, b"bytes", [5],
    {5: "v"}, {"k": "nul\0"}, datetime(2026, 1, 1), datetime.min.replace(tzinfo=UTC),  # noqa: DTZ001
    timedelta(-1), timedelta.max, object(), Rude(),
]  # fmt: skip


class Public(NamedTuple):
    """A function or a method that users can call, and whose it is."""

    owner: Any
    name: str
    function: Callable[..., Any]

    @property
    def label(self) -> str:
        inside = self.owner.__module__ if inspect.isclass(self.owner) else self.owner.__name__
        return f"{inside}:{self.owner.__name__}.{self.name}" if inspect.isclass(self.owner) else f"{inside}:{self.name}"

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        found = dict(inspect.signature(self.function).parameters)
        if inspect.isclass(self.owner) and next(iter(found), "") in ("self", "cls"):
            found.pop(next(iter(found)))
        return found

    def form(self, parameter: inspect.Parameter) -> Form | None:
        return form_of(hint_of(inspect.unwrap(self.function), parameter.annotation))


def public_calls() -> Iterator[Public]:
    """Every function of the facades, and every public method and constructor of their classes and of the facets."""
    for facade in FACADES:
        module = importlib.import_module(facade)
        for name in module.__all__:
            found = getattr(module, name)
            if inspect.isclass(found):
                yield from _methods(found)
            elif inspect.isfunction(found):
                yield Public(module, name, found)
    for facet in facets().values():
        yield from _methods(facet)


# Structs that Perdure makes, and hands out or reads.
HANDED_OUT = {
    "Context", "Deadline", "Delivered", "Emission", "Event", "Failure", "Frame", "Handlers", "Kind", "NamedEvent",
    "NextStep", "NodeRef", "NodeTokens", "Pending", "Queued", "RunEnded", "TargetFinished", "TargetNotFound",
    "TimeReached", "BulkReport", "CrashReport", "Exploration", "Finding",
    "GraphEvent", "GraphEvents", "GraphToken", "JoinTokens", "TokensView",
}  # fmt: skip


def user_values() -> list[type[msgspec.Struct]]:
    """Every Struct of the facades that users make themselves."""
    found: dict[type[msgspec.Struct], None] = {}
    for facade in FACADES:
        module = importlib.import_module(facade)
        for name in module.__all__:
            one: Any = getattr(module, name)
            is_meant = name not in HANDED_OUT and not name.endswith("View")
            if is_meant and isinstance(one, type) and issubclass(one, msgspec.Struct):
                found[one] = None
    return list(found)


def _methods(owner: type[Any]) -> Iterator[Public]:
    for name in dir(owner):
        found = inspect.getattr_static(owner, name)
        if isinstance(found, (classmethod, staticmethod)):
            found = found.__func__
        if inspect.isfunction(found) and (not name.startswith("_") or name == "__init__"):
            yield Public(owner, name, found)


@perdure.workflow(name="hostile-calls-nothing")
async def nothing() -> None:
    """What is started if a call of a workflow is wanted."""


class Nobody(perdure.Event, event_name="hostile-calls-event"):
    """What is sent if an event is wanted."""


def fitting(public: Public, parameter: inspect.Parameter) -> Any:
    """An argument that fits: made from the annotation, of something that is not there."""
    from perdure.cooperation import Topic

    hint = hint_of(inspect.unwrap(public.function), parameter.annotation)
    if parameter.name in ("topic", "store", "type"):
        found = {"topic": Topic("hostile-calls-topic", str), "store": "memory://", "type": str}[parameter.name]
        if (form := form_of(hint)) is None or form.allows(found):
            return found
    return fitting_value(hint)


def fitting_value(hint: Any) -> Any:
    """A value that an annotation allows."""
    from perdure.cooperation import CancellationToken, Context

    made: dict[Any, Any] = {
        str: "nobody", int: 1, float: 1.0, bool: False, timedelta: timedelta(seconds=1), bytes: b"",
        datetime: datetime(2031, 1, 1, tzinfo=UTC), perdure.RunCall: nothing, perdure.Event: Nobody,
        CancellationToken: lambda: CancellationToken("nobody"), Context: Context,
        perdure.RunSelection: lambda: perdure.RunSelection(workflow="nobody"),
    }  # fmt: skip
    one: Any
    for one in (hint, *typing.get_args(hint)):
        kind = typing.get_origin(one) or one
        if isinstance(kind, type) and kind in made:
            return made[kind]() if callable(made[kind]) else made[kind]
        if kind is typing.Literal:
            return typing.get_args(one)[0]
    form = form_of(hint)
    empties: list[Any] = [{}, [], (), None]
    return next((empty for empty in empties if form is None or form.allows(empty)), None)


def arguments(public: Public) -> dict[str, Any]:
    """Arguments that fit, by name: those that have to be given."""
    return {
        name: fitting(public, one)
        for name, one in public.parameters.items()
        if one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
    }


def call(function: Callable[..., Any], public: Public, given: dict[str, Any]) -> Any:
    """Call it, with what can only be given by its place there."""
    by_place = [name for name, one in public.parameters.items() if one.kind is one.POSITIONAL_ONLY and name in given]
    many = [name for name, one in public.parameters.items() if one.kind is one.VAR_POSITIONAL and name in given]
    rest = {name: value for name, value in given.items() if name not in (*by_place, *many)}
    return function(*(given[name] for name in (*by_place, *many)), **rest)


async def finished(made: Any) -> Any:
    """What it came to: awaited, or its first item read."""
    if isinstance(made, AsyncIterator):
        return await anext(made, None)
    return await made if inspect.isawaitable(made) else made
