"""The tables of the store in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.errors import RunNotFound
from perdure.kernel.rows import Engine, Entry, Mail
from perdure.kernel.runs import Audit
from perdure.ports import StoredRun
from perdure.storage.memory.tables.access import AccessTables
from perdure.storage.memory.tables.artifacts import ArtifactTables
from perdure.storage.memory.tables.cooperation import CooperationTables
from perdure.storage.memory.tables.events import EventTables
from perdure.storage.memory.tables.records import RecordTables
from perdure.storage.memory.tables.streams import StreamTables
from perdure.storage.memory.tables.tasks import TaskTables


class MemoryDatabase(Struct, eq=False):
    """The data that outlives a store. Stores that share it behave like processes that share a file."""

    engines: dict[str, Engine] = field(default_factory=dict)
    living: set[str] = field(default_factory=set)
    ended: dict[str, int] = field(default_factory=dict)  # when each engine was first found dead
    runs: dict[str, StoredRun] = field(default_factory=dict)
    active: set[str] = field(default_factory=set)
    children: dict[str, list[str]] = field(default_factory=dict)  # by parent
    journal: dict[str, dict[int, Entry]] = field(default_factory=dict)
    archive: dict[str, dict[tuple[int, int], Entry]] = field(default_factory=dict)  # (attempt, seq)
    tables: EventTables = field(default_factory=EventTables)
    streams: StreamTables = field(default_factory=StreamTables)
    artifacts: ArtifactTables = field(default_factory=ArtifactTables)
    tasks: TaskTables = field(default_factory=TaskTables)
    records: RecordTables = field(default_factory=RecordTables)
    access: AccessTables = field(default_factory=AccessTables)
    cooperation: CooperationTables = field(default_factory=CooperationTables)
    audit: dict[str, dict[int, Audit]] = field(default_factory=dict)
    mail: dict[int, Mail] = field(default_factory=dict)
    # by slot: the reply, and the time when it was stored
    replies: dict[str, tuple[str, int]] = field(default_factory=dict)
    mail_count: int = 0
    listeners: dict[object, Callable[[], object]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def holding(self, run_id: str) -> Generator[MemoryDatabase]:
        """Lock the database, so that nobody else reads or writes in this block. Raises RunNotFound."""
        with self.lock:
            if run_id not in self.runs:
                raise RunNotFound(run_id)
            yield self

    def is_alive(self, owner: str | None) -> bool:
        return owner is not None and owner in self.engines and self.engines[owner].alive

    def entries_from(self, run_id: str, first: int) -> list[int]:
        """Return the numbers of a run's journal entries, from `first` on."""
        return [seq for seq in self.journal.get(run_id, {}) if seq >= first]

    def leave_mail(self, mail: Mail) -> int:
        """Store a mail and return its id. Returns 0 if mail with the same slot, or a reply to it, already exists."""
        if mail.slot and (mail.slot in self.replies or any(one.slot == mail.slot for one in self.mail.values())):
            return 0
        self.mail_count += 1
        self.mail[self.mail_count] = replace(mail, id=self.mail_count)
        return self.mail_count
