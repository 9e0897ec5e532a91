"""Tokens of the HTTP API, and sessions of the dashboard."""

from __future__ import annotations

from typing import Protocol

from perdure.kernel.access import StoredSession, StoredToken


class AccessStore(Protocol):
    """Tokens and sessions."""

    async def token(self, name: str) -> StoredToken | None:
        """Return the newest version of a token."""

    async def tokens(self, *, after: str | None = None, limit: int = 100) -> list[StoredToken]:
        """Return the newest versions of all tokens, by name. Only names after `after` are returned."""

    async def token_versions(self, *, after: tuple[str, int] | None = None, limit: int = 100) -> list[StoredToken]:
        """Return all versions of all tokens, by name and version. Only versions after `after` are returned."""

    async def use_token(self, name: str, *, at: int) -> None:
        """Note the time at which a token was used, unless a later use is already noted."""

    async def session(self, id: str) -> StoredSession | None:
        """Return a session. The session may have expired, if it is not removed yet."""

    async def purge_sessions(self, *, at: int, limit: int) -> int:
        """Remove up to `limit` sessions that have expired at the time `at`. Return how many were removed."""
