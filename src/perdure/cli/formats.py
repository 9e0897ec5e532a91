"""Values as texts for people. Stored values may come from anybody, so control characters never reach the terminal."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from perdure.values.log_text import tame, tame_lines

_STEERING_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def to_json(value: object, *, indent: bool = False) -> str:
    """Return JSON without characters that could control a terminal."""
    data = msgspec.json.encode(value)
    if indent:
        data = msgspec.json.format(data, indent=2)
    return _STEERING_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", data.decode())


def brief(value: object, width: int = 60) -> str:
    """Return a value on one line. A long text is cut."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else to_json(value)
    text = tame(text)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def cell(value: Any) -> str:
    """Return a value as a cell of a table or of a line in a pipe."""
    if value is None:
        return ""
    if isinstance(value, datetime):
        return moment(value)
    if isinstance(value, str):
        return tame(value)
    return to_json(value)


def moment(at: datetime) -> str:
    """Return a time in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """Return how long ago a time was, or how soon it will be."""
    if at is None:
        return ""
    passed = (now or datetime.now(UTC)) - at
    if abs(passed) < timedelta(seconds=1):
        return "just now"
    return f"in {span(-passed)}" if passed < timedelta(0) else f"{span(passed)} ago"


def span(length: timedelta) -> str:
    """Return a span of time in its one or two largest units."""
    seconds = length.total_seconds()
    if seconds < 10:
        return f"{seconds:.1f}s" if seconds >= 1 else f"{seconds * 1000:.0f}ms"
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60}s"
    if whole < 86_400:
        return f"{whole // 3600}h {whole % 3600 // 60}m"
    return f"{whole // 86_400}d {whole % 86_400 // 3600}h"


def size(count: float) -> str:
    """Return a number of bytes in the unit that fits its size."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} GiB"


__all__ = ["ago", "brief", "cell", "moment", "size", "span", "tame", "tame_lines", "to_json"]
