"""Checks of callers' arguments: ids, tags, reasons, limits, times.

Each error names the argument. Every store and every driver accepts the values that pass the checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from perdure.errors import InvalidArguments, Misuse
from perdure.values.arguments import shown
from perdure.values.json import UNSTORABLE_TEXT
from perdure.values.times import from_datetime

_TEXT_MAX_CHARS = 500
_REASON_MAX_CHARS = 10_000
_INT64_MAX: Final = 2**63 - 1


def checked_text(text: object, what: str, chars_max: int = _TEXT_MAX_CHARS) -> str:
    """Return a text that every store can hold as a key. Raises InvalidArguments."""
    if not isinstance(text, str) or not 0 < len(text) <= chars_max:
        raise InvalidArguments(f"{what} is a text of 1 to {chars_max} characters, not {shown(text)}")
    if UNSTORABLE_TEXT.search(text) is not None:
        raise InvalidArguments(f"{what} cannot contain NUL or lone surrogates: {shown(text)}")
    return text


def checked_remark(reason: str, actor: str) -> None:
    """Check the reason and the actor of a change. Raises InvalidArguments."""
    checked_text(actor, "an actor")
    if reason:
        checked_text(reason, "a reason", _REASON_MAX_CHARS)


def checked_tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    """Return the tags as a dict. Raises InvalidArguments."""
    if tags is None:
        return {}
    if not isinstance(tags, Mapping):
        raise InvalidArguments(f"tags are a mapping, as in tags={{'tenant': 'acme'}}, not {shown(tags)}")
    return {checked_text(key, "a tag's key"): checked_text(value, f"tag {key!r}") for key, value in tags.items()}


def checked_option(text: object, what: str) -> str | None:
    """Return a text, or None if the caller left it out. Raises InvalidArguments."""
    return None if text is None else checked_text(text, what)


def checked_limit(limit: object, limit_max: int = 1_000, what: str = "limit") -> int:
    """Return the number of items that a caller asks for. Raises InvalidArguments."""
    if type(limit) is not int or not 1 <= limit <= limit_max:
        raise InvalidArguments(f"{what} is between 1 and {limit_max}, not {shown(limit)}")
    return limit


def checked_number(number: object, what: str) -> int:
    """Return a whole number of at most 64 bits. Raises InvalidArguments."""
    if type(number) is not int or not -_INT64_MAX <= number <= _INT64_MAX:
        raise InvalidArguments(f"{what} is a whole number of at most 64 bits, not {shown(number)}")
    return number


def checked_version(version: object) -> int | None:
    """Return a version, or None if the caller left it out. Raises InvalidArguments."""
    return None if version is None else checked_number(version, "version")


def checked_flag(flag: object, what: str) -> bool:
    """Return a flag. Raises InvalidArguments."""
    if not isinstance(flag, bool):
        raise InvalidArguments(f"{what} is True or False, not {shown(flag)}")
    return flag


def checked_texts(texts: object, what: str, one: str = "") -> list[str]:
    """Return a list of ids or names. An error message calls each of them `one`. Raises InvalidArguments."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidArguments(f"{what} is a list of texts, not {shown(texts)}")
    return [checked_text(text, one or f"each of {what}") for text in texts]


def checked_time(time: object, what: str) -> int | None:
    """Return a time as microseconds since the epoch, or None if the caller left it out. Raises InvalidArguments."""
    if time is None:
        return None
    if not isinstance(time, datetime):
        raise InvalidArguments(f"{what} is a datetime with a time zone, not {shown(time)}")
    try:
        return from_datetime(time)
    except Misuse as wrong:
        raise InvalidArguments(f"{what}: {wrong}") from None


def checked_times(times: object, what: str) -> list[int]:
    """Return times as microseconds since the epoch. Raises InvalidArguments, Misuse."""
    if isinstance(times, str) or not isinstance(times, Sequence):
        raise InvalidArguments(f"{what} is a list of times, not {shown(times)}")
    return [checked_time(time, f"each of {what}") or 0 for time in times]
