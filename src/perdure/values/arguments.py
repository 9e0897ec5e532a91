"""Check arguments against their annotations at run time, because not everybody runs a type checker.

`@checked` refuses an argument of a wrong type before the function's body runs. It decorates a function, or a class with
all its public methods and its constructor. So no work is left half done, and callers never see a TypeError, an
AttributeError or a driver's error from inside Perdure. The check uses only the annotations, so it covers every new
method without further code.

The function itself checks the rules that annotations cannot express, for example the maximum length of a text.

Every public parameter that is a duration is a `Duration`: a timedelta, or a number of seconds. A duration that is
negative, not finite, or too long for a timedelta is refused. A parameter whose name ends in `_s` is a number of
seconds. A deadline may also be a datetime with a time zone. It may be in the past.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from perdure.errors import InvalidArguments, Misuse

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

Parts = Callable[[Any], "Iterator[tuple[str, Any, Form]]"]

_SHOWN_MAX_CHARS: Final = 80
_SHOWN_DEPTH_MAX: Final = 20
_BRACKETS: Final[dict[type[Any], tuple[str, str]]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    dict: ("{", "}"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
}
_INT64_MAX: Final = 2**63 - 1
_UNHINTED: Final = (Any, object, inspect.Parameter.empty)
# the annotations that are not checked, as they are spelt
_UNTESTED: Final = ("Any", "object", "P.args", "P.kwargs", inspect.Parameter.empty)
_NOTHING: Final = timedelta(0)
_LONGEST_S: Final = timedelta.max.total_seconds()
IS_DURATION: Final = "a duration"

Duration: TypeAlias = Annotated[timedelta | float, IS_DURATION]


def shown(value: object) -> str:
    """Return the beginning of a value's repr, for messages.

    It never raises, although a repr may be a user's code, and a number may have too many digits to print. It takes
    little time and memory even for a large value, because it formats only the beginning.
    """
    try:
        text = _beginning(value, _SHOWN_MAX_CHARS + 1, 0)
    except Exception:  # noqa: BLE001 - the message is about something else
        text = f"<{type(value).__qualname__} object>"
    return text if len(text) <= _SHOWN_MAX_CHARS else f"{text[:_SHOWN_MAX_CHARS]}…"


def _beginning(value: Any, chars: int, depth: int) -> str:
    """Return at least `chars` characters of a repr, or the whole repr if it is shorter. Only the repr of builtin types
    is cut; other types define their own repr.
    """
    kind = type(value)
    if kind in (str, bytes):
        return repr(value[:chars])
    brackets = _BRACKETS.get(kind)
    if brackets is None or not value:
        return repr(value)
    if depth >= _SHOWN_DEPTH_MAX:
        return "…"
    begin, end = brackets
    written = begin
    for number, part in enumerate(value):
        written += ", " if number else ""
        written += _beginning(part, max(1, chars - len(written)), depth + 1)
        if kind is dict:
            written += f": {_beginning(value[part], max(1, chars - len(written)), depth + 1)}"
        if len(written) >= chars:
            return written
    return written + ("," if kind is tuple and len(value) == 1 else "") + end


def check_storable(text: str, place: str, chars_max: int = 500) -> None:
    """Raise InvalidArguments for a text that no store could hold as a key."""
    if not 0 < len(text) <= chars_max:
        raise InvalidArguments(f"{place} is a text of 1 to {chars_max} characters, not {shown(text)}")
    if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
        raise InvalidArguments(f"{place} cannot contain NUL or lone surrogates: {shown(text)}")


class Form:
    """The values that an annotation allows: a test (`allows`) and a text for the message (`words`). For lists, mappings
    and unions, `parts` yields each part of a value with its place and its own form. So a message can name the wrong
    part.
    """

    __slots__ = ("allows", "parts", "surely", "words")

    def __init__(
        self,
        words: str,
        allows: Callable[[Any], bool],
        parts: Parts | None = None,
        surely: frozenset[type[Any]] = frozenset(),
    ) -> None:
        self.words = words
        self.allows = allows
        self.parts = parts
        self.surely = surely  # types whose values are always allowed, so that most arguments need no further test

    def wrong(self, value: Any, place: str) -> str:
        """Return a text that says what is wrong with a value that is not allowed."""
        for where, part, form in self.parts(value) if self.parts is not None else ():
            if not form.allows(part):
                return form.wrong(part, f"{place}{where}")
        if isinstance(value, datetime) and "time zone" in self.words:
            return f"{place}: {shown(value)} has no time zone; use datetime.now(UTC) or another time with a zone"
        given = shown(value) if value is None else f"{shown(value)} ({type(value).__qualname__})"
        return f"{place} is {self.words}, not {given}"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_INT64_MAX <= value <= _INT64_MAX


def _is_time(value: Any) -> bool:
    return isinstance(value, datetime) and value.utcoffset() is not None


def _is_duration(value: Any) -> bool:
    if isinstance(value, timedelta):
        return value >= _NOTHING
    return _is_number(value) and 0 <= value < _LONGEST_S


_DURATION: Final = Form("a duration (a timedelta or a number of seconds, finite and not negative)", _is_duration)


def span_of(
    duration: object, what: str, *, error: type[Misuse] = InvalidArguments, positive: bool = False
) -> timedelta:
    """Return a duration as a timedelta. Raises `error` if it is not a duration; the message calls the parameter `what`.
    With `positive`, the duration must be longer than 0.
    """
    if not _DURATION.allows(duration):
        raise error(_DURATION.wrong(duration, what))
    found = duration if isinstance(duration, timedelta) else timedelta(seconds=typing.cast(float, duration))
    if positive and not found:
        raise error(f"{what} is longer than nothing, not {shown(duration)}")
    return found


_PLAIN: Final[dict[Any, Form]] = {
    str: Form("a text", lambda value: isinstance(value, str), surely=frozenset({str})),
    bytes: Form("bytes", lambda value: isinstance(value, bytes), surely=frozenset({bytes})),
    bool: Form("True or False", lambda value: isinstance(value, bool), surely=frozenset({bool})),
    int: Form("a whole number of at most 64 bits", _is_whole),
    float: Form("a finite number", _is_number),
    datetime: Form("a datetime with a time zone", _is_time),
    date: Form("a date", lambda value: isinstance(value, date)),
    timedelta: Form("a timedelta", lambda value: isinstance(value, timedelta), surely=frozenset({timedelta})),
    types.NoneType: Form("None", lambda value: value is None, surely=frozenset({types.NoneType})),
}


def form_of(hint: Any) -> Form | None:
    """Return the form of an annotation. Return None if the annotation allows everything or cannot be tested."""
    if hint in _UNHINTED or isinstance(hint, (TypeVar, str, typing.ForwardRef)):
        return None
    if hint is None:
        hint = types.NoneType
    if isinstance(hint, typing.NewType):
        return form_of(hint.__supertype__)
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _DURATION if IS_DURATION in hint.__metadata__ else form_of(typing.get_args(hint)[0])
    if origin in (typing.Union, types.UnionType):
        return _union(typing.get_args(hint))
    if origin is typing.Literal:
        return _literal(typing.get_args(hint))
    if origin is not None:
        return _generic(origin, typing.get_args(hint))
    if (plain := _PLAIN.get(hint)) is not None:
        return plain
    if getattr(hint, "_is_protocol", False):
        return _protocol(hint)
    if not isinstance(hint, type):
        return None
    return _late(hint.perdure_name) if hasattr(hint, "perdure_name") else _instance(hint)


def _union(hints: tuple[Any, ...]) -> Form | None:
    forms = [form_of(hint) for hint in hints]
    known = [form for form in forms if form is not None]
    if len(known) < len(forms):
        return None
    tests = [form.allows for form in known]
    words = [form.words for form in known if form.words != "None"]
    words += ["None"] * (len(words) < len(known))

    def parts(value: Any) -> Iterator[tuple[str, Any, Form]]:
        for form in known:
            if form.parts is not None:
                yield from form.parts(value)

    def allows(value: Any) -> bool:
        for test in tests:  # noqa: SIM110 - a generator takes as long as the tests
            if test(value):
                return True
        return False

    return Form(_listed(words), allows, parts, frozenset().union(*(form.surely for form in known)))


def _literal(values: tuple[Any, ...]) -> Form:
    def allows(value: Any) -> bool:
        return any(type(value) is type(one) and value == one for one in values) or (
            isinstance(value, str) and str(value) in values
        )

    return Form(_listed([repr(one) for one in values]), allows)


def _generic(origin: Any, hints: tuple[Any, ...]) -> Form | None:
    if origin is type:
        # `type[T]` is also used for types that are not classes, such as `list[int]` or `int | None`.
        return Form("a type", lambda value: isinstance(value, type) or typing.get_origin(value) is not None)
    if origin is collections.abc.Callable:
        return Form("a function", callable)
    if not isinstance(origin, type):
        return None
    if getattr(origin, "_is_protocol", False) and origin.__module__ not in ("typing", "collections.abc"):
        return _protocol(origin)
    if issubclass(origin, collections.abc.Mapping):
        return _mapping(hints)
    if issubclass(origin, tuple):
        return _tuple(hints)
    if origin in _MANY:
        return _many(origin, hints)
    return _instance(origin)


_MANY: Final = {
    collections.abc.Iterable: "a list or another iterable",
    collections.abc.Collection: "a collection",
    collections.abc.Sequence: "a list",
    list: "a list",
    set: "a set",
    frozenset: "a set",
}


def _many(origin: Any, hints: tuple[Any, ...]) -> Form:
    """Return the form of a collection. A text does not count as a list of its characters."""
    each = form_of(hints[0]) if hints else None

    def is_many(value: Any) -> bool:
        return isinstance(value, origin) and not isinstance(value, (str, bytes, bytearray))

    if each is None:
        return Form(_MANY[origin], is_many)

    def allows(value: Any) -> bool:
        # A generator can be read only once, so its items are checked where they are read.
        return is_many(value) and (not isinstance(value, Collection) or all(map(each.allows, value)))

    def parts(value: Any) -> Iterator[tuple[str, Any, Form]]:
        if is_many(value) and isinstance(value, Collection):
            yield from ((f"[{index}]", part, each) for index, part in enumerate(value))

    return Form(f"{_MANY[origin]}, each {each.words}", allows, parts)


def _mapping(hints: tuple[Any, ...]) -> Form:
    key, value = (form_of(hint) for hint in hints) if len(hints) == 2 else (None, None)

    def allows(found: Any) -> bool:
        if type(found) is not dict and not isinstance(found, Mapping):
            return False
        return (key is None or all(map(key.allows, found))) and (
            value is None or all(map(value.allows, found.values()))
        )

    def parts(found: Any) -> Iterator[tuple[str, Any, Form]]:
        if isinstance(found, Mapping):
            if key is not None:
                yield from ((f": key {shown(one)}", one, key) for one in found)
            if value is not None:
                yield from ((f"[{shown(one)}]", part, value) for one, part in found.items())

    return Form("a mapping", allows, parts)


def _tuple(hints: tuple[Any, ...]) -> Form:
    if len(hints) == 2 and hints[1] is Ellipsis:
        found = _many(collections.abc.Sequence, hints[:1])
        return Form("a tuple", lambda value: isinstance(value, tuple) and found.allows(value), found.parts)
    return Form("a tuple", lambda value: isinstance(value, tuple))


def _protocol(hint: Any) -> Form:
    """Return the form of a protocol: an object must have the protocol's methods. Attributes that are only annotated are
    not checked, because the object may set them later.
    """
    names = {
        name
        for base in hint.__mro__
        if getattr(base, "_is_protocol", False)
        for name, found in vars(base).items()
        if not name.startswith("_") and callable(found)
    }
    if "__call__" in vars(hint):
        return Form(f"a function ({hint.__name__})", callable)

    def allows(value: Any) -> bool:
        return not isinstance(value, type) and all(hasattr(value, name) for name in names)

    return Form(f"a {hint.__name__}", allows)


def _instance(hint: type[Any]) -> Form:
    return Form(_article(hint.__name__), lambda value: isinstance(value, hint), surely=frozenset({hint}))


def _article(name: str) -> str:
    return f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}"


def _listed(words: list[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _showable(form: Form) -> Form:
    """Return the form of a parameter that the function checks itself. The form refuses only a value whose repr fails,
    because the function could not show this value in its message.
    """
    return Form(form.words, lambda value: form.allows(value) or _can_be_shown(value), surely=form.surely)


def _can_be_shown(value: object) -> bool:
    try:
        repr(value)
    except Exception:  # noqa: BLE001 - the code of a user may raise anything
        return False
    return True


class Checker:
    """The checks of one function. The checks are made at the function's first call, when all names in the annotations
    exist.
    """

    def __init__(self, function: Callable[..., Any], error: type[Misuse], own: Collection[str]) -> None:
        self._function = function
        self._error = error
        self._own = own
        self._positional: tuple[tuple[str, Form | None], ...] | None = None
        self._by_name: dict[str, Form] = {}
        self._rest: tuple[str, Form] | None = None  # the form of `*args`
        self._named_rest: Form | None = None  # the form of `**options`

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Raise the error for the first argument that has a wrong type."""
        positional = self._positional
        if positional is None:
            positional = self._read()
        for (name, form), value in zip(positional, args, strict=False):
            if form is not None and type(value) not in form.surely and not form.allows(value):
                raise self._refusal(name, form, value)
        if self._rest is not None:
            name, form = self._rest
            for value in args[len(positional) :]:
                if not form.allows(value):
                    raise self._refusal(name, form, value)
        for name, value in kwargs.items() if kwargs else ():
            given = self._by_name.get(name, self._named_rest)
            if given is not None and type(value) not in given.surely and not given.allows(value):
                raise self._refusal(name, given, value)

    def _refusal(self, name: str, form: Form, value: object) -> Misuse:
        outer, _, called = self._function.__qualname__.rpartition(".")
        if called == "__init__":
            called = outer.rpartition(".")[2]
        return self._error(f"{called}(): {form.wrong(value, name)}")

    def _read(self) -> tuple[tuple[str, Form | None], ...]:
        positional: list[tuple[str, Form | None]] = []
        for parameter in inspect.signature(self._function).parameters.values():
            form = form_of(hint_of(self._function, parameter.annotation))
            if form is not None and parameter.name in self._own:
                form = _showable(form)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = None if form is None else (parameter.name, form)
            elif parameter.kind is parameter.VAR_KEYWORD:
                self._named_rest = form
            else:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    positional.append((parameter.name, form))
                if form is not None and parameter.kind is not parameter.POSITIONAL_ONLY:
                    self._by_name[parameter.name] = form
        self._positional = tuple(positional)
        return self._positional


