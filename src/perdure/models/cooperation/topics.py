"""Topics: channels for messages of one type. This module also checks names, and finds the place where a topic or an
operation is defined.
"""

from __future__ import annotations

import sys
from functools import cached_property
from pathlib import Path
from typing import Final, Generic, TypeVar

import msgspec

from perdure.errors import InvalidArguments, InvalidDefinition, UnstorableValue
from perdure.kernel.cooperation import VERSION_SEPARATOR
from perdure.values.arguments import checked, is_check
from perdure.values.json import ANY_SIZE, to_text
from perdure.values.type_patterns import check_patterns

M = TypeVar("M")

_NAME_MAX_CHARS: Final = 500
_HERE: Final = (__file__, str(Path(__file__).with_name("define.py")))


@checked(error=InvalidDefinition)
class Topic(Generic[M]):
    """A channel for messages of one type. Operations of any service may handle its messages."""

    def __init__(self, name: str, type: type[M]) -> None:
        self.where = caller()
        self.name = checked_name(name, "topic", self.where)
        if VERSION_SEPARATOR in name:
            raise InvalidDefinition(f"the name of a topic cannot contain U+001F: {name!r:.80} ({self.where})")
        self.type = type
        try:
            self._decode = msgspec.json.Decoder(type).decode
        except TypeError as error:
            raise InvalidDefinition(
                f"topic {name!r} at {self.where} has messages that cannot be read: {error}"
            ) from error
        check_patterns(type, f"a message on topic {name!r} at {self.where}")

    @cached_property
    def schema(self) -> str:
        """The schema of the topic's messages, as text."""
        try:
            return msgspec.json.encode(msgspec.json.schema(self.type), order="sorted").decode()
        except (TypeError, ValueError, RecursionError):
            return repr(self.type)  # Some types have no schema.

    def write(self, message: M) -> str:
        """Return the message as JSON. Raises InvalidArguments if the message is not of the topic's type. Raises
        UnstorableValue.
        """
        text = to_text(message, f"a message on topic {self.name!r}", ANY_SIZE)
        try:
            self._decode(text)
        except msgspec.ValidationError as error:
            raise InvalidArguments(f"this is no message for topic {self.name!r}: {error}") from error
        return text

    def read(self, payload: str) -> M:
        try:
            return self._decode(payload)
        except (msgspec.ValidationError, ValueError) as error:
            raise UnstorableValue(f"a message on topic {self.name!r} does not fit its type: {error}") from error

    def __repr__(self) -> str:
        return f"<topic {self.name!r}>"


def caller() -> str:
    """Return the file and the line of the first frame outside the modules that define topics and operations."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame.f_back is not None and (frame.f_code.co_filename in _HERE or is_check(frame)):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def checked_name(name: str, what: str, where: str) -> str:
    given: object = name
    if not isinstance(given, str) or not 0 < len(given) <= _NAME_MAX_CHARS:
        raise InvalidDefinition(
            f"the name of a {what} is a text of 1 to {_NAME_MAX_CHARS} characters, not {name!r:.80} ({where})"
        )
    if "\0" in name or any("\ud800" <= char <= "\udfff" for char in name):
        raise InvalidDefinition(f"the name of a {what} cannot contain NUL or lone surrogates: {name!r:.80} ({where})")
    return name


__all__ = ["Topic", "caller", "checked_name"]
