"""Python values as JSON text and back, typed by annotations, through msgspec.

Workflows and steps always receive values that were decoded from the stored text, live and in a replay.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from perdure.errors import InvalidArguments, InvalidDefinition, UnstorableValue
from perdure.values.arguments import calling_frame
from perdure.values.patterns import Searches
from perdure.values.type_patterns import check_patterns

PAYLOAD_MAX_BYTES = 2 * 1024 * 1024
ANY_SIZE: Final = sys.maxsize  # no limit here: the size is bounded elsewhere
_LONG_NUMBER_DIGITS = 300
_LONG_NUMBER = re.compile("(?<![0-9])[0-9]{300}")  # a match must begin at a number's first digit
UNSTORABLE_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL and lone surrogates, which keys and names must not have
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_IMMUTABLE = frozenset({str, int, float, bool, type(None), bytes})


def bytes_of(text: str) -> int:
    """Return how many bytes a text takes, as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def to_text(value: Any, what: str, payload_max: int = PAYLOAD_MAX_BYTES) -> str:
    """Return the value as JSON text. Raises UnstorableValue, with the type and the path of the part, if the value
    cannot be stored.
    """
    try:
        data = _ENCODER.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError, NotImplementedError) as error:
        raise UnstorableValue(f"{what} cannot be stored: {_culprit(value) or error}") from error
    size = len(data)
    if size > payload_max:
        raise UnstorableValue(
            f"{what} takes {size:,} bytes as JSON, more than the limit of {payload_max:,}; "
            "store it elsewhere and pass a reference, or raise payload_bytes_max"
        )
    text = data.decode()
    # msgspec silently writes NaN and infinity as null, so check each value that contains a null.
    suspicious = ("null" in text and not _is_finite(value)) or (
        size >= _LONG_NUMBER_DIGITS and _LONG_NUMBER.search(text) is not None
    )
    if suspicious and (culprit := _culprit(value)):
        raise UnstorableValue(f"{what} cannot be stored: {culprit}")
    return text


def _is_finite(value: Any) -> bool:
    """Whether the value contains no NaN and no infinity.

    A fast check comes first, and an exact check only if needed.
    """
    import json  # Imported late, because it is rarely needed.

    try:
        json.dumps(msgspec.to_builtins(value, str_keys=True, enc_hook=python_form), allow_nan=False)
    except ValueError:
        return False
    return True


def python_form(value: Any) -> Any:
    """Return a Python form of an object that msgspec does not know. Sets stay sets."""
    dump = getattr(value, "model_dump", None)  # This recognises a pydantic model without importing pydantic.
    if dump is not None:
        return dump()
    raise NotImplementedError(f"objects of type {type(value).__qualname__} have no JSON form")


def _encode_hook(value: Any) -> Any:
    dump = getattr(value, "model_dump", None)
    if dump is not None:
        return dump(mode="json")
    raise NotImplementedError(f"objects of type {type(value).__qualname__} have no JSON form")


_SEARCH_STEPS_MAX: Final = 200_000  # steps of all patterns in one value: about 30 ms


class _Hook:
    """Decodes types that msgspec does not know. All texts of one value share one budget for matching patterns."""

    __slots__ = ("searches",)

    def __init__(self) -> None:
        self.searches: Searches | None = None

    def __call__(self, wanted: type, value: Any) -> Any:
        if wanted is object:
            return value
        validate = getattr(wanted, "model_validate", None)
        if validate is None:
            raise NotImplementedError(f"objects of type {wanted.__qualname__} cannot be read back from JSON")
        if not getattr(wanted, "searches", False):
            return validate(value)
        if self.searches is None:
            self.searches = Searches(_SEARCH_STEPS_MAX)
        return validate(value, self.searches)


_ENCODER = msgspec.json.Encoder(enc_hook=_encode_hook)


def encode_value(value: Any) -> bytes:
    """Return the value as JSON, without checks."""
    return _ENCODER.encode(value)


