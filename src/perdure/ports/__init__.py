"""The coordinator's interfaces to the outside: a store, a clock, ids and a codec. storage/ and testing/ implement them.

The store consists of slices, one module per noun. storage/memory, storage/sqlite and storage/postgres have modules of
the same names. perdure.ports.store says what the errors of a store mean.
"""

from perdure.ports.access import AccessStore
from perdure.ports.artifacts import ArtifactFilter, ArtifactStore
from perdure.ports.clock import ALARM_LOOKS_EVERY_US, Clock, SystemClock, TimerHandle
from perdure.ports.codec import Codec, PlainCodec
from perdure.ports.commits import (
    CommitStore,
    Insertion,
    Rows,
    Statement,
    StepPlace,
    Taken,
    TakenMessage,
    TakenRun,
    Transacts,
)
from perdure.ports.cooperation import CooperationStore
from perdure.ports.events import EventStore
from perdure.ports.fleet import ENGINES_KEPT_US, FleetStore, WorkFound
from perdure.ports.ids import Ids, derived_id, new_id
from perdure.ports.journals import Journal, JournalStore
from perdure.ports.mail import MailStore
from perdure.ports.probe import Probe
from perdure.ports.records import RecordStore
from perdure.ports.retention import RetentionStore
from perdure.ports.runs import ChangedRun, DueRun, LoadedRun, Offer, RunFilter, RunStore, StoredRun, Within
from perdure.ports.store import Store
from perdure.ports.streams import STREAM_PAGE_CHARS_MAX, StreamPage, StreamStore
from perdure.ports.tasks import TaskFilter, TaskStore

__all__ = [
    "ALARM_LOOKS_EVERY_US",
    "ENGINES_KEPT_US",
    "STREAM_PAGE_CHARS_MAX",
    "AccessStore",
    "ArtifactFilter",
    "ArtifactStore",
    "ChangedRun",
    "Clock",
    "Codec",
    "CommitStore",
    "CooperationStore",
    "DueRun",
    "EventStore",
    "FleetStore",
    "Ids",
    "Insertion",
    "Journal",
    "JournalStore",
    "LoadedRun",
    "MailStore",
    "Offer",
    "PlainCodec",
    "Probe",
    "RecordStore",
    "RetentionStore",
    "Rows",
    "RunFilter",
    "RunStore",
    "Statement",
    "StepPlace",
    "Store",
    "StoredRun",
    "StreamPage",
    "StreamStore",
    "SystemClock",
    "Taken",
    "TakenMessage",
    "TakenRun",
    "TaskFilter",
    "TaskStore",
    "TimerHandle",
    "Transacts",
    "Within",
    "WorkFound",
    "derived_id",
    "new_id",
]
