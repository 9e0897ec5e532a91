"""The store protocol: the protocols of all nouns (runs, events, tasks, …) in one, and how a store is opened and closed.

A store raises the errors under StoreError. They mean:

- StoreBusy: nothing was written; the very same batch may be sent again.
- OutcomeUnknown: the batch may have been committed; to find out, send it again (the store knows it by its number).
- CommitRefused: this batch will never be accepted (a constraint, a value the database cannot hold).
- CommitConflict(run_ids, mail_ids, registry_version): these runs' rows were not as expected, this mail was gone, or the
  handler registry has another version; nothing was written.
- Fenced: this engine was marked dead, or its row is gone; nothing was written and nothing ever will be.
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
    """A store of runs. Each engine has a store object of its own. All methods but `abandon`, `withdraw` and `listen`
    may raise StoreBusy or StoreBroken. StoreMisconfigured is a StoreBroken that somebody can mend while engines run."""

    @property
    def clock(self) -> Clock | None:
        """The clock that all engines on this store use, correct from `open` on. None if each engine uses the clock of
        its machine."""
        ...

    @property
    def poll_s(self) -> float:
        """How often an engine should `look`, in seconds, even without a hint."""

    async def open(self) -> None:
        """Connect and bring the schema up to date, under a lock. Raises StoreBroken, SchemaTooNew."""

    async def close(self) -> None:
        """Finish the requests in flight, and release all resources. Idempotent."""

    def abandon(self) -> None:
        """Stop as a killed process would: no more writes, no sign of life, no cleanup. Idempotent."""
