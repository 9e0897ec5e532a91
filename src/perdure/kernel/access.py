"""Tokens of the HTTP API and sessions of the dashboard, as they are stored: apart from all that users keep as records.

Times are microseconds since the epoch. What a token is good for, and whose a session is, is text that went through the
codec, and opaque here.
"""

from __future__ import annotations

from msgspec import Struct


class StoredToken(Struct, frozen=True, kw_only=True):
    """One version of a token: it was made, replaced, rotated or revoked. The newest counts."""

    name: str
    version: int  # 1, 2, 3, …
    digest: str  # of the body, before the codec: what tells whether it is the same
    actor: str
    at: int
    used_at: int | None = None  # when it was last shown, to the minute or so
    body: str


class StoredSession(Struct, frozen=True, kw_only=True):
    """Somebody who has signed in. `id` is the SHA-256 of what the browser keeps. It counts for nothing from `until` on,
    and is removed in time."""

    id: str
    until: int
    actor: str
    at: int
    body: str
