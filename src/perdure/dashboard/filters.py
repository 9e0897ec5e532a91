"""The filter language of the run list: `status:failed workflow:checkout tag:tenant=acme since:2h`, or a run's id.

The language has exactly the parameters of `GET /runs` in the HTTP API.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from perdure.dashboard.words import words_of
from perdure.http.params import Wanted
from perdure.kernel.status import ACTIVE, FINISHED, Status

_WORD: Final = re.compile(r'(?:([A-Za-z]+):)?(?:"([^"]*)"|(\S+))')
_SPAN: Final = re.compile(r"(\d{1,6})(s|m|h|d)")
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_GROUPS: Final = {"active": tuple(sorted(ACTIVE)), "ended": tuple(sorted(FINISHED))}
_HOLDS: Final = ("blocked", "paused", "poison")
WORDS: Final = ("status", "workflow", "hold", "tag", "parent", "since", "before")


class Unclear(Exception):
    """A filter that cannot be understood. The message says what may be written."""


class Search(Struct, frozen=True, kw_only=True):
    """The search that a filter describes. It finds the runs that match, or the run with an id."""

    wanted: Wanted
    run_id: str | None = None


def parsed(text: str, now: datetime) -> Search:
    """Return the search that a filter's text describes. Raises Unclear."""
    wanted, run_id = Wanted(), None
    for found in _WORD.finditer(text):
        key = (found[1] or "").lower()
        value = found[2] if found[2] is not None else found[3]
        if not key or (key not in WORDS and found[2] is None and run_id is None and not _is_like_a_key(key)):
            run_id = found[0].strip('"')
        else:
            wanted = _with(wanted, key, value, now)
    return Search(wanted=wanted, run_id=run_id)


def _is_like_a_key(key: str) -> bool:
    """Return whether an unknown word before a colon is more likely a misspelt key than a part of an id."""
    return len(key) <= 12


def _with(wanted: Wanted, key: str, value: str, now: datetime) -> Wanted:
    if not value:
        raise Unclear(f"{key}: has no value; write it without a space: {key}:…")
    match key:
        case "status":
            return replace(wanted, statuses=_statuses(value))
        case "workflow":
            return replace(wanted, workflow=value)
        case "hold" if value in _HOLDS:
            return replace(wanted, hold=value)
        case "hold":
            raise Unclear(f"there is no hold {value!r:.40}; use one of {', '.join(_HOLDS)}")
        case "tag":
            name, equals, rest = value.partition("=")
            if not equals or not name or not rest:
                raise Unclear(f"a tag has the form tag:name=value, not tag:{value:.60}")
            return replace(wanted, tags={**wanted.tags, name: rest})
        case "parent":
            return replace(wanted, parent=value)
        case "since":
            return replace(wanted, created_from=_when(value, now))
        case "before":
            return replace(wanted, created_before=_when(value, now))
        case _:
            raise Unclear(f"there is no filter {key!r:.40}; use {', '.join(WORDS)}, or the id of a run")


def _statuses(value: str) -> tuple[str, ...]:
    found: list[str] = []
    for one in value.lower().split(","):
        if one in _GROUPS:
            found += _GROUPS[one]
        elif one in set(Status):
            found.append(one)
        else:
            known = ", ".join([*Status, *_GROUPS])
            raise Unclear(f"there is no status {words_of(one)!r:.40}; use one of {known}")
    return tuple(dict.fromkeys(found))


def _when(value: str, now: datetime) -> datetime:
    try:
        if (span := _SPAN.fullmatch(value)) is not None:
            return now - timedelta(**{_UNITS[span[2]]: int(span[1])})
        when = datetime.fromisoformat(value)
        return when.astimezone(UTC) if when.tzinfo is not None else when.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        raise Unclear(
            f"{value!r:.40} is not a time: write how long ago (15m, 2h, 3d), or a date (2026-11-16, 2026-11-16T14:00Z)"
        ) from None


__all__ = ["WORDS", "Search", "Unclear", "parsed"]
