"""Stored values, failures and times in the form that views show. A damaged value is shown as damaged, and all other
values are shown as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct

from perdure.errors import RowDamaged
from perdure.kernel.failures import Failure
from perdure.kernel.invariants import TIME_MAX, TIME_MIN
from perdure.models.common.stored_failures import read_failure
from perdure.ports import Codec
from perdure.values.times import to_datetime


class Unreadable(Struct, frozen=True):
    """Replaces, in a view, a stored value that is not JSON or that the codec cannot decode. `damaged` says why."""

    damaged: str


def plain_value(text: str | None, codec: Codec, place: str) -> Any:
    """Return a stored payload as plain JSON values. `place` names the column and the row of the payload. Raises
    RowDamaged.
    """
    if isinstance(found := shown_value(text, codec, place), Unreadable):
        raise RowDamaged(found.damaged)
    return found


def shown_value(text: str | None, codec: Codec, place: str) -> Any:
    """Return a stored payload as plain JSON values. Return Unreadable if that is not possible.

    Lists use this, so that one damaged value does not break the list.
    """
    try:
        return None if text is None else msgspec.json.decode(codec.decode(text))
    except Exception as error:  # noqa: BLE001 - a codec is the user's and may raise anything
        return Unreadable(unreadable(place, text, error))


def unreadable(place: str, text: str | None, error: Exception) -> str:
    """Return the message about a stored value that cannot be read."""
    return (
        f"the store is damaged: {place} cannot be read ({error}): {text!r:.80}; correct the row, or restore it from a"
        " backup"
    )


def stored_failure(text: str | None, codec: Codec, place: str) -> Failure | None:
    """Return a stored failure. If it cannot be read, return a failure that says so."""
    return shown_failure(lambda: None if text is None else read_failure(text, codec), place)


def shown_failure(read: Callable[[], Failure | None], place: str) -> Failure | None:
    """Return the failure that `read` returns. If it cannot be read, return a failure that says so."""
    try:
        return read()
    except Exception as error:  # noqa: BLE001 - a codec is the user's and may raise anything
        return damaged_failure(f"{place} cannot be read ({error})")


def damaged_failure(what: str) -> Failure:
    """Return a failure that says which part of the store is damaged."""
    return Failure(type="perdure.errors:RowDamaged", message=f"the store is damaged: {what}")


def shown_time(at: int) -> datetime:
    """Return a stored time as a datetime.

    A number beyond the range of datetime becomes the first or the last datetime.
    """
    return to_datetime(min(max(at, TIME_MIN), TIME_MAX))


def optional_time(at: int | None) -> datetime | None:
    """Return a stored time as a datetime, or None if there is none."""
    return None if at is None else shown_time(at)


__all__ = [
    "Unreadable",
    "damaged_failure",
    "optional_time",
    "plain_value",
    "shown_failure",
    "shown_time",
    "shown_value",
    "stored_failure",
    "unreadable",
]