class _Names(dict[str, Any]):
    """The names that an annotation may use. If the module imports a name only for type checkers, the name means any
    class of Perdure that is called so (see `_late`).
    """

    def __init__(self, names: Mapping[str, Any]) -> None:
        super().__init__({**vars(builtins), **names})

    def __missing__(self, name: str) -> Any:
        members = {"perdure_name": name, "__class_getitem__": classmethod(lambda late, _: late)}
        return type(name, (), members)


def hint_of(function: Callable[..., Any], annotation: Any) -> Any:
    """Return the type that a function's annotation names."""
    return _meaning(annotation, function.__globals__)


def _meaning(annotation: Any, names: Mapping[str, Any]) -> Any:
    return eval(annotation, {}, _Names(names)) if isinstance(annotation, str) else annotation  # noqa: S307 - our own


def check_fields(made: object, *, positive: bool = False) -> None:
    """Raise InvalidArguments for the first field of a value that has a wrong type. A class that users construct calls
    this in `__post_init__`, because msgspec does not check a constructor's arguments. With `positive`, numbers must be
    greater than 0.
    """
    for name, form in _fields_of(type(made)):
        value = getattr(made, name)
        if not form.allows(value):
            raise InvalidArguments(f"{type(made).__name__}(): {form.wrong(value, name)}")
        if positive and _is_number(value) and value <= 0:
            raise InvalidArguments(f"{type(made).__name__}(): {name} is more than 0, not {shown(value)}")


