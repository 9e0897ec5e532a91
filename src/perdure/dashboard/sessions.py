"""Sessions of the dashboard. Each browser that has signed in has one.

The browser keeps a random id in a cookie. No script can read the cookie, and the browser sends it only to the
dashboard. The store has the SHA-256 of the id, and the name of the person who signed in. A session that was opened with
a token is bound to the secret of the token. Once the secret is revoked, replaced or expired, the session ends with its
next request. Ended sessions are removed regularly. The API ignores cookies.
"""

from __future__ import annotations

import hashlib
import secrets
from datetime import timedelta
from typing import Any, Final

from perdure.engine import AnyClient
from perdure.http.access import Caller
from perdure.http.scopes import Grants, parse_scopes
from perdure.http.tokens import find_token, token_at

LASTS: Final = timedelta(hours=12)
COOKIE: Final = "perdure_session"
_ID_BYTES: Final = 32
_ID_CHARS_MAX: Final = 100
_MICROSECOND: Final = timedelta(microseconds=1)

RESTRICTED: Final = (
    "This token is for some workflows or tags only. The dashboard shows everything, so it needs a token with a scope "
    "for everything. Use this one with the API."
)


class NoSession(Exception):
    """A sign-in is not possible. The page shows this message."""


async def open_session(client: AnyClient, token: str) -> str:
    """Open a session for a valid token, and return the session's id. Raises NoSession. If the process crashes before
    this returns, a session may remain whose id nobody knows.
    """
    found = await find_token(client, token)
    if found is None:
        raise NoSession("This is not a valid token.")
    if found.wrong:
        raise NoSession(f"{found.wrong[:1].upper()}{found.wrong[1:]}.")
    check_pages(found.grants)
    return await _opened(client, found.name, {"token": found.name, "sha256": found.sha256}, LASTS // _MICROSECOND)


def check_pages(grants: Grants) -> None:
    """Raise NoSession unless these scopes are enough for the dashboard."""
    if grants.is_restricted:
        raise NoSession(RESTRICTED)


async def open_foreign_session(client: AnyClient, name: str, issuer: str, scopes: list[str], lasts_us: int) -> str:
    """Open a session for a person who has signed in through a provider, and return the session's id."""
    return await _opened(client, name, {"issuer": issuer, "name": name, "scopes": scopes}, lasts_us)


async def _opened(client: AnyClient, actor: str, body: dict[str, Any], lasts_us: int) -> str:
    await client.credentials.tidy_sessions()
    session_id = secrets.token_urlsafe(_ID_BYTES)
    await client.credentials.put_session(_digest(session_id), body, lasts_us=lasts_us, actor=actor)
    return session_id


async def find_session(client: AnyClient, session_id: str, issuer: str | None = None) -> Caller | None:
    """Return the caller of a session. Return None if the session has ended, if its token has changed, or if it was not
    opened through `issuer`.
    """
    if not session_id or len(session_id) > _ID_CHARS_MAX:
        return None
    session = await client.credentials.session(_digest(session_id))
    if session is None:
        return None
    if "issuer" in session.body:
        is_ours = session.body["issuer"] == issuer
        return Caller(session.body["name"], parse_scopes(session.body["scopes"]), True) if is_ours else None
    token = await client.credentials.token(session.body["token"])
    if token is None:
        return None
    sha256 = session.body.get("sha256")
    # An earlier version of Perdure opened this session. That version stored the token's version instead of the digest.
    if sha256 is None:
        sha256 = token.body["sha256"] if token.version == session.body["version"] else ""
    found = token_at(token, sha256, client.credentials.now())
    if found is None or found.wrong or found.grants.is_restricted:
        return None
    return Caller(found.name, found.grants, True)


async def close_session(client: AnyClient, session_id: str) -> None:
    """End a session for good. A crash leaves the session either open or ended. A second call changes nothing."""
    await client.credentials.end_session(_digest(session_id))


def _digest(session_id: str) -> str:
    return hashlib.sha256(session_id.encode(errors="surrogateescape")).hexdigest()


__all__ = [
    "COOKIE",
    "LASTS",
    "NoSession",
    "check_pages",
    "close_session",
    "find_session",
    "open_foreign_session",
    "open_session",
]
