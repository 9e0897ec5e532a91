"""The context of a batch: the rows that its ops need and that were read from the store, because they are not in
memory.
"""

from __future__ import annotations

from msgspec import Struct, field

from perdure.kernel.access import StoredToken
from perdure.kernel.ops import PutRecord, PutToken, RetireHandlers
from perdure.kernel.records import Record
from perdure.kernel.tasks import Task
from perdure.ports import LoadedRun

Shared = PutRecord | PutToken | RetireHandlers


class BatchContext(Struct, kw_only=True):
    """The rows that were read for a batch. They are runs that are not completely in memory, children of runs that end,
    keys in use, dead letters, and tasks to be answered or released. Rows that belong to no run are here too: records,
    tokens and handlers.
    """

    runs: dict[str, LoadedRun] = field(default_factory=dict)
    children: dict[str, list[str]] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)
    dead_letters: set[str] = field(default_factory=set)
    tasks: dict[str, Task] = field(default_factory=dict)
    records: dict[tuple[str, str], Record | None] = field(default_factory=dict)  # the newest version, by kind and name
    tokens: dict[str, StoredToken | None] = field(default_factory=dict)  # the newest version, by name
    handlers: set[tuple[str, str]] = field(default_factory=set)  # (topic, name) of the handlers that are not retired


__all__ = ["BatchContext", "Shared"]
