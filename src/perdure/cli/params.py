"""Arguments and options as values: JSON, tags, durations, times."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from perdure.cli.errors import Refusal

Id = Annotated[str, typer.Argument(metavar="ID", help="The run's id.")]

_UNITS_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")


def values(pairs: Sequence[str], whole: str | None, option: str) -> dict[str, Any] | Any:
    """Return `name=value` pairs as an object. If an option replaces the pairs, return the JSON value of that option.
    Raises Refusal.
    """
    if whole is not None:
        if pairs:
            raise Refusal(f"there are both {option} and name=value pairs", "use one of them")
        return json_value(whole, option)
    found: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise Refusal(f"{pair!r} is not name=value", f"to give the whole value as JSON, use {option}")
        found[name] = _loose(text)
    return found


def json_value(text: str, option: str) -> Any:
    """Return a JSON value: `text` itself, the content of `@FILE`, or standard input (`-`). Raises Refusal."""
    if text == "-":
        text = sys.stdin.read()
    elif text.startswith("@"):
        try:
            text = Path(text[1:]).read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise Refusal(f"cannot read {text[1:]}: {error}") from error
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError) as error:
        raise Refusal(
            f"the value of {option} is not JSON: {error}", "text needs quotes to be JSON: '\"text\"'"
        ) from error


def _loose(text: str) -> Any:
    """Return a JSON value. If the text is not JSON, return the text itself. Examples: amount=100, order=o-17."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError):
        return text


def tags(pairs: Sequence[str]) -> dict[str, str]:
    """Return `name=value` pairs as tags. Raises Refusal."""
    found: dict[str, str] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise Refusal(f"the tag {pair!r} is not name=value")
        found[name] = text
    return found


def length(text: str, option: str) -> timedelta:
    """Return a duration: `90s`, `1h30m`, `2d`. A number without a unit means seconds. Raises Refusal."""
    seconds = None
    try:
        seconds = float(text)
    except ValueError:
        if text and _SPAN.sub("", text) == "":
            seconds = sum(float(count) * _UNITS_S[unit] for count, unit in _SPAN.findall(text))
    try:
        if seconds is None or not seconds >= 0:
            raise ValueError
        return timedelta(seconds=seconds)
    except (ValueError, OverflowError):
        raise Refusal(f"{option} {text!r} is not a span of time", "write it as 90s, 1h30m or 2d") from None


def moment(text: str | None, option: str) -> datetime | None:
    """Return a time: `2026-01-31T12:00` (local time, unless it has an offset), or `2h` for two hours ago. Raises
    Refusal.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        try:
            return datetime.now(UTC) - length(text, option)
        except (Refusal, OverflowError):
            todo = "write 2026-01-31, 2026-01-31T12:00, or how long ago it was: 90s, 2h, 7d"
            raise Refusal(f"{option} {text!r} is not a time", todo) from None
    return found.astimezone(UTC)


def deadline(text: str | None, option: str = "--deadline") -> datetime | timedelta | None:
    """Return a time, or a duration from now on. Raises Refusal."""
    if text is None:
        return None
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except ValueError:
        return length(text, option)


__all__ = ["Id", "deadline", "json_value", "length", "moment", "tags", "values"]
