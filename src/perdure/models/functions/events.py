"""Events: typed events, which are msgspec structs with options, and plain named values."""

from __future__ import annotations

import math
import weakref
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cache
from typing import Any, Final, Literal

import msgspec
from msgspec import UNSET, Struct, StructMeta, UnsetType
from msgspec.structs import replace

from perdure.errors import InvalidArguments, InvalidDefinition, UnstorableValue
from perdure.values.arguments import Duration, span_of
from perdure.values.canonical import number_text
from perdure.values.json import UNSTORABLE_TEXT, Reader

NAME_MAX_CHARS = 500
OPTIONS = "__event_options__"
_FIELD_MAX_CHARS = 200

Delivery = Literal["after_wait", "after_create", "all"]
Fallback = Literal["discard", "broadcast", "dead_letter"]


class EventOptions(Struct, frozen=True, kw_only=True):
    """The options for all events of one name. They say how these events are kept and delivered."""

    name: str
    expire_after: timedelta | None = None
    consume_on_read: bool = True
    delivery: Delivery = "after_wait"
    on_target_terminated: Fallback = "discard"


def check_options(options: EventOptions, what: str) -> None:
    if options.expire_after is not None and options.expire_after <= timedelta(0):
        raise InvalidDefinition(f"{what}: expire_after must be longer than nothing, not {options.expire_after}")
    if options.delivery not in ("after_wait", "after_create", "all"):
        raise InvalidDefinition(f'{what}: delivery is "after_wait", "after_create" or "all", not {options.delivery!r}')
    if options.on_target_terminated not in ("discard", "broadcast", "dead_letter"):
        raise InvalidDefinition(
            f'{what}: on_target_terminated is "discard", "broadcast" or "dead_letter", '
            f"not {options.on_target_terminated!r}"
        )


def checked_name(name: object) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX_CHARS or UNSTORABLE_TEXT.search(name) is not None:
        raise InvalidDefinition(f"an event's name is a text of 1 to {NAME_MAX_CHARS} characters, not {name!r:.80}")
    return name


_KINDS: Final[dict[str, weakref.WeakSet[type]]] = {}


def _remember(name: str, kind: type) -> None:
    """Remember an event class, so that events that are sent by name alone can be checked against it. A class that is
    defined inside a function is not remembered, because it is not meant for other code.
    """
    if "<locals>" not in kind.__qualname__:
        _KINDS.setdefault(name, weakref.WeakSet()).add(kind)


class _EventMeta(StructMeta):
    """Takes the options of an event from its class statement, and passes the other options to msgspec."""

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        event_name: str | None = None,
        expire_after: Duration | UnsetType | None = UNSET,
        consume_on_read: bool | UnsetType = UNSET,
        delivery: Delivery | UnsetType = UNSET,
        on_target_terminated: Fallback | UnsetType = UNSET,
        **struct_options: Any,
    ) -> Any:
        struct_options.setdefault("frozen", True)
        cls = super().__new__(mcls, name, bases, namespace, **struct_options)
        given: dict[str, object] = {
            "expire_after": expire_after,
            "consume_on_read": consume_on_read,
            "delivery": delivery,
            "on_target_terminated": on_target_terminated,
        }
        called = checked_name(cls.__qualname__.rpartition(".")[2] if event_name is None else event_name)
        # Options that the class statement leaves out are inherited from the nearest base class. A name is never
        # inherited.
        inherited: EventOptions = getattr(cls, OPTIONS, None) or EventOptions(name=called)
        if expire_after is not UNSET and expire_after is not None:
            what = f"event {cls.__qualname__!r}: expire_after"
            given["expire_after"] = span_of(expire_after, what, error=InvalidDefinition, positive=True)
        said = {option: value for option, value in given.items() if value is not UNSET}
        options: EventOptions = replace(inherited, name=called, **said)
        check_options(options, f"event {cls.__qualname__!r}")
        setattr(cls, OPTIONS, options)
        _remember(called, cls)
        return cls


class Event(Struct, metaclass=_EventMeta):
    """A typed value that is sent to runs. Define a subclass, with fields as in any msgspec struct.

        class Paid(Event, event_name="payments.paid", expire_after=timedelta(days=7)):
            amount: int

    Options:
    - `event_name`: the default is the name of the class.
    - `expire_after`: the event is not delivered after this time.
    - `consume_on_read`: if True, exactly one waiting run gets the event. If False, all waiting runs get the event. Runs
      that begin to wait later get the event as `delivery` says, until it expires.
    - `delivery`, for events that are not consumed. "after_wait" delivers events that are sent while the run waits.
      "after_create" delivers events that are sent after the run was created. "all" delivers every event.
    - `on_target_terminated` says what happens to an event whose run ends before it reads the event: "discard",
      "broadcast" or "dead_letter".

    A subclass inherits all options of its base class except the name, and can override them.
    """


