"""The context of messages: named values that travel with messages, such as deadlines (deadlines.py) and cancellation
tokens.

A child's first step sees its emitter's context, and the values that the emission added. If a step adds a value, later
steps and the handlers of their messages see it. The parent never sees this value. In a rollback, the context of a
parent is laid over the context of its child.
"""

from __future__ import annotations

import re
from builtins import type as type_
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct, field

from perdure.errors import InvalidArguments, InvalidDefinition, UnstorableValue
from perdure.kernel.cooperation import TOKEN_TAG
from perdure.values.arguments import checked, shown
from perdure.values.json import ANY_SIZE, to_text
from perdure.values.type_patterns import check_patterns

_TOKEN_CHARS_MAX: Final = 400
_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")

V = TypeVar("V")
V_co = TypeVar("V_co", covariant=True)

_KEYS: dict[str, Key[Any]] = {}


class ReadableKey(Generic[V_co]):
    """The part of a key that reads values. It is covariant: a key of a subtype is accepted where a key of its base type
    is expected.
    """

    name: str
    type: type_[V_co]

    def read(self, value: Any) -> V_co:
        try:
            return msgspec.convert(value, self.type)
        except (msgspec.ValidationError, ValueError) as error:
            raise UnstorableValue(f"the context's {self.name!r} is no {self.type.__qualname__}: {error}") from error


@checked(error=InvalidDefinition)
class Key(ReadableKey[V]):
    """A named, typed value of a context: `TENANT = Key("tenant", str)`.

    If one context is laid over another and both have a value, `merge(own, other)` returns the combined value. Without
    `merge`, the value of the upper context counts. A process that does not define the key passes its values on
    unchanged.
    """

    def __init__(self, name: str, type: type[V], *, merge: Callable[[V, V], V] | None = None) -> None:
        if not name:
            raise InvalidDefinition("a context key needs a name")
        check_patterns(type, f"the context key {name!r}")
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
        return msgspec.json.decode(to_text(value, f"the context's {self.name!r}", ANY_SIZE))

    def __repr__(self) -> str:
        return f"Key({self.name!r}, {self.type.__qualname__})"


@checked
class Context(Struct, frozen=True, gc=False):
    """An immutable map from names to JSON values. A typed key decodes a value only when the value is read."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def get(self, key: ReadableKey[V]) -> V | None:
        value = self.values.get(key.name)
        return None if value is None else key.read(value)

    def put(self, key: Key[V], value: V) -> Context:
        return Context({**self.values, key.name: key.write(value)})

    def without(self, key: Key[Any]) -> Context:
        return Context({name: value for name, value in self.values.items() if name != key.name})

    def plus(self, other: Context) -> Context:
        """Return this context with the other context laid over it."""
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


def check_name(name: object, of: str, chars_max: int) -> None:
    """Raise InvalidArguments if some store cannot hold the name."""
    if not isinstance(name, str) or not 0 < len(name) <= chars_max or _UNSTORABLE.search(name) is not None:
        raise InvalidArguments(
            f"the name of {of} must be a text of 1 to {chars_max} characters, without NUL and lone surrogates, not "
            f"{shown(name)}"
        )


class CancellationToken(Struct, frozen=True):
    """A name by which runs can be cancelled together, even if they belong to different hierarchies.

    Pass it to `engine.emit(…, tokens=[CancellationToken("deploy-17")])`, and later to `engine.topics.cancel_token(…)`.

    Two tokens with the same name are the same token. A token needs no registration. Raises InvalidArguments if the name
    is empty, has more than 400 characters, or contains NUL or lone surrogates.
    """

    name: str

    def __post_init__(self) -> None:
        check_name(self.name, "a cancellation token", _TOKEN_CHARS_MAX)

    @property
    def scope(self) -> str:
        """The id under which the token's cancellation is stored. It contains no "/", because "/" separates the ids of a
        lineage.
        """
        return f"token:{self.name.replace('%', '%25').replace('/', '%2F')}"

    @property
    def tag(self) -> str:
        """The key of the tag that runs with this token have."""
        return f"{TOKEN_TAG}{self.name}"


def united(own: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*own, *other)))


# The names of a run's tokens. If one of these tokens is cancelled, the run gives up.
TOKENS: Final = Key("perdure.tokens", tuple[str, ...], merge=united)


# Set in messages that a rollback emits. The value is the number of ids in the lineage of the run that rolls back. The
# reason for such an emission is a cancellation or a rollback of that run, or of a run above it. So that reason does not
# stop the emission.
EXEMPT: Final = Key("perdure.exempt", int, merge=max)

# Set in messages that a function emits. The value is the number of levels of operations and functions above the root
# (see nesting_depth.py).
ABOVE: Final = Key("perdure.levels_above", int, merge=max)

# The time at which handlers of a message may begin, in microseconds since the epoch. Only the context of the message's
# EMITTED row has this key. Runs that have begun, and their messages, do not have it in their contexts.
NOT_BEFORE: Final = Key("perdure.not_before", int, merge=max)

# The number of runs that a periodic operation has had, by name of the operation.
ROUNDS: Final = Key("perdure.rounds", dict[str, int])


def levels_above(context: Context) -> int:
    """Return the number of levels above the root of the hierarchy that a context belongs to."""
    return (context.get(ABOVE) or 0) if ABOVE.name in context.values else 0


def token_names(context: Context | None) -> tuple[str, ...]:
    """Return the names of the tokens in a context."""
    if context is None or TOKENS.name not in context.values:
        return ()
    return context.get(TOKENS) or ()


def not_before(context: Context | None) -> int:
    """Return the time at which handlers of a message with this context may begin. Return 0 if they may begin at
    once.
    """
    if context is None or NOT_BEFORE.name not in context.values:
        return 0
    return context.get(NOT_BEFORE) or 0


def checked_tokens(tokens: Iterable[CancellationToken]) -> tuple[str, ...]:
    """Return the names of tokens. Raises InvalidArguments."""
    if isinstance(tokens, (str, CancellationToken)):
        raise InvalidArguments(f'tokens are a list, as in tokens=[CancellationToken("deploy-17")], not {tokens!r:.80}')
    names: list[str] = []
    for token in tokens:
        given: object = token
        if not isinstance(given, CancellationToken):
            raise InvalidArguments(f'a token is a CancellationToken("name"), not {token!r:.80}')
        names.append(given.name)
    return tuple(dict.fromkeys(names))


def begun(context: Context | None) -> Context:
    """Return the context with which a run begins. It is made from the context of the message's EMITTED row."""
    if context is None:
        return EMPTY
    return context.without(NOT_BEFORE) if NOT_BEFORE.name in context.values else context
