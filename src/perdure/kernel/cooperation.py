"""The rows of structured cooperation as they are stored: messages, what happened to them, return values, handlers.

What they mean is the model's to know. Times are microseconds since the epoch; payloads, contexts, failures and values
are text that went through the codec, and opaque here.
"""

from __future__ import annotations

from msgspec import Struct, field


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
            size += len(event.context or "") + len(event.exception or "")
        for value in self.values:
            size += len(value.value)
        return size


def origin_of(message_id: str, lineage: tuple[str, ...]) -> str:
    """What a run of an operation was started for, as its row has it."""
    return f"{'/'.join(lineage)} {message_id}"


def read_origin(origin: str) -> tuple[str, tuple[str, ...]]:
    """A run's message and its lineage."""
    lineage, _, message_id = origin.partition(" ")
    return message_id, tuple(lineage.split("/"))
