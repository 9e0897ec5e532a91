"""Replicas of exceptions: instances that are made from a stored failure, without calling code of the exception's class.

If the whole exception was stored, its replica is an instance of the original class. Otherwise it is an instance of a
class that derives from both the original class and StepFailed. Only an `Exception` of an imported module is rebuilt. So
a stored row never causes an import, and never calls a constructor.
"""

from __future__ import annotations

import base64
import math
import sys
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from perdure.errors import RunFailed, StepFailed
from perdure.kernel.failures import Attempt, Failure

NO_FORM: Final[Any] = object()
_FAILURE: Final = "_perdure_failure"
_BYTES, _TEXT, _TUPLE, _DICT, _FLOAT = "$bytes", "$text", "$tuple", "$dict", "$float"
_TAGS: Final = frozenset({_BYTES, _TEXT, _TUPLE, _DICT, _FLOAT})
_NOT_FINITE: Final = ("nan", "inf", "-inf")
_DEPTH_MAX: Final = 50

# The fields that Python's own exceptions keep in C, in addition to their arguments.
_UNICODE: Final[tuple[type[Exception], ...]] = (UnicodeDecodeError, UnicodeEncodeError, UnicodeTranslateError)
_NATIVE: Final[tuple[tuple[type[Exception], tuple[str, ...]], ...]] = (
    (OSError, ("errno", "strerror", "filename", "filename2", "characters_written")),
    (ImportError, ("msg", "name", "path", "name_from")),
    (
        SyntaxError,
        ("msg", "filename", "lineno", "offset", "text", "end_lineno", "end_offset", "print_file_and_line"),
    ),
    (AttributeError, ("name",)),
    (NameError, ("name",)),
    *((kind, ("encoding", "object", "start", "end", "reason")) for kind in _UNICODE),
)
_VALIDATION: Final = "pydantic_core._pydantic_core:ValidationError"
_VALIDATION_LINES_MAX: Final = 100
_SHOWN_CHARS: Final = 200


class Replica(StepFailed):
    """A step's exception that could not be stored completely. It has the message of the original exception, and derives
    from the original class.

    `failure` is the stored failure. Attributes that have a JSON form are available.
    """

    def __init_subclass__(cls, **_options: object) -> None:
        """Do not call the hook of the original class, because the hook does not expect a generated subclass."""

    def __str__(self) -> str:
        known = failure_of(self)
        return known.message if known is not None else ""

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise AttributeError(
            f"this {type(self).__qualname__} was made from what is stored of a step's failure, and {name!r} is not "
            "there: attributes without a JSON form are not stored; read it inside the step",
            name=name,
        )


def failure_of(error: BaseException) -> Failure | None:
    """Return the stored failure that the exception was rebuilt from, or None."""
    found = error.__dict__.get(_FAILURE)
    if found is None and isinstance(error, StepFailed):
        found = error.__dict__.get("failure")
    return found if isinstance(found, Failure) else None


def known_failure(error: BaseException) -> Failure | None:
    """Return the failure of a Replica; None for every other exception."""
    return failure_of(error) if isinstance(error, Replica) else None


def find_class(name: str) -> type[Exception] | None:
    """Return the exception class with this name (`module:qualname`), if its module is imported here and still has the
    class.

    Returns None for a class that is not an `Exception`, because a stored row must not end this process. Also returns
    None for StopIteration, because an asyncio future cannot hold it.
    """
    module_name, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module_name)
    for part in qualname.split("."):
        # Do not call `__getattr__` of a module or a metaclass, because it may run code or import a module.
        if isinstance(found, type):
            found = type.__dict__["__dict__"].__get__(found).get(part)
        elif isinstance(found, types.ModuleType):
            found = object.__getattribute__(found, "__dict__").get(part)
        else:
            return None
    if not isinstance(found, type) or not issubclass(found, Exception) or issubclass(found, StopIteration):
        return None
    return found if (found.__module__, found.__qualname__) == (module_name, qualname) else None


def replica(
    failure: Failure, members: Sequence[Exception], says: Callable[[BaseException], str], **about: str
) -> Exception | None:
    """Rebuild the exception, or return None if its class is not available. `members` are the members of a group."""
    cls = find_class(failure.type)
    if cls is None:
        return None
    if failure.args is not None and not failure.partial:
        error = _made(cls, failure, members)
        if error is not None and says(error) == failure.message:
            return error
    derived = _derived(cls)  # type: ignore[arg-type]  # classes can be hashed
    error = None if derived is None else _made(derived, failure, members)
    if error is None:
        return _made(cls, failure, members)
    error.__dict__.update({"failure": failure} | about | error.__dict__ | {_FAILURE: failure})
    return error


