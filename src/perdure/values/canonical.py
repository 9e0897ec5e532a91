"""A canonical form: equal values have the same form. The form decides whether two requests with the same id or key are
equal.

In this form, sets and the keys of objects are sorted. A whole number is an integer, even if it was written as a float.
A time with a zone is in UTC. The form is made from JSON. So a value and its JSON text have the same form, even if the
text is read without the type. Times are the exception: without the type, a time is only a text.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from perdure.values.json import encode_value

_WHOLE_MAX = 2**53  # Beyond this, a float cannot represent every integer.
_AS_IS = frozenset({str, int, bool, type(None)})
_AS_IS_WITH_FLOATS = _AS_IS | {float}


def canonical(value: Any, *, numbers: bool = True) -> bytes:
    """Return the canonical JSON of the value. Without `numbers`, numbers and times keep the form in which they were
    written.
    """
    return msgspec.json.encode(_plain(value, _Form(numbers, numbers)), order="sorted")


def plain(value: Any) -> Any:
    """Return the value in JSON's own types, with sets sorted. Readers use this form if they do not have the type. Never
    raises: a value without a JSON form is returned unchanged.
    """
    try:
        return _plain(value, _Form(False, False))
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return value


def digest(value: Any, *, instants: bool = True) -> str:
    """Return a hash of the canonical form. Without `instants`, times keep the form in which they were written, as in
    earlier versions of Perdure.
    """
    form = msgspec.json.encode(_plain(value, _Form(True, instants)), order="sorted")
    return hashlib.sha256(form).hexdigest()[:32]


def number_text(number: float) -> str:
    """Return a float as JSON text; a whole number is written as an integer."""
    return msgspec.json.encode(_whole(number)).decode()


def _whole(number: float) -> float:
    return int(number) if number.is_integer() and abs(number) <= _WHOLE_MAX else number


class _Form(NamedTuple):
    """The rules for equal values besides sorting: numbers written in two ways, and times in different zones."""

    numbers: bool
    instants: bool


def _plain(value: Any, form: _Form) -> Any:
    kind = type(value)
    as_is = _AS_IS if form.numbers else _AS_IS_WITH_FLOATS
    if kind is list:  # The types of JSON come first, because there may be thousands of them.
        return [one if type(one) in as_is else _plain(one, form) for one in value]
    if kind is dict:
        return {
            key if type(key) is str else _key(key, form): one if type(one) in as_is else _plain(one, form)
            for key, one in value.items()
        }
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return _whole(value) if form.numbers else value
    if isinstance(value, datetime) and form.instants and value.tzinfo is not None:
        return msgspec.json.decode(encode_value(_in_utc(value)))
    if isinstance(value, AbstractSet):
        items = [_plain(one, form) for one in value]
        return sorted(items, key=lambda one: msgspec.json.encode(one, order="sorted"))
    if isinstance(value, (list, tuple)):
        return [_plain(one, form) for one in value]
    if isinstance(value, Mapping):
        return {_key(key, form): _plain(one, form) for key, one in value.items()}
    written = msgspec.json.decode(encode_value(value))
    if isinstance(written, dict):
        dump = getattr(value, "model_dump", None)
        fields = dump() if dump is not None else _fields(value)
        return {name: _plain(fields.get(name, one), form) for name, one in written.items()}
    return written if isinstance(written, str) else _plain(written, form)


def _in_utc(time: datetime) -> datetime:
    try:
        return time.astimezone(UTC)
    except OverflowError:  # The time is within a day of the earliest or the latest datetime.
        return time


def _key(key: Any, form: _Form) -> str:
    if isinstance(key, str):
        return key
    if isinstance(key, datetime) and form.instants and key.tzinfo is not None:
        key = _in_utc(key)
    (text,) = msgspec.json.decode(encode_value({key: None}))
    return str(text)


def _fields(value: Any) -> dict[str, Any]:
    """Return the fields of an object by their names in JSON."""
    if isinstance(value, msgspec.Struct):
        return {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
    if dataclasses.is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    names = (field.name for field in getattr(type(value), "__attrs_attrs__", ()))
    return {name: getattr(value, name) for name in names}
