"""What travels with messages: a context of named values, and the deadlines in it.

A child's first step sees its emitter's context and what the emission added. What a step puts in is seen by later steps
and by what they emit, never by the parent. On the way back a parent's context is laid over its child's.
"""

from __future__ import annotations

from builtins import type as type_
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from perdure.errors import InvalidDefinition, UnstorableValue

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_KEYS: dict[str, Key[Any]] = {}


class ReadableKey(Generic[V_co]):
    """The half of a key that reads: where a value of any type will do, a key of every type does."""

    name: str
    type: type_[V_co]

    def read(self, value: Any) -> V_co:
        try:
            return msgspec.convert(value, self.type)
        except (msgspec.ValidationError, ValueError) as error:
            raise UnstorableValue(f"the context's {self.name!r} is no {self.type.__qualname__}: {error}") from error


class Key(ReadableKey[V]):
    """A named, typed value of a context: `TENANT = Key("tenant", str)`.

    `merge(own, other)` says what becomes of two values when one context is laid over another; without it the upper one
    holds. Where the key is not defined, its values are passed on as they are.
    """

    def __init__(self, name: str, type: type[V], *, merge: Callable[[V, V], V] | None = None) -> None:
        if not name:
            raise InvalidDefinition("a context key needs a name")
        known = _KEYS.get(name)
        if known is not None and known.type != type:
            raise InvalidDefinition(
                f"the context key {name!r} is defined twice: as {known.type.__qualname__} and as {type.__qualname__}"
            )
        self.name = name
        self.type = type
        self.merge = merge
        _KEYS[name] = self

    def write(self, value: V) -> Any:
        try:
            return msgspec.json.decode(msgspec.json.encode(value))
        except (TypeError, ValueError, OverflowError) as error:
            raise UnstorableValue(f"the context's {self.name!r} cannot be stored: {error}") from error

    def __repr__(self) -> str:
        return f"Key({self.name!r}, {self.type.__qualname__})"


class Context(Struct, frozen=True, gc=False):
    """An immutable map from names to JSON values, read through typed keys and only when asked for."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def get(self, key: ReadableKey[V]) -> V | None:
        value = self.values.get(key.name)
        return None if value is None else key.read(value)

    def put(self, key: Key[V], value: V) -> Context:
        return Context({**self.values, key.name: key.write(value)})

    def without(self, key: Key[Any]) -> Context:
        return Context({name: value for name, value in self.values.items() if name != key.name})

    def plus(self, other: Context) -> Context:
        """This context with the other laid over it."""
        if not other.values:
            return self
        merged = dict(self.values)
        for name, value in other.values.items():
            key = _KEYS.get(name)
            if name in merged and key is not None and key.merge is not None:
                value = key.write(key.merge(key.read(merged[name]), key.read(value)))  # noqa: PLW2901 - merged
            merged[name] = value
        return Context(merged)


EMPTY: Final = Context()


class Deadline(Struct, frozen=True, omit_defaults=True):
    """A time (microseconds since the epoch), who set it, and the later ones that it took the place of."""

    at: int
    source: str = ""
    trace: tuple[Deadline, ...] = ()


def earlier(one: Deadline, other: Deadline) -> Deadline:
    """The earlier of two deadlines, which keeps the other in its trace."""
    first, second = (one, other) if one.at <= other.at else (other, one)
    lost = [second, *second.trace]
    new = [
        Deadline(at=old.at, source=old.source)
        for old in lost
        if (old.at, old.source) not in {(known.at, known.source) for known in (first, *first.trace)}
    ]
    return Deadline(at=first.at, source=first.source, trace=(*first.trace, *new)) if new else first


HAPPY_DEADLINE: Final = Key("perdure.deadline", Deadline, merge=earlier)
ROLLBACK_DEADLINE: Final = Key("perdure.rollback_deadline", Deadline, merge=earlier)

# Set in what a rollback emits: the number of ids in the lineage of the run that rolls back. A cancellation or a
# rollback that reached that run or one above it is the very reason for the emission, and does not stop it.
EXEMPT: Final = Key("perdure.exempt", int, merge=max)

# How many times periodic operations have run, by name.
ROUNDS: Final = Key("perdure.rounds", dict[str, int])


def for_compensation(context: Context, depth: int) -> Context:
    """The context of what a rollback emits: its work must be done by the rollback's deadline, and the reasons for the
    rollback do not hold for it."""
    limit = context.get(ROLLBACK_DEADLINE)
    found = context.without(HAPPY_DEADLINE).put(EXEMPT, depth)
    return found if limit is None else found.put(HAPPY_DEADLINE, limit)


def independent(context: Context) -> Context:
    """The context of an emission on the global scope: what bounds this hierarchy does not bound another."""
    for key in (HAPPY_DEADLINE, ROLLBACK_DEADLINE, EXEMPT):
        context = context.without(key)
    return context
