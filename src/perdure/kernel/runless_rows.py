"""Changes of rows that belong to no run: records, tokens, sessions and handlers."""

from __future__ import annotations

from msgspec import Struct, field

from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.records import Record


class HandlerChange(Struct, frozen=True, gc=False):
    """A handler of a topic is expected from now on, or is no longer expected."""

    topic: str
    name: str
    is_expected: bool


class SharedWrites(Struct, kw_only=True):
    """The changes that a decision or a batch makes to rows that belong to no run. Each list is applied in order.

    The version of a record or a token must be the next version of its name. A handler can be retired only if the store
    has it and it is not retired yet. If another commit was faster, the store raises CommitConflict. Then the batch is
    decided again.
    """

    records: list[Record] = field(default_factory=list)
    tokens: list[StoredToken] = field(default_factory=list)
    sessions: list[tuple[str, StoredSession | None]] = field(default_factory=list)  # by id; None ends the session
    handlers: list[HandlerChange] = field(default_factory=list)

    def add(self, other: SharedWrites) -> None:
        self.records += other.records
        self.tokens += other.tokens
        self.sessions += other.sessions
        self.handlers += other.handlers