class NamedEvent(Struct, frozen=True):
    """An event that has a name and no class. Its value is any JSON value."""

    name: str
    value: Any = None


def options_of(event: Event | NamedEvent | type[Event]) -> EventOptions:
    """Return the options of an event or an event class. Raises InvalidArguments for anything else."""
    if isinstance(event, NamedEvent):
        return EventOptions(name=checked_name(event.name))
    options = getattr(event, OPTIONS, None)
    if not isinstance(options, EventOptions) or event is Event or type(event) is Event:
        raise InvalidArguments(f"events are subclasses of Event, or NamedEvent(name, value), not {event!r:.80}")
    return options


@cache
def _reader_of(kind: type[Event]) -> Reader:
    return Reader(kind, f"event {kind.__qualname__!r}")


def read_event(kind: type[Event], text: str, name: str) -> Event:
    """Return the event that a JSON text contains. Raises UnstorableValue if the text does not fit the class.

    An event that was sent by its name alone may have no value. Then it is read as an event without fields.
    """
    event: Event = _reader_of(kind).read("{}" if text == "null" else text, f"the event {name!r}")
    return event


@cache
def field_names(kind: type[Event]) -> frozenset[str]:
    return frozenset(field.encode_name for field in msgspec.structs.fields(kind))


def value_of(event: Event | NamedEvent) -> Any:
    return event.value if isinstance(event, NamedEvent) else event


def fields_of(value: Any) -> dict[str, str]:
    """Return the fields that a wait can filter by, each as JSON. These are the short texts, numbers, true, false and
    null at the top level of an event's value.
    """
    if not isinstance(value, dict):
        return {}
    found: dict[str, str] = {}
    for name, part in value.items():
        if (
            part is None
            or isinstance(part, (bool, int, float))
            or (isinstance(part, str) and len(part) <= _FIELD_MAX_CHARS)
        ):
            found[str(name)] = number_text(part) if type(part) is float else msgspec.json.encode(part).decode()
    return found


def check_value(event: Event | NamedEvent, text: str) -> None:
    """Check that the event's class can read its JSON text. For a NamedEvent, it is enough that one class of that name
    can read the text. Raises InvalidArguments.
    """
    if isinstance(event, NamedEvent):
        check_text(event.name, text)
    else:
        _check_readable([type(event)], options_of(event).name, text)


def check_text(name: str, text: str) -> None:
    """Check an event that has only a name, as `check_value` does. Accepts any text if no class in this process has the
    name.
    """
    kinds = [kind for kind in _KINDS.get(name, ()) if kind is not Event]
    if kinds:
        _check_readable(kinds, name, text)


def _check_readable(kinds: Sequence[type[Event]], name: str, text: str) -> None:
    wrong = ""
    for kind in kinds:
        try:
            read_event(kind, text, name)
        except UnstorableValue as error:
            wrong = str(error)
        else:
            return
    raise InvalidArguments(f"{wrong}; nothing was sent")


def where_of(where: Mapping[str, Any] | None, what: str) -> tuple[tuple[str, str], ...]:
    """Return the filter of a wait. It has the required value of each field as JSON, sorted by field name. Raises
    InvalidArguments for a value that no field can have.
    """
    if not where:
        return ()
    plain = msgspec.to_builtins(dict(where), enc_hook=str)
    fields = fields_of({name: part for name, part in plain.items() if _is_storable(part)})
    if missing := sorted(set(where) - set(fields)):
        raise InvalidArguments(
            f"{what}: `where` can only match short texts, numbers, booleans and None; {missing[0]!r} is "
            f"{where[missing[0]]!r:.80}"
        )
    return tuple(sorted(fields.items()))


def _is_storable(part: Any) -> bool:
    """Return whether a field of an event can have this value. No event has NaN, infinity or a lone surrogate."""
    if isinstance(part, float):
        return math.isfinite(part)
    return not isinstance(part, str) or part.isascii() or not any("\ud800" <= sign <= "\udfff" for sign in part)