_FIELDS: Final[dict[type[Any], dict[str, Form]]] = {}


def _fields_of(kind: type[Any]) -> Iterable[tuple[str, Form]]:
    if kind in _FIELDS:
        return _FIELDS[kind].items()
    found: dict[str, Form] = {}
    for one in reversed(kind.__mro__):
        names = vars(sys.modules[one.__module__])
        for name, annotation in inspect.get_annotations(one).items():
            if (form := form_of(_meaning(annotation, names))) is not None:
                found[name] = form
    _FIELDS[kind] = found
    return found.items()


def _late(name: str) -> Form:
    def allows(value: Any) -> bool:
        return any(one.__name__ == name and one.__module__.startswith("perdure.") for one in type(value).__mro__)

    return Form(_article(name), allows)


def _checked_function(function: F, error: type[Misuse], own: Collection[str]) -> F:
    check = Checker(function, error, own)
    wrapper: Any
    if all(one.annotation in _UNTESTED for one in inspect.signature(function).parameters.values()):
        wrapper = function
    elif inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def checked_call(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return await function(*args, **kwargs)

        wrapper = checked_call
    else:

        @functools.wraps(function)
        def checked_plain_call(*args: Any, **kwargs: Any) -> Any:
            check(args, kwargs)
            return function(*args, **kwargs)

        wrapper = checked_plain_call
    wrapper.__perdure_checked__ = frozenset(own)
    return typing.cast(F, wrapper)


@typing.overload
def checked(what: T, /) -> T: ...
@typing.overload
def checked(
    *, error: type[Misuse] = InvalidArguments, constructor: bool = True, own: Collection[str] = ()
) -> Callable[[T], T]: ...
def checked(
    what: Any = None,
    /,
    *,
    error: type[Misuse] = InvalidArguments,
    constructor: bool = True,
    own: Collection[str] = (),
) -> Any:
    """Check the arguments of a function, or of all public methods of a class and its `constructor`. Use
    `constructor=False` if only Perdure makes objects of the class. The function itself checks the parameters in `own`,
    because its message can give better advice.
    """
    if what is None:
        return functools.partial(_checked, error=error, constructor=constructor, own=own)
    return _checked(what, error=error, constructor=constructor, own=own)


def _checked(what: Any, *, error: type[Misuse], constructor: bool, own: Collection[str]) -> Any:
    if not isinstance(what, type):
        return _checked_function(what, error, own)
    names = {"__init__", "__call__"} if constructor else {"__call__"}
    for name, found in list(vars(what).items()):
        if name.startswith("_") and name not in names:
            continue
        if isinstance(found, (classmethod, staticmethod)):
            setattr(what, name, type(found)(_checked_function(found.__func__, error, own)))
        elif inspect.isfunction(found):
            setattr(what, name, _checked_function(found, error, own))
    return what


def own_checks(function: object) -> frozenset[str] | None:
    """Return the parameters that a checked function checks itself. Return None if the function is not checked."""
    return getattr(function, "__perdure_checked__", None)


def is_check(frame: types.FrameType) -> bool:
    """Whether a frame belongs to a check, and not to the function that is checked."""
    return frame.f_globals.get("__name__") == __name__


def calling_frame(depth: int) -> types.FrameType:
    """Return the frame `depth` calls above the caller, as `sys._getframe(depth)` does. Frames of checks are not
    counted.
    """
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while depth and frame.f_back is not None:
        frame = frame.f_back
        depth -= not is_check(frame)
    return frame


__all__ = [
    "calling_frame",
    "check_fields",
    "check_storable",
    "checked",
    "form_of",
    "hint_of",
    "is_check",
    "own_checks",
    "shown",
]