@lru_cache(maxsize=256)
def _derived(cls: Any) -> type[Exception] | None:
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    try:
        # Bypass the class's own metaclass, because its code must not run either.
        metaclass: Any = type(cls)
        made: type[Exception] = type.__new__(metaclass, cls.__name__, (Replica, cls), names)
    except TypeError:  # The class is final, or the two classes have incompatible layouts.
        return None
    return made


def _made(cls: type[Exception], failure: Failure, members: Sequence[Exception]) -> Exception | None:
    """Return an instance with the stored arguments and attributes. Calls no `__init__` or `__new__` written in
    Python."""
    args = [decoded(value) for value in failure.args or ()]
    native = {name: decoded(value) for name, value in failure.native.items()}
    try:
        if issubclass(cls, ExceptionGroup):
            if not members:
                return None
            error: Any = BaseExceptionGroup.__new__(cls, args[0] if args else failure.message, members)
        elif failure.type == _VALIDATION:
            error = _validation_error(cls, native)
            _set(BaseException, error, "args", tuple(args))
        else:
            error = _allocator(cls)(cls)
            _set(BaseException, error, "args", tuple(args))
            _restore(error, tuple(args), native)
        for name, value in failure.state.items():
            slot = _slot(cls, name)
            if slot is not None:
                slot.__set__(error, decoded(value))
            else:
                error.__dict__[name] = decoded(value)
    except Exception:  # noqa: BLE001 - classes written in C may raise anything
        return None
    _type_attributes(error)
    made: Exception = error
    return made


def _allocator(cls: type) -> Callable[..., Any]:
    """Return the nearest `__new__` that is not written in Python."""
    for base in cls.__mro__:
        new = vars(base).get("__new__")
        if isinstance(new, types.BuiltinFunctionType):
            return new
    raise TypeError(f"{cls!r} cannot be made")


def _set(base: type, error: BaseException, name: str, value: object) -> None:
    vars(base)[name].__set__(error, value)


def set_cause(error: BaseException, cause: BaseException | None) -> None:
    """Set `__cause__`, even if the exception's class refuses changes."""
    if cause is not None:
        _set(BaseException, error, "__cause__", cause)


def _restore(error: Exception, args: tuple[Any, ...], native: Mapping[str, Any]) -> None:
    for kind in _UNICODE:
        if isinstance(error, kind):
            if native:
                empty = b"" if kind is UnicodeDecodeError else ""
                known = {"object": empty, **native}  # The text may have been too large to store.
                parts = [known[name] for name in ("encoding", "object", "start", "end", "reason") if name in known]
                initialise: Any = kind.__init__
                initialise(error, *parts)
                _set(BaseException, error, "args", args)
            return
    if isinstance(error, OSError) and not native:
        OSError.__init__(error, *args)
    for base, names in _NATIVE:
        if isinstance(error, base):
            for name in names:
                if name in native and name in vars(base):
                    _set(base, error, name, native[name])


def _type_attributes(error: Exception) -> None:
    """Convert those attributes of Perdure's own errors that are records instead of plain values."""
    if not isinstance(error, (StepFailed, RunFailed)):
        return
    held = error.__dict__
    for name, kind in (("failure", Failure), ("history", list[Attempt])):
        if isinstance(held.get(name), (dict, list)):
            try:
                held[name] = msgspec.convert(held[name], kind)
            except msgspec.ValidationError:
                continue


def _slot(cls: type, name: str) -> Any:
    for base in cls.__mro__:
        found = vars(base).get(name)
        if isinstance(found, types.MemberDescriptorType):
            return found
    return None


# ---------------------------------------------------------------------------------------------------------------------
# The stored parts of an exception


def attributes_of(error: BaseException) -> Iterator[tuple[str, Any]]:
    """Return the exception's own attributes, including those in slots."""
    for base in type(error).__mro__:
        for name, found in vars(base).items():
            if isinstance(found, types.MemberDescriptorType) and base.__module__ != "builtins":
                try:
                    yield name, found.__get__(error)
                except AttributeError:  # The slot has no value.
                    continue
    yield from list(error.__dict__.items())


