"""Escape control characters in log messages, because ids, names and error texts can come from anybody.

A line break in a run's id could begin a false log line. Escape sequences would reach the terminal of the person who
reads the log. So control characters are written as escapes.
"""

from __future__ import annotations

import logging
import re
import textwrap
import traceback
from typing import Final

# Control characters of ASCII and Latin 1, marks that change the direction of writing, and lone surrogates.
_STEERING: Final = re.compile("[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
_LOGGERS: Final = ("perdure", "perdure.http", "perdure.testing")
_NAMED: Final = {9: "\\t", 10: "\\n", 13: "\\r"}


def tame(text: str) -> str:
    """Return the text as one line, with control characters escaped."""
    return _STEERING.sub(_escaped, text)


def tame_lines(text: str) -> str:
    """Return a text of several lines, with all control characters except line breaks escaped."""
    return "\n".join(tame(line) for line in text.splitlines())


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    return _NAMED.get(code) or (f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}")


class _Tame(logging.Filter):
    """Escapes the message of a log record before any handler sees it. It also indents the lines of the traceback, so
    that no line looks like another record.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        said = record.getMessage()
        if _STEERING.search(said) is not None:
            record.msg, record.args = tame(said), ()
        if record.exc_info and record.exc_info[1] is not None and record.exc_text is None:
            lines = "".join(traceback.format_exception(record.exc_info[1])).rstrip("\n")
            record.exc_text = textwrap.indent(tame_lines(lines), "  ")
        return True


_TAME: Final = _Tame()


def tame_logs() -> None:
    """Make Perdure's own loggers escape their messages. A second call changes nothing."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_TAME)


__all__ = ["tame", "tame_lines", "tame_logs"]
