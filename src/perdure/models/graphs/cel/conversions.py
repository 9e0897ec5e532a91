"""Conversions between types: numbers, texts, times and durations. Times are read and shown in the form of RFC 3339."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, Final

from perdure.models.graphs.cel.budget import EvaluationFailed, Frame
from perdure.models.graphs.cel.values import INT_MAX, INT_MIN, UINT_MAX, UInt, no_overload, shown

_TIME: Final = re.compile(
    r"(\d{4}-\d\d-\d\d)[Tt ](\d\d:\d\d:\d\d)(?:\.(\d{1,9})\d{0,100})?(?:[Zz]|([+-]\d\d:\d\d))", re.ASCII
)
_INT: Final = re.compile(r"[+-]?[0-9]{1,24}", re.ASCII)
_DOUBLE: Final = re.compile(
    r"[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|infinity|nan)", re.IGNORECASE | re.ASCII
)
_DURATION_PART: Final = re.compile(r"([0-9]{0,18})(?:\.([0-9]{0,18}))?(h|ms|m|s|us|µs|ns)", re.ASCII)
_NANOSECONDS: Final = {
    "h": 3_600_000_000_000, "m": 60_000_000_000, "s": 1_000_000_000, "ms": 1_000_000, "us": 1_000, "µs": 1_000, "ns": 1,
}  # fmt: skip
_DURATION_MAX_S: Final = 315_576_000_000
_NUMBER_CHARS_MAX: Final = 1_000
_STEPS: Final = 12  # the cost of a conversion, in steps
_BOOLS: Final = {
    **dict.fromkeys(("1", "t", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "false", "FALSE", "False"), False),
}
_OFFSET: Final = re.compile(r"([+-]?)(\d\d):(\d\d)", re.ASCII)


def _to_int(frame: Frame, value: Any) -> int:
    frame.spend(_STEPS)
    kind = type(value)
    if kind is int or kind is UInt:
        found = int(value)
    elif kind is float:
        found = _whole(value)
    elif kind is str:
        if _INT.fullmatch(value) is None:
            raise EvaluationFailed(f"int: {shown(value)} is no whole number")
        found = int(value)
    elif kind is datetime:
        found = (value - _EPOCH) // timedelta(seconds=1)
    else:
        raise no_overload("int", value)
    if not INT_MIN <= found <= INT_MAX:
        raise EvaluationFailed("an overflow: the int would have more than 64 bits")
    return found


def _to_uint(frame: Frame, value: Any) -> UInt:
    frame.spend(_STEPS)
    kind = type(value)
    if kind is int or kind is UInt:
        found = int(value)
    elif kind is float:
        found = _whole(value)
        if value < 0:
            raise EvaluationFailed("an overflow: a uint is not negative")
    elif kind is str:
        if _INT.fullmatch(value) is None:
            raise EvaluationFailed(f"uint: {shown(value)} is no whole number")
        found = int(value)
    else:
        raise no_overload("uint", value)
    if not 0 <= found <= UINT_MAX:
        raise EvaluationFailed("an overflow: a uint has 64 bits and is not negative")
    return UInt(found)


def _whole(value: float) -> int:
    if value != value or value in (float("inf"), float("-inf")):
        raise EvaluationFailed(f"an overflow: {value} is no whole number")
    return int(value)


def _to_double(frame: Frame, value: Any) -> float:
    frame.spend(_STEPS)
    kind = type(value)
    if kind is float:
        return float(value)
    if kind is int or kind is UInt:
        if not -(2**1023) < value < 2**1023:
            raise EvaluationFailed("an overflow: the integer is too large for a double")
        return float(value)
    if kind is str:
        if len(value) > _NUMBER_CHARS_MAX or _DOUBLE.fullmatch(value) is None:
            raise EvaluationFailed(f"double: {shown(value)} is no number")
        return float(value)
    raise no_overload("double", value)


def _to_string(frame: Frame, value: Any) -> str:
    frame.spend(_STEPS)
    kind = type(value)
    if kind is str:
        return str(value)
    if kind is bool:
        return "true" if value else "false"
    if kind is int or kind is UInt:
        if not INT_MIN <= value <= UINT_MAX:
            raise EvaluationFailed("an overflow: an integer has more than 64 bits")
        return str(int(value))
    if kind is float:
        return _shown_double(value)
    if kind is bytes:
        frame.spend_text(2 * len(value))
        try:
            return str(value.decode())
        except UnicodeDecodeError:
            raise EvaluationFailed("string: these bytes are no UTF-8") from None
    if kind is datetime:
        return _shown_time(value)
    if kind is timedelta:
        return f"{_shown_seconds(value)}s"
    raise no_overload("string", value)


def _shown_double(value: float) -> str:
    """Return a number as the shortest text. An exponent is used only if the text would have many zeros."""
    if value != value:
        return "NaN"
    text = repr(value).removesuffix(".0")
    mantissa, _, exponent = text.partition("e")
    if not exponent:
        return text
    if -7 <= int(exponent) < 21:
        return format(Decimal(text), "f")
    return f"{mantissa}e{int(exponent):+03d}"


def _shown_time(value: datetime) -> str:
    whole, _, fraction = value.astimezone(UTC).isoformat().removesuffix("+00:00").partition(".")
    return f"{whole}.{fraction.rstrip('0')}Z" if fraction else f"{whole}Z"


def _shown_seconds(value: timedelta) -> str:
    micros = value // timedelta(microseconds=1)
    sign, micros = ("-" if micros < 0 else ""), abs(micros)
    fraction = f"{micros % 1_000_000:06d}".rstrip("0")
    return f"{sign}{micros // 1_000_000}" + (f".{fraction}" if fraction else "")


def _to_bytes(frame: Frame, value: Any) -> bytes:
    if type(value) is bytes:
        return bytes(value)
    if type(value) is not str:
        raise no_overload("bytes", value)
    frame.spend_text(2 * len(value))
    return encoded("bytes", value)


def encoded(function: str, text: str) -> bytes:
    """Return the text in UTF-8. Raises EvaluationFailed if the text has a lone surrogate; the message names the
    function.
    """
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise EvaluationFailed(f"{function}: the text has half a character (a surrogate)") from None


def _to_bool(frame: Frame, value: Any) -> bool:  # noqa: ARG001 - as all functions
    if type(value) is bool:
        return bool(value)
    if type(value) is not str:
        raise no_overload("bool", value)
    found = _BOOLS.get(value)
    if found is None:
        raise EvaluationFailed(f"bool: {shown(value)} is neither true nor false")
    return found


CONVERSIONS: Final[Mapping[str, Callable[[Frame, Any], Any]]] = {
    "int": _to_int,
    "uint": _to_uint,
    "double": _to_double,
    "string": _to_string,
    "bytes": _to_bytes,
    "bool": _to_bool,
}

# ---------------------------------------------------------------------------------------------------------------------
# Times

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def as_timestamp(frame: Frame, value: Any) -> datetime:
    """Return the value of `timestamp(…)`, from a text in the form of RFC 3339, or from seconds since 1970."""
    frame.spend(2 * _STEPS)
    if type(value) is datetime:
        return value
    try:
        if type(value) is int:
            return _EPOCH + timedelta(seconds=value)
        if type(value) is not str:
            raise no_overload("timestamp", value)
        match = _TIME.fullmatch(value)
        if match is None:
            raise EvaluationFailed(f"timestamp: {shown(value)} is no time as 2030-01-31T08:00:00Z is")
        date, time, fraction, offset = match.groups()
        found = datetime.fromisoformat(f"{date}T{time}.{(fraction or '0')[:6]:<06}{offset or '+00:00'}")
        found.astimezone(UTC)  # The time must be within the years 1 to 9999 in UTC too.
        return found
    except (ValueError, OverflowError) as error:
        raise EvaluationFailed(f"timestamp: {shown(value)}: {error}") from None


def as_duration(frame: Frame, value: Any) -> timedelta:
    """Return the value of `duration(…)`, from a text such as `1h30m` or `0.5s`."""
    frame.spend(2 * _STEPS + (2 * len(value) if isinstance(value, str) else 0))
    if type(value) is timedelta:
        return value
    if type(value) is not str:
        raise no_overload("duration", value)
    text, sign = (value[1:], -1 if value[0] == "-" else 1) if value[:1] in ("-", "+") else (value, 1)
    nanoseconds, at = 0, 0
    while at < len(text) <= _NUMBER_CHARS_MAX:
        match = _DURATION_PART.match(text, at)
        if match is None or not (match[1] or match[2]):
            break
        whole, fraction, unit = match.groups()
        nanoseconds += int(whole or 0) * _NANOSECONDS[unit]
        nanoseconds += int(fraction or 0) * _NANOSECONDS[unit] // 10 ** len(fraction or "")
        at = match.end()
    if text == "0":
        return timedelta()
    if not text or at < len(text):
        raise EvaluationFailed(f"duration: {shown(value)} is not a duration; write it as 1h30m or 0.5s")
    if nanoseconds > _DURATION_MAX_S * 1_000_000_000:
        raise EvaluationFailed("an overflow: the duration is longer than 10,000 years")
    return timedelta(microseconds=sign * (nanoseconds // 1_000))


def clock_part(frame: Frame, name: str, value: Any, zone: Any = "UTC") -> int:
    """Return the value of `getHours()` and similar functions. The argument is a duration, or a time in UTC or at an
    offset.
    """
    frame.spend(_STEPS)
    if type(value) is timedelta and name in _LENGTHS and zone == "UTC":
        micros = value // timedelta(microseconds=1)
        whole = abs(micros) // _LENGTHS[name]
        return -whole if micros < 0 else whole
    if type(value) is not datetime:
        raise no_overload(name, value)
    try:
        return CLOCK_PARTS[name](value.astimezone(_zone(name, zone)))
    except OverflowError:
        raise EvaluationFailed(f"{name}: the time is out of range") from None


def _zone(name: str, given: Any) -> timezone:
    if given in ("UTC", "Z") and type(given) is str:
        return UTC
    match = _OFFSET.fullmatch(given) if type(given) is str else None
    if match is None or int(match[2]) > 23 or int(match[3]) > 59:
        # The rules of a named zone are read from a file. After a change of that file, the result would differ.
        raise EvaluationFailed(f"{name}: a time zone is an offset from UTC, as +02:00, and not {shown(given)}")
    minutes = int(match[2]) * 60 + int(match[3])
    return timezone(timedelta(minutes=-minutes if match[1] == "-" else minutes))


_LENGTHS: Final = {
    "getHours": 3_600_000_000,
    "getMinutes": 60_000_000,
    "getSeconds": 1_000_000,
    "getMilliseconds": 1_000,
}
CLOCK_PARTS: Final[Mapping[str, Callable[[datetime], int]]] = {
    "getFullYear": lambda at: at.year,
    "getMonth": lambda at: at.month - 1,
    "getDate": lambda at: at.day,
    "getDayOfMonth": lambda at: at.day - 1,
    "getDayOfWeek": lambda at: at.isoweekday() % 7,
    "getDayOfYear": lambda at: at.timetuple().tm_yday - 1,
    "getHours": lambda at: at.hour,
    "getMinutes": lambda at: at.minute,
    "getSeconds": lambda at: at.second,
    "getMilliseconds": lambda at: at.microsecond // 1_000,
}
