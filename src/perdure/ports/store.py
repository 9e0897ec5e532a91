"""The store protocol. It combines the protocols of all nouns (runs, events, tasks, …), and the methods that open and
close a store.

All errors that a store raises derive from StoreError. They mean:

- StoreBusy: nothing was written; exactly the same batch may be sent again.
- OutcomeUnknown: the batch may have been committed; send it again to find out (the store recognises it by its number).
- CommitRefused: this batch will never be accepted, because of a constraint or a value that the database cannot hold.
- CommitConflict(run_ids, mail_ids, registry_version): the rows of these runs were not as expected, this mail no longer
  exists, or the handler registry has another version; nothing was written.
- Fenced: this engine was marked dead, or its row no longer exists; nothing was written, and the engine can never write
  again.
- StoreBroken: the store cannot be used at all.
"""

from __future__ import annotations

from typing import Protocol

from perdure.ports.access import AccessStore
from perdure.ports.artifacts import ArtifactStore
from perdure.ports.clock import Clock
from perdure.ports.commits import CommitStore
from perdure.ports.cooperation import CooperationStore
from perdure.ports.events import EventStore
from perdure.ports.fleet import FleetStore
from perdure.ports.journals import JournalStore
from perdure.ports.mail import MailStore
from perdure.ports.records import RecordStore
from perdure.ports.retention import RetentionStore
from perdure.ports.runs import RunStore
from perdure.ports.streams import StreamStore
from perdure.ports.tasks import TaskStore


class Store(
    CommitStore,
    FleetStore,
    RunStore,
    JournalStore,
    EventStore,
    StreamStore,
    ArtifactStore,
    TaskStore,
    RecordStore,
    AccessStore,
    CooperationStore,
    MailStore,
    RetentionStore,
    Protocol,
):
    """A store of runs. Each engine has a store object of its own. All methods except `abandon`, `withdraw` and `listen`
    may raise StoreBusy or StoreBroken. StoreMisconfigured is a StoreBroken that somebody can repair while engines run.
    """

    @property
    def clock(self) -> Clock | None:
        """The clock that all engines on this store use. It is correct from `open` on. It is None if each engine uses
        the clock of its machine.
        """
        ...

    @property
    def poll_s(self) -> float:
        """How often an engine should call `look`, in seconds, if it gets no hints."""

    async def open(self) -> None:
        """Connect to the database, and upgrade its schema under a lock. Raises StoreBroken, SchemaTooNew."""

    async def close(self) -> None:
        """Finish the requests that are under way, and release all resources. Idempotent."""

    def abandon(self) -> None:
        """Stop as a killed process would: write nothing more, stop the sign of life, and clean up nothing.
        Idempotent.
        """
