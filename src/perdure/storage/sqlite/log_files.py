"""The write-ahead log as a file: whether it belongs to its database.

SQLite does not check that. It treats a log from another time as the newest commits. Then older pages replace newer
pages in the database file, and the damage can no longer be detected.

All reads go through SQLite. A process that has the database open must never close another file descriptor of the
database, or of the index of its log. The system would then drop all locks that SQLite has on that file.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

from perdure.storage.sqlite.queries import QUERIES

_LOG_HEADER_BYTES: Final = 32
_TRIES: Final = 3

_ENGINES_MAX: Final = 1000


def is_log_outdated(path: Path) -> bool:
    """Return whether the database file has commits that disappear when the file is read together with its log.

    If so, the log is from another time or from another database, or it was cut after a checkpoint. Every commit is
    first written to the log. So a log that belongs to its file is never behind the file.

    This changes nothing. Returns False if the files cannot be compared.
    """
    # Another process may be making a checkpoint at this moment, so the comparison is repeated. An outdated log stays
    # outdated.
    return all(_is_behind(path) for _ in range(_TRIES))


def _is_behind(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    try:
        if log.stat().st_size <= _LOG_HEADER_BYTES:
            return False
        file = _standing(path, "immutable=1")  # reads only the file, as if there were no log
        both = _standing(path, "mode=ro")  # makes no checkpoint when the connection is closed
    except (OSError, sqlite3.Error):
        return False
    return both.is_behind(file)


class _Standing(NamedTuple):
    """The progress of a database, in numbers that only grow."""

    number: int
    engines: dict[int, tuple[object, int]]  # by epoch: the engine's id, and the number of its last batch

    def is_behind(self, other: _Standing) -> bool:
        newest = max(other.engines, default=0)
        if self.number < other.number or max(self.engines, default=0) < newest:
            return True
        oldest = min(other.engines) if len(other.engines) == _ENGINES_MAX else 0
        for epoch, (engine_id, batch) in self.engines.items():
            # Epochs are given out in increasing order. If the epoch of an engine is in the range of the other state,
            # but the engine is not in it, the engine was deleted there.
            if oldest <= epoch <= newest:
                other_id, other_batch = other.engines.get(epoch, (None, 0))
                if engine_id != other_id or batch < other_batch:
                    return True
        return False


def _standing(path: Path, how: str) -> _Standing:
    """Read the progress of a database. Raises sqlite3.Error. It is also raised if the tables do not exist yet."""
    with closing(sqlite3.connect(f"{path.as_uri()}?{how}", uri=True, isolation_level=None)) as connection:
        connection.text_factory = bytes
        connection.execute("begin")
        numbers = connection.execute(QUERIES["last_number"]).fetchall()
        engines = connection.execute(QUERIES["newest_engines"], {"limit": _ENGINES_MAX}).fetchall()
    number = numbers[0][0] if len(numbers) == 1 and isinstance(numbers[0][0], int) else 0
    return _Standing(number, {epoch: (id, batch if isinstance(batch, int) else 0) for epoch, id, batch in engines})
