"""Stored tokens of the HTTP API and sessions of the dashboard. They are stored separately from users' records.

Times are microseconds since the epoch. The body of a token or a session is text that the codec has encoded. The kernel
does not read it.
"""

from __future__ import annotations

from msgspec import Struct


class StoredToken(Struct, frozen=True, kw_only=True):
    """One version of a token. Creating, replacing, rotating or revoking a token adds a version. Only the newest version
    counts.
    """

    name: str
    version: int  # 1, 2, 3, …
    digest: str  # of the body, before the codec encodes it; equal digests mean equal bodies
    actor: str
    at: int
    used_at: int | None = None  # when a client last used the token, accurate to about a minute
    body: str


class StoredSession(Struct, frozen=True, kw_only=True):
    """A session of a person who has signed in. `id` is the SHA-256 of the browser's cookie. The session is invalid from
    `until` on, and is removed some time after that.
    """

    id: str
    until: int
    actor: str
    at: int
    body: str
