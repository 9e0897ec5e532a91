"""The rows of structured cooperation in their stored form: messages, message events, return values, handlers.

The model (models/cooperation) interprets them. Times are microseconds since the epoch. Payloads, contexts, failures and
values are text that the codec has encoded. The kernel does not read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from perdure.kernel.lineages import is_shortened, read_origin

VERSION_SEPARATOR: Final = "\x1f"  # separates an operation's topic and version; no topic contains it

TOKEN_TAG: Final = "perdure.token:"  # noqa: S105 - the prefix of the tags of runs that have cancellation tokens
APART_TAG: Final = "perdure.apart"  # marks a called run that ends only if its caller says so: see ops.Notify
_OWN_TAGS: Final = (TOKEN_TAG, APART_TAG)


def stored_version(topic: str, version: str) -> str:
    """Return the version that is stored for an operation's run. It has the topic, and the version of the code that
    began the run.
    """
    return f"{topic}{VERSION_SEPARATOR}{version}" if version else topic


def read_version(stored: str) -> tuple[str, str]:
    """Return the topic and the version of a stored version. The version is "" if no code has begun the run, or if that
    code has no version."""
    topic, _, version = stored.partition(VERSION_SEPARATOR)
    return topic, version


def without_token_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    """Return the tags that users have set."""
    if not any(key.startswith(_OWN_TAGS) for key in tags):
        return tags
    return {key: value for key, value in tags.items() if not key.startswith(_OWN_TAGS)}


def token_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """Return the tags that say which cancellation tokens a run has, and how it is stopped. These tags never change."""
    return {key: value for key, value in tags.items() if key.startswith(_OWN_TAGS)}


class MessageRow(Struct, frozen=True, kw_only=True, gc=False):
    """A signal on a topic."""

    id: str
    topic: str
    payload: str
    created_at: int


class MessageEventRow(Struct, frozen=True, kw_only=True, gc=False):
    """One event in the life of a message, or of the run that handles it. `scope` is the last id of its lineage, and
    `seq` is the row's number in that scope. A row with a `key` can exist only once for each message and key.
    """

    scope: str
    seq: int
    id: str
    message_id: str
    type: str
    key: str | None = None
    coroutine_name: str | None = None
    coroutine_identifier: str | None = None
    step: str | None = None
    cooperation_lineage: str  # the ids, joined by "/"
    created_at: int
    exception: str | None = None
    context: str | None = None
    next_step: int | None = None
    child_failure_handler_iteration: int | None = None


class ReturnValueRow(Struct, frozen=True, kw_only=True, gc=False):
    """The value that the run `scope` returned to its parent under a name."""

    scope: str
    variable: str
    handler: str
    value: str


class HandlerRow(Struct, frozen=True, kw_only=True, gc=False):
    """An operation as a handler of a topic. A registered handler is expected until somebody retires it, even if no
    engine has its code.
    """

    topic: str
    name: str
    registered_at: int | None = None
    retired_at: int | None = None
    seen_at: int | None = None  # when it first took a message of the topic


class HandlerList(Struct, frozen=True, kw_only=True):
    """All handlers, and a number that grows each time a handler changes."""

    version: int = 0
    handlers: tuple[HandlerRow, ...] = ()


class OperationRow(Struct, frozen=True, kw_only=True, gc=False):
    """The part of a run's row that cooperation needs. The run is an operation's run, or a run that an operation has
    called. `origin` contains the run's message and its lineage (see `origin_of`).
    """

    id: str
    parent_id: str | None
    handler: str
    status: str
    origin: str
    bond: str = ""
    output: str | None = None  # the outcome of a called run, together with `failure`
    failure: str | None = None

    @property
    def is_call(self) -> bool:
        return self.bond == "called"


class ScopeRows(Struct, frozen=True, kw_only=True):
    """Rows of one or several hierarchies, or of parts of hierarchies, without duplicates."""

    runs: tuple[OperationRow, ...] = ()
    messages: tuple[MessageRow, ...] = ()
    events: tuple[MessageEventRow, ...] = ()
    values: tuple[ReturnValueRow, ...] = ()


class Cooperation(Struct, kw_only=True, gc=False):
    """The rows of cooperation that a batch adds. If `registry_version` is set, the handler registry must still have
    this version. The emitter read its expected handlers from that version. `seen` are handlers that take a message of a
    topic for the first time.
    """

    messages: list[MessageRow] = field(default_factory=list)
    events: list[MessageEventRow] = field(default_factory=list)
    values: list[ReturnValueRow] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)  # topic, name
    registry_version: int | None = None

    def add(self, other: Cooperation) -> None:
        self.messages += other.messages
        self.events += other.events
        self.values += other.values
        self.seen += other.seen
        if other.registry_version is not None:
            versions = [one.registry_version for one in (self, other) if one.registry_version is not None]
            self.registry_version = min(versions)

    @property
    def payload_bytes(self) -> int:
        size = 0
        for message in self.messages:
            size += len(message.payload)
        for event in self.events:
            if event.context is not None:
                size += len(event.context)
            if event.exception is not None:
                size += len(event.exception)
        for value in self.values:
            size += len(value.value)
        return size


# Every row has a lineage. If each row had all ids of its lineage, the size of a hierarchy would grow with the square of
# its depth. So a long lineage has only its root, the number of ids that are left out, and its last ids. To find the ids
# between them, follow the parents of the runs.


def asked_from_above(runs: Iterable[OperationRow], events: Iterable[MessageEventRow]) -> tuple[set[str], list[str]]:
    """Return the ids whose cancellations and rollbacks affect these runs. Also return the runs whose lineage is
    shortened.

    The set has the ids in the lineages of the runs. The list has the runs that have more ancestors than their lineages
    show. `events` are the runs' own events. A run that has committed or rolls back adds nothing, because only its own
    parent can ask it to give up.
    """
    settled = {event.scope for event in events if event.type in ("COMMITTED", "ROLLING_BACK")}
    near: set[str] = set()
    far: list[str] = []
    for run in runs:
        if run.id not in settled:
            lineage = read_origin(run.origin)[1]
            near.update(lineage)
            if is_shortened(lineage):
                far.append(run.id)
    return near, far
