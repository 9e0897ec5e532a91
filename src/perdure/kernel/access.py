"""Stored tokens of the HTTP API and sessions of the dashboard. They are separate from users' records.

Times are microseconds since the epoch. The body of a token or a session is text that the codec has encoded. The kernel
does not read it.
"""

from __future__ import annotations

from msgspec import Struct


class StoredToken(Struct, frozen=True, kw_only=True):
    """One version of a token. A token gets a new version when it is made, replaced, rotated or revoked. Only the newest
    version counts."""

    name: str
    version: int  # 1, 2, 3, …
    digest: str  # of the body, before the codec: equal digests mean equal bodies
    actor: str
    at: int
    used_at: int | None = None  # when a client last used the token, to the minute or so
    body: str


class StoredSession(Struct, frozen=True, kw_only=True):
    """A session of a person who has signed in. `id` is the SHA-256 of the browser's cookie. The session is invalid from
    `until` on, and is removed later."""

    id: str
    until: int
    actor: str
    at: int
    body: str
