"""Tokens and sessions of the store in memory."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct, field
from msgspec.structs import replace

from perdure.kernel.access import StoredSession, StoredToken
from perdure.kernel.runless_rows import SharedWrites


class AccessTables(Struct, eq=False):
    """The tables."""

    tokens: dict[str, list[StoredToken]] = field(default_factory=dict)  # by name; in order
    sessions: dict[str, StoredSession] = field(default_factory=dict)

    def accepts(self, added: Sequence[StoredToken]) -> bool:
        """Return whether each token is the next version of its name."""
        counts: dict[str, int] = {}
        for one in added:
            counts[one.name] = counts.get(one.name, len(self.tokens.get(one.name, ()))) + 1
            if one.version != counts[one.name]:
                return False
        return True

    def apply(self, shared: SharedWrites) -> None:
        for token in shared.tokens:
            versions = self.tokens.get(token.name, [])
            used_at = versions[-1].used_at if versions else None
            self.tokens[token.name] = [*versions, replace(token, used_at=used_at)]
        for session_id, session in shared.sessions:
            if session is None:
                self.sessions.pop(session_id, None)
            else:
                self.sessions.setdefault(session_id, session)

    def token(self, name: str) -> StoredToken | None:
        versions = self.tokens.get(name)
        return versions[-1] if versions else None

    def list_tokens(self, after: str | None, limit: int) -> list[StoredToken]:
        names = sorted(name for name in self.tokens if after is None or name > after)
        return [self.tokens[name][-1] for name in names[: max(0, limit)]]

    def list_versions(self, after: tuple[str, int] | None, limit: int) -> list[StoredToken]:
        found = [one for name in sorted(self.tokens) for one in self.tokens[name]]
        return [one for one in found if after is None or (one.name, one.version) > after][: max(0, limit)]

    def use_token(self, name: str, at: int) -> None:
        if (token := self.token(name)) is not None and (token.used_at or 0) < at:
            self.tokens[name][-1] = replace(token, used_at=at)

    def purge_sessions(self, at: int, limit: int) -> int:
        over = sorted((one.until, one.id) for one in self.sessions.values() if one.until <= at)[: max(0, limit)]
        for _, session_id in over:
            del self.sessions[session_id]
        return len(over)