class Reader:
    """Decodes JSON text into one type."""

    __slots__ = ("_decode", "_hook", "_name")

    def __init__(self, wanted: Any, what: str, name: str | None = None) -> None:
        self._name = name or f"annotation {_name(wanted)}"
        self._hook = _Hook()
        try:
            self._decode = msgspec.json.Decoder(wanted, dec_hook=self._hook).decode
        except TypeError as error:
            raise InvalidDefinition(f"{what} has an annotation that cannot be stored: {error}") from error
        check_patterns(wanted, what)

    def read(self, text: str, what: str) -> Any:
        """Return the decoded value. Raises UnstorableValue, with the path, if the text does not fit the type."""
        self._hook.searches = None
        try:
            return self._decode(text)
        except (msgspec.ValidationError, ValueError, NotImplementedError) as error:
            raise UnstorableValue(f"{what} does not fit its {self._name}: {error}") from error


class Signature:
    """A function's parameters and result: checks calls, writes arguments as JSON, reads them back."""

    tells_staged = False  # Whether results include the artifacts that the step has staged.

    def __init__(self, function: Callable[..., Any], what: str, local_names: Mapping[str, Any]) -> None:
        self.what = what
        self.about_input = f"the input of {what}"
        self.about_result = f"the result of {what}"
        self._function = function
        self._local_names = local_names
        self._signature = inspect.signature(function)
        self._parameters = list(self._signature.parameters.values())
        self._names = [p.name for p in self._parameters]
        plain = all(p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY) for p in self._parameters)
        self.most = len(self._parameters) if plain else -1
        self.least = sum(p.default is p.empty for p in self._parameters)
        self.places = [p.name for p in self._parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.POSITIONAL_ONLY)]
        self._readers: tuple[Reader, Reader] | None = None

    @property
    def parameters(self) -> Sequence[inspect.Parameter]:
        return self._parameters

    def check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise InvalidArguments unless the function can be called with these arguments."""
        if kwargs or not self.least <= len(args) <= self.most:
            self._bind(args, kwargs)

    def _bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments of the call by parameter name."""
        if not kwargs and self.least <= len(args) <= self.most:
            return dict(zip(self._names, args, strict=False))
        try:
            return self._signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidArguments(f"{self.what}{self._signature}: {error}") from None

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments by name. Raises InvalidArguments."""
        return dict(self._bind(args, kwargs))

    def complete(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, with defaults for the arguments that were left out."""
        defaults = {p.name: p.default for p in self._parameters if p.default is not p.empty}
        return {**defaults, **arguments}

    def write(self, args: tuple[Any, ...], kwargs: dict[str, Any], payload_max: int) -> str:
        """Return the arguments by name as a JSON object, checked against the annotations."""
        text = to_text(self._bind(args, kwargs), self.about_input, payload_max)
        try:
            self.read(text)
        except UnstorableValue as error:
            raise InvalidArguments(str(error)) from error
        return text

    def read(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments for a call.

        Raises UnstorableValue if the text no longer fits the function's parameters.
        """
        given = self._resolve()[1].read(text, self.about_input)
        if self.most >= 0:
            values = astuple(given)
            for value in values:
                if value is msgspec.UNSET:
                    break
            else:
                return values, {}
        args: tuple[Any, ...] = ()
        kwargs: dict[str, Any] = {}
        for parameter in self._parameters:
            value = getattr(given, parameter.name)
            if value is msgspec.UNSET:
                if parameter.default is parameter.empty and parameter.kind not in _COLLECTING:
                    raise UnstorableValue(f"the input of {self.what} has no value for parameter {parameter.name!r}")
            elif parameter.kind is parameter.VAR_POSITIONAL:
                args += tuple(value)
            elif parameter.kind is parameter.VAR_KEYWORD:
                kwargs.update(value)
            elif parameter.kind is parameter.KEYWORD_ONLY or len(args) < self._names.index(parameter.name):
                kwargs[parameter.name] = value
            else:
                args += (value,)
        return args, kwargs

    def copy(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], payload_max: int = PAYLOAD_MAX_BYTES
    ) -> tuple[tuple[Any, ...], dict[str, Any], int]:
        """Return a copy of the arguments, and the length of their JSON. Because of the copy, changes that the caller or
        the callee makes later have no effect on each other. The length is 0 if the arguments are immutable and need no
        copy. The arguments are not stored, so a `payload_max` below the default is ignored.

        Raises InvalidDefinition if the annotations are invalid, before the function is called.
        """
        if self._readers is None:
            self._resolve()
        if not kwargs:
            for value in args:
                if type(value) not in _IMMUTABLE:
                    break
            else:
                return args, kwargs, 0
        text = to_text(self._bind(args, kwargs), f"an argument of {self.what}", max(payload_max, PAYLOAD_MAX_BYTES))
        return *self.read(text), len(text)

    @cached_property
    def result(self) -> Reader:
        return self._resolve()[0]

    def _resolve(self) -> tuple[Reader, Reader]:
        """Resolve the annotations at first use, because they may name classes that are defined further down in the
        module.
        """
        if self._readers is None:
            hints = _type_hints(self._function, self.what, self._local_names)
            fields: list[tuple[str, Any, Any]] = []
            for parameter in self._parameters:
                wanted: Any = hints.get(parameter.name, Any)
                if parameter.kind is parameter.VAR_POSITIONAL:
                    wanted = tuple[wanted, ...]
                elif parameter.kind is parameter.VAR_KEYWORD:
                    wanted = dict[str, wanted]
                fields.append((parameter.name, wanted, msgspec.UNSET))
            arguments = msgspec.defstruct("Arguments", fields, forbid_unknown_fields=True)
            self._readers = (
                Reader(_result_type(hints), f"the result of {self.what}"),
                Reader(arguments, f"a parameter of {self.what}", "parameters"),
            )
        return self._readers


def _type_hints(function: Callable[..., Any], what: str, local_names: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function, localns=dict(local_names), include_extras=True)
    except NameError as error:
        raise InvalidDefinition(
            f"{what} has an annotation that cannot be found: {error}; define the type at the top level of its module"
        ) from error
    except Exception as error:  # Annotations are expressions, so evaluating them may raise any exception.
        raise InvalidDefinition(f"{what} has an annotation that makes no sense: {error!r}") from error


def _result_type(hints: Mapping[str, Any]) -> Any:
    wanted = hints.get("return", Any)
    # A function that never returns needs no result type.
    return Any if wanted in (typing.NoReturn, typing.Never) else wanted


def local_names(function: Callable[..., Any], depth: int) -> Mapping[str, Any]:
    """Return the local names that the annotations of a nested function may use."""
    if "<locals>" not in function.__qualname__:
        return {}
    return dict(calling_frame(depth + 1).f_locals)


def _culprit(value: Any, path: str = "$", depth: int = 0) -> str | None:
    """Return the part of the value that cannot be stored, and its path. Return None if no part is found."""
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value} at {path} is not a number that JSON has"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 1024:
        return f"the integer at {path} has more than 1,024 bits"
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            return f"the text at {path} has a lone surrogate: {value[:40]!r}"
        return None
    if depth > 100:
        return f"it is nested too deep, or contains itself, at {path[:80]}…"
    if isinstance(value, Mapping):
        for key in value:
            if not _has_form({key: 0}):
                return f"the key {key!r:.80} at {path} has no JSON form: use texts, numbers or the like as keys"
    for step, child in _children(value):
        if found := _culprit(child, path + step, depth + 1):
            return found
    if _has_form(value):
        return None
    return f"{type(value).__module__}.{type(value).__qualname__} at {path} has no JSON form"


def _children(value: Any) -> Sequence[tuple[str, Any]]:
    if isinstance(value, Mapping):
        return [(f"[{key!r}]", child) for key, child in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(f"[{index}]", child) for index, child in enumerate(value)]
    if isinstance(value, msgspec.Struct):
        names: Sequence[str] = value.__struct_fields__
    elif dataclasses.is_dataclass(value):
        names = [field.name for field in dataclasses.fields(value)]
    elif hasattr(type(value), "model_fields"):
        names = list(type(value).model_fields)
    elif hasattr(type(value), "__attrs_attrs__"):
        names = [field.name for field in type(value).__attrs_attrs__]
    else:
        return []
    return [(f".{name}", getattr(value, name, None)) for name in names]


def _has_form(value: Any) -> bool:
    try:
        _ENCODER.encode(value)
    except Exception:  # noqa: BLE001 - users' types may raise anything
        return bool(_children(value)) and not isinstance(value, Mapping)
    return True


def _name(wanted: Any) -> str:
    return wanted.__qualname__ if isinstance(wanted, type) and not typing.get_args(wanted) else str(wanted)