def native_of(error: BaseException) -> dict[str, Any]:
    """Return the encoded values that an exception written in C keeps in addition to its arguments and attributes.
    NO_FORM replaces a value that cannot be encoded.
    """
    if f"{type(error).__module__}:{type(error).__qualname__}" == _VALIDATION:
        return _validation_state(error)
    found: dict[str, Any] = {}
    for base, names in _NATIVE:
        if not isinstance(error, base):
            continue
        for name in names:
            try:
                value = vars(base)[name].__get__(error)
            # This version of Python does not have the field, or the field has no value.
            except (KeyError, AttributeError, TypeError):
                continue
            if value is not None:
                found[name] = encoded(value)
    return found


def encoded(value: Any, depth: int = 0) -> Any:
    """Return the value in JSON's own types, or NO_FORM if it has no JSON form. Bytes, tuples, texts with lone
    surrogates, NaN and infinity are tagged, so that they can be restored. Other types are encoded by msgspec."""
    if value is None or isinstance(value, bool) or type(value) is int:
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: str(float(value))}
    if depth > _DEPTH_MAX:
        return NO_FORM
    if type(value) is str:
        if value.isascii():
            return value
        try:
            value.encode()
        except UnicodeEncodeError:
            return {_TEXT: base64.b64encode(value.encode(errors="surrogatepass")).decode()}
        return value
    if type(value) is bytes:
        return {_BYTES: base64.b64encode(value).decode()}
    if type(value) in (list, tuple):
        items = [encoded(one, depth + 1) for one in value]
        if any(one is NO_FORM for one in items):
            return NO_FORM
        return {_TUPLE: items} if type(value) is tuple else items
    if type(value) is dict and all(type(key) is str for key in value):
        parts = {key: encoded(one, depth + 1) for key, one in value.items()}
        if any(one is NO_FORM for one in parts.values()):
            return NO_FORM
        return {_DICT: parts} if len(parts) == 1 and _TAGS & parts.keys() else parts
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except Exception:  # noqa: BLE001 - users' classes may raise anything
        return NO_FORM


def decoded(value: Any) -> Any:
    """Return the value that `encoded` has encoded."""
    if type(value) is list:
        return [decoded(one) for one in value]
    if type(value) is not dict:
        return value
    if len(value) == 1:
        ((tag, content),) = value.items()
        if tag == _TUPLE and type(content) is list:
            return tuple(decoded(one) for one in content)
        if tag == _DICT and type(content) is dict:
            return {key: decoded(one) for key, one in content.items()}
        if tag == _FLOAT and content in _NOT_FINITE:
            return float(content)
        if tag in (_BYTES, _TEXT) and type(content) is str:
            found = base64.b64decode(content)
            return found if tag == _BYTES else found.decode(errors="surrogatepass")
    return {key: decoded(one) for key, one in value.items()}


# ---------------------------------------------------------------------------------------------------------------------
# pydantic's ValidationError, which can only be made from its lines


class _Shown:
    """Replaces an input that has no JSON form, and looks the same in a message."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _validation_state(error: Any) -> dict[str, Any]:
    lines: list[dict[str, Any]] = []
    for one in error.errors(include_url=False)[:_VALIDATION_LINES_MAX]:
        line = {"type": one["type"], "loc": list(one["loc"]), "msg": one["msg"]}
        given = one.get("input")
        if (form := encoded(given)) is NO_FORM or decoded(form) != given:
            line["shown"] = [type(given).__qualname__, repr(given)[:_SHOWN_CHARS]]
        else:
            line["input"] = form
        context = {
            name: str(value) if isinstance(value, Exception) else encoded(value)
            for name, value in one.get("ctx", {}).items()
        }
        if context and not any(value is NO_FORM for value in context.values()):
            line["ctx"] = context
        lines.append(line)
    return {"title": str(error.title), "errors": lines}


def _validation_error(cls: Any, native: Mapping[str, Any]) -> Exception:
    custom: Any = sys.modules["pydantic_core"]
    lines: list[dict[str, Any]] = []
    for one in native["errors"]:
        given = one.get("input")
        if "shown" in one:
            name, text = one["shown"]
            given = type(name, (_Shown,), {})(text)
        line = {"type": one["type"], "loc": tuple(one["loc"]), "input": given}
        context = dict(one.get("ctx", {}))
        if "error" in context:
            context["error"] = ValueError(context["error"])
        if context:
            line["ctx"] = context
        try:
            cls.from_exception_data("", [line])
        except Exception:  # noqa: BLE001 - the type is a user's own, or comes from another version
            line.pop("ctx", None)
            line["type"] = custom.PydanticCustomError(one["type"], one["msg"])
        lines.append(line)
    made: Exception = cls.from_exception_data(native["title"], lines)
    return made
