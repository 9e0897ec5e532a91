"""The rows of structured cooperation as they are stored: messages, what happened to them, return values, handlers.

What they mean is the model's to know. Times are microseconds since the epoch; payloads, contexts, failures and values
are text that went through the codec, and opaque here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct, field

from perdure.kernel.lives import without_life

Lineage = tuple[str, ...]

VERSION_SEPARATOR: Final = "\x1f"  # between an operation's topic and its version; no topic contains it

TOKEN_TAG: Final = "perdure.token:"  # noqa: S105 - begins the tags of runs that were given cancellation tokens
APART_TAG: Final = "perdure.apart"  # of a called run that ends only when its caller says so: see ops.Tell
_OWN_TAGS: Final = (TOKEN_TAG, APART_TAG)

LINEAGE_WHOLE_MAX: Final = 64  # ids: a longer one is shortened
LINEAGE_END: Final = 8  # ids at the end of one that is shortened


def stored_version(topic: str, version: str) -> str:
    """What a run of an operation has as its version: its topic, and the version of the code that has begun it."""
    return f"{topic}{VERSION_SEPARATOR}{version}" if version else topic


def read_version(stored: str) -> tuple[str, str]:
    """The reverse: the topic, and the version; "" if no code has begun it, or code without a version."""
    topic, _, version = stored.partition(VERSION_SEPARATOR)
    return topic, version


def without_token_tags(tags: Mapping[str, str]) -> Mapping[str, str]:
    """The tags that users have given."""
    if not any(key.startswith(_OWN_TAGS) for key in tags):
        return tags
    return {key: value for key, value in tags.items() if not key.startswith(_OWN_TAGS)}


def token_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags that say which cancellation tokens a run was given, and how it is stopped. Nobody changes them."""
    return {key: value for key, value in tags.items() if key.startswith(_OWN_TAGS)}


class MessageRow(Struct, frozen=True, kw_only=True, gc=False):
    """A signal on a topic."""

    id: str
    topic: str
    payload: str
    created_at: int


class MessageEventRow(Struct, frozen=True, kw_only=True, gc=False):
    """One thing that happened to a message, or to the run that handles it. `scope` is the last id of its lineage, in
    which it is number `seq`. Of rows with a `key` there is one for each message and key."""

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
    """What the run `scope` left for its parent under a name."""

    scope: str
    variable: str
    handler: str
    value: str


class HandlerRow(Struct, frozen=True, kw_only=True, gc=False):
    """What is known of an operation as a handler of a topic. It is expected from when it was registered until somebody
    takes it out, whether an engine has it or not."""

    topic: str
    name: str
    registered_at: int | None = None
    retired_at: int | None = None
    seen_at: int | None = None  # when it first took a message


class HandlerBook(Struct, frozen=True, kw_only=True):
    """All handlers, and a number that grows whenever one of them changes."""

    version: int = 0
    handlers: tuple[HandlerRow, ...] = ()


class OperationRow(Struct, frozen=True, kw_only=True, gc=False):
    """A run of an operation, or one that an operation has called, as far as cooperation goes. `origin` is its message
    and its lineage (see `origin_of`)."""

    id: str
    parent_id: str | None
    handler: str
    status: str
    origin: str
    bond: str = ""
    output: str | None = None  # what it came to, if it was called
    failure: str | None = None

    @property
    def is_call(self) -> bool:
        return self.bond == "called"


class ScopeRows(Struct, frozen=True, kw_only=True):
    """Rows of one or several hierarchies, or of parts of them; each is there once."""

    runs: tuple[OperationRow, ...] = ()
    messages: tuple[MessageRow, ...] = ()
    events: tuple[MessageEventRow, ...] = ()
    values: tuple[ReturnValueRow, ...] = ()


class Cooperation(Struct, kw_only=True, gc=False):
    """What a batch adds. Unless `book` is None, the handlers must still be those of that version of the book: whoever
    emits has asked it whom to expect. `seen` are handlers that take a message of a topic for the first time."""

    messages: list[MessageRow] = field(default_factory=list)
    events: list[MessageEventRow] = field(default_factory=list)
    values: list[ReturnValueRow] = field(default_factory=list)
    seen: list[tuple[str, str]] = field(default_factory=list)  # topic, name
    book: int | None = None

    def add(self, other: Cooperation) -> None:
        self.messages += other.messages
        self.events += other.events
        self.values += other.values
        self.seen += other.seen
        if other.book is not None:
            self.book = other.book if self.book is None else min(self.book, other.book)

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


def origin_of(message_id: str, lineage: Lineage) -> str:
    """What a run of an operation was started for, as its row has it."""
    return f"{'/'.join(lineage)} {message_id}"


def read_origin(origin: str) -> tuple[str, Lineage]:
    """A run's message and its lineage."""
    lineage, _, message_id = without_life(origin).partition(" ")
    return message_id, read_lineage(lineage)


# Every row has its lineage: if all ids of it were in each, what a hierarchy takes would grow with the square of its
# depth. So a long one has its root, how many ids are left out, and its end; the runs' parents have the rest.


def read_lineage(text: str) -> Lineage:
    """A lineage as it is stored, also one of a row from before lineages were shortened."""
    return shortened(tuple(text.split("/")))


def shortened(lineage: Lineage) -> Lineage:
    """The lineage: root, "+n" for n ids that are left out, and the last ids, if it is a long one."""
    if len(lineage) <= LINEAGE_WHOLE_MAX or is_shortened(lineage):
        return lineage
    return (lineage[0], f"+{len(lineage) - 1 - LINEAGE_END}", *lineage[-LINEAGE_END:])


def is_shortened(lineage: Lineage) -> bool:
    return len(lineage) > LINEAGE_END and lineage[1].startswith("+")


def extended(lineage: Lineage, id: str) -> Lineage:
    """The lineage of a child. Equal ones stay equal, whether they were read or made."""
    if not is_shortened(lineage):
        return shortened((*lineage, id))
    return (lineage[0], f"+{int(lineage[1]) + 1}", *lineage[3:], id)


def depth_of(lineage: Lineage) -> int:
    """How many ids a lineage has, with those that are left out."""
    return len(lineage) - 1 + int(lineage[1]) if is_shortened(lineage) else len(lineage)


def asked_from_above(runs: Iterable[OperationRow], events: Iterable[MessageEventRow]) -> tuple[set[str], list[str]]:
    """Whose cancellations and rollbacks count for these runs: ids of runs above them; and those of these runs whose
    lineage does not have all above it. `events` are the runs' own. A run that has committed, or rolls back, is asked by
    its own parent alone."""
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
