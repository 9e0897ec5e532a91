"""Mismatches between the code and the journal: the difference, and its place."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import PerdureError
from perdure.kernel.rows import Entry


class Mismatch(PerdureError):
    """The code does not fit the journal. `details` shows the code's request and the journal's entries."""

    details: str


def other_arguments(entry: Entry, entries: Sequence[Entry], now: str) -> Mismatch:
    what = f"{entry.kind} {entry.name!r}"
    return Mismatch(
        f"at position {entry.position} the code calls {what} with other arguments than the journal has it with "
        f"(their digest is {now}, not {entry.digest})",
        details=diff(entries, entry.seq - 1, f"{what} at {entry.position} with other arguments ({now})"),
    )


def diff(entries: Sequence[Entry], at: int, now: str) -> str:
    """Return a text that shows the journal around entry number `at` + 1, and the request that the code makes there
    instead.
    """
    lines = [f"  {_line(e)}" for e in entries[max(0, at - 3) : at]]
    lines += [f"- {_line(e)}" for e in entries[at : at + 3]]
    return "\n".join([*lines, f"+ now: {now}"])


def _line(entry: Entry) -> str:
    arguments = f" ({entry.digest})" if entry.digest else ""
    return f"{entry.seq:>4}  {entry.position:<8} {entry.kind} {entry.name}{arguments}"
